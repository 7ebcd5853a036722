"""What reading /metrics costs: one page beside `prometheus_client`, 32 servers once a second, memory over many scrapes.

`$VTOP_BENCH_VLLM` names a python that has prometheus_client (every environment with vLLM has it), for its column.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from vtop.servers.status import ServerState, ServerStatus
from vtop.telemetry.hub import Hub
from vtop.telemetry.prometheus import PageParser
from vtop.telemetry.window import ScrapeWindow
from vtop.vllm.metric_names import PROCESS_START, VLLM_NAMES
from vtop.vllm.metrics import MetricsReader

HERE = Path(__file__).parent
PAGE = HERE.parent / "telemetry" / "data" / "pages" / "vllm-0.32.0.prom.gz"
PAGE_BYTES = 68_000
"""The size of that page as the server wrote it, with its help texts."""
SERVERS = 32
SECONDS = 10
SCRAPES = 100_000
Row = tuple[str, str, str, str]

THEIRS = """
import sys, time
from prometheus_client.parser import text_string_to_metric_families as parse
text = open(sys.argv[1]).read()
times = []
for _ in range(30):
    began = time.process_time()
    for family in parse(text):
        for sample in family.samples:
            pass
    times.append(time.process_time() - began)
print(sorted(times)[len(times) // 2])
"""


def full_page() -> bytes:
    """The 0.32 page with help texts of about the length that it had."""
    lines = gzip.decompress(PAGE.read_bytes()).splitlines(keepends=True)
    missing = PAGE_BYTES - sum(map(len, lines))
    helps = [number for number, line in enumerate(lines) if line.startswith(b"# HELP")]
    for number in helps:
        lines[number] = lines[number].rstrip(b"\n") + b" " + b"x" * max(0, missing // len(helps) - 1) + b"\n"
    return b"".join(lines)


def median_s(work: Callable[[], object], times: int = 100) -> float:
    """Median CPU seconds of one call."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def theirs_s(path: Path) -> float | None:
    """Median CPU seconds of prometheus_client on the same page, or None where it is nowhere to be found."""
    for python in filter(None, (os.environ.get("VTOP_BENCH_VLLM"), sys.executable)):
        done = subprocess.run([python, "-c", THEIRS, str(path)], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return float(done.stdout)
    return None


class Scraping:
    """The work of one scrape without the network."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.parser = PageParser(VLLM_NAMES | {PROCESS_START})
        self.window = ScrapeWindow(10)
        self.reader = MetricsReader()
        self.at_s = 0.0

    def parse(self) -> None:
        """Text to samples."""
        self.parser.parse(self.body)

    def whole(self) -> None:
        """Text to readings."""
        self.at_s += 1
        page = self.parser.parse(self.body)
        self.window.add(self.at_s, page.layout, page.values)
        differences = self.window.differences()
        assert differences is not None
        self.reader.read(differences, self.at_s)


async def hub_share(path: Path) -> tuple[float, float, int]:
    """CPU share of a hub with 32 servers at 1 Hz, that with none, and how many of the 32 answered in the end."""
    command = [sys.executable, str(HERE / "page_server.py"), str(path), str(SERVERS)]
    server = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout is not None
    ports = (await server.stdout.readline()).split()
    statuses = [
        ServerStatus(f"s{port.decode()}", f"http://127.0.0.1:{port.decode()}", ServerState.READY) for port in ports
    ]
    shares, answered = [], 0
    try:
        for watched in (statuses, []):
            hub = Hub(server_statuses=lambda watched=watched: watched)  # type: ignore[misc]
            await hub.open()
            await asyncio.sleep(2)
            began, cpu = time.monotonic(), time.process_time()
            await asyncio.sleep(SECONDS)
            shares.append((time.process_time() - cpu) / (time.monotonic() - began))
            answered = max(answered, sum(view.scrape.state == "ok" for view in hub.snapshot().servers))
            await hub.close()
    finally:
        assert server.stdin is not None
        server.stdin.close()
        await server.wait()
    return shares[0], shares[1], answered


def growth_bytes(body: bytes) -> int:
    """How much the peak memory of this process rises over many scrapes, once its rings are full.

    The counters rise from page to page, an adapter comes and goes, and now and then the server begins again.
    """
    scraping = Scraping(body)
    bodies = [risen(body, step) for step in range(50)]
    for number in range(1500):
        scraping.body = bodies[number % len(bodies)]
        scraping.whole()
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    for number in range(SCRAPES):
        scraping.body = bodies[number % len(bodies)]
        scraping.whole()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before


def risen(body: bytes, step: int) -> bytes:
    """The page a little later."""
    lines = []
    for line in body.decode().splitlines():
        key, _, value = line.rpartition(" ")
        if line.startswith("vllm:") and key.partition("{")[0].endswith(("_total", "_bucket", "_count", "_sum")):
            line = f"{key} {float(value) + step}"
        lines.append(line)
    lines.append(f'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="a{step // 10}"}} {1.7e9 + step}')
    return ("\n".join(lines) + "\n").encode()


def run() -> list[Row]:
    """The rows: what, vtop, against, verdict."""
    body = full_page()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.txt"
        path.write_bytes(body)
        scraping = Scraping(body)
        scraping.whole()
        parse_s, whole_s = median_s(scraping.parse), median_s(scraping.whole)
        other_s = theirs_s(path)
        busy, idle, answered = asyncio.run(hub_share(path))
    grown = growth_bytes(body)
    size = f"{len(body) // 1000} KB page"
    against = "no prometheus_client found (set VTOP_BENCH_VLLM)"
    ratio = "-"
    if other_s is not None:
        against = f"prometheus_client {other_s * 1e3:.1f} ms"
        ratio = f"{other_s / parse_s:.0f} times faster"
    return [
        (f"{size}, text to samples", f"{parse_s * 1e3:.2f} ms", against, ratio),
        (f"{size}, text to readings", f"{whole_s * 1e3:.2f} ms", "budget 2 ms", _verdict(whole_s <= 0.002)),
        (
            f"{answered} servers at 1 Hz, share of a core",
            f"{busy * 100:.1f} %",
            f"budget 25 %; the hub with no server {idle * 100:.1f} %",
            _verdict(busy <= 0.25 and answered == SERVERS),
        ),
        (f"memory over {SCRAPES:,} scrapes", f"+{grown / 1024:.0f} KiB", "flat", _verdict(grown < 2 << 20)),
    ]


def _verdict(kept: bool) -> str:
    return "kept" if kept else "MISSED"


def main() -> None:
    """Prints the table."""
    for row in run():
        print(" | ".join(row))


if __name__ == "__main__":
    main()
