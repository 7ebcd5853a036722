"""What the screen costs: CPU, memory, first paint, bytes a second, and the exit while a server hangs.

Beside it in the same run, in environments that the benchmark makes: vllmstat 0.9.1 and vllmpytop 0.3.0 on the same
metrics page. nvitop 1.7.2 is a curses monitor of GPUs; it is measured where there is one.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from bench.as_installed import dashboard, environment_of  # noqa: E402
from bench.bench_metrics import full_page  # noqa: E402
from ui.pseudo_terminal import Terminal, cpu_seconds, live_app, resident_bytes  # noqa: E402

SIZE = (120, 40)
SECONDS = 15.0
PAINTED_BYTES = 2_000
"""So many bytes are a painted screen, whatever the program's words are."""
PEERS = (
    ("vllmstat 0.9.1", "vllmstat==0.9.1", "vllmstat", ("-u", "{url}", "--no-gpu", "-i", "1")),
    ("vllmpytop 0.3.0", "vllmpytop==0.3.0", "vllmpytop", ("--url", "{url}", "--no-gpu", "--interval", "1")),
    ("nvitop 1.7.2", "nvitop==1.7.2", "nvitop", ()),
)
Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Cost:
    """One program's figures."""

    first_paint_s: float
    cpu_share: float
    memory_bytes: int
    kib_per_s: float
    quit_s: float


def measured(
    command: Sequence[str], environment: dict[str, str], quit_key: str = "q", seconds: float = SECONDS
) -> Cost | None:
    """Runs a program until it is steady, then reads its costs; None where it does not run here."""
    began = time.monotonic()
    terminal = Terminal(command, SIZE, environment)
    try:
        while len(terminal.output) < PAINTED_BYTES:
            if terminal.process.poll() is not None or time.monotonic() - began > 20:
                return None
            terminal.read(0.01)
        painted = time.monotonic() - began
        terminal.read(4.0)
        cpu = cpu_seconds(terminal.process.pid)
        sent = terminal.read(seconds)
        if terminal.process.poll() is not None:
            return None
        share = (cpu_seconds(terminal.process.pid) - cpu) / seconds
        memory = resident_bytes(terminal.process.pid)
        pressed = time.monotonic()
        terminal.press(quit_key)
        ended = terminal.ended(15.0)
        return Cost(
            painted, share, memory, sent / seconds / 1024, time.monotonic() - pressed if ended is not None else 99
        )
    finally:
        terminal.close()


def peer(package: str, program: str, folder: Path) -> Path | None:
    """The program in an environment of its own, or None where it cannot be installed."""
    place = folder / program
    venv.create(place, with_pip=True)
    done = subprocess.run(
        [place / "bin" / "pip", "install", "--quiet", package], capture_output=True, text=True, check=False
    )
    return place / "bin" / program if done.returncode == 0 else None


def hung_server() -> socket.socket:
    """Takes connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    return listener


def _verdict(kept: bool) -> str:
    return "kept" if kept else "MISSED"


def run() -> list[Row]:
    """The rows: what, vtop, against, verdict."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        private = {f"VTOP_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "STATE", "RUNS", "CACHE")}
        private = environment_of(private, folder)
        page = folder / "metrics.txt"
        page.write_bytes(full_page())
        server = subprocess.Popen(
            [sys.executable, str(HERE / "page_server.py"), str(page), "1"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        try:
            # The first start leaves bytecode; it is not counted.
            measured(dashboard("--url", url), private, seconds=1.0)
            ours = measured(dashboard("--url", url), private)
            assert ours is not None
            others: list[tuple[str, Cost]] = []
            for title, package, program, arguments in PEERS:
                found = peer(package, program, folder)
                command = [str(found), *(part.format(url=url) for part in arguments)]
                cost = measured(command, {"HOME": str(folder)}) if found else None
                if cost is not None:
                    others.append((title, cost))
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()
        with hung_server() as listener:
            hung = measured(dashboard("--url", f"http://127.0.0.1:{listener.getsockname()[1]}"), private)

    def beside(write: str, attribute: str, factor: float = 1.0) -> str:
        return ", ".join(f"{title} {getattr(cost, attribute) * factor:{write}}" for title, cost in others) or "no peer"

    stat = next((cost for title, cost in others if title.startswith("vllmstat")), None)
    rows.append(
        ("idle, 1 Hz, % of a core", f"{ours.cpu_share * 100:.1f} %", "budget 2 %; " + beside(".1f", "cpu_share", 100),
         _verdict(ours.cpu_share <= 0.02 and (stat is None or ours.cpu_share < stat.cpu_share)))
    )  # fmt: skip
    rows.append(
        ("memory", f"{ours.memory_bytes / 2**20:.0f} MiB", "budget 50 MB; " + beside(".0f", "memory_bytes", 2**-20),
         _verdict(ours.memory_bytes <= 50e6))
    )  # fmt: skip
    rows.append(
        ("first paint", f"{ours.first_paint_s:.2f} s", "budget 0.6 s; " + beside(".2f", "first_paint_s"),
         _verdict(ours.first_paint_s <= 0.6))
    )  # fmt: skip
    rows.append(("idle, KiB a second", f"{ours.kib_per_s:.1f}", beside(".1f", "kib_per_s"), "-"))
    if hung is not None:
        rows.append(
            ("exit with a hung server", f"{hung.quit_s:.2f} s", "budget 0.3 s; " + beside(".2f", "quit_s"),
             _verdict(hung.quit_s <= 0.3))
        )  # fmt: skip
    for size, budget in (((80, 24), 20), ((120, 40), 40)):
        rate = live_load_rate(size)
        rows.append(
            (f"live load charts at {size[0]}x{size[1]}", f"{rate:.1f} KiB/s", f"budget {budget} KiB/s",
             _verdict(rate <= budget))
        )  # fmt: skip
    return rows


def live_load_rate(size: tuple[int, int]) -> float:
    """KiB a second with a load test drawn live."""
    terminal = live_app(["live-load"], size)
    try:
        terminal.wait_for("baseline")
        terminal.press("l")
        terminal.wait_for("Load test")
        terminal.read(3.0)
        return terminal.read(SECONDS) / SECONDS / 1024
    finally:
        terminal.close()


def main() -> None:
    """Prints the table."""
    for row in run():
        print(" | ".join(row))


if __name__ == "__main__":
    main()
