"""What the load generator costs, beside the clients that people use, on the mock server with known times.

Server on one core, client on another, in one run; compare columns, not milliseconds. `$VTOP_BENCH_VLLM` names a python
with vLLM, for the columns of `vllm bench serve`.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from vtop.load.progress import LoadRequest
from vtop.load.runner import LoadRunner

HERE = Path(__file__).parent
MOCK = HERE.parent / "load" / "mock_server.py"
Row = tuple[str, str, str, str]
TOKENS = 100


class Mock:
    """The mock server on its own core."""

    def __init__(self, *options: str) -> None:
        command = [*pinned(0), sys.executable, str(MOCK), *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def ttfts_s(self) -> list[float]:
        """Its own TTFTs, in order of arrival."""
        with urllib.request.urlopen(f"{self.url}/seen", timeout=60) as answer:
            found: list[float] = json.load(answer)["ttfts_s"]
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def pinned(core: int) -> list[str]:
    """The words that hold a command on one core, where that can be done."""
    cores = os.cpu_count() or 1
    return ["taskset", "-c", str(core)] if sys.platform == "linux" and cores > 1 else []


def measure(client: str, streams: int, *options: str, tokens: int = TOKENS, waves: int = 2) -> dict[str, Any] | None:
    """Runs one client; None where it is not there or did not finish."""
    python = os.environ.get("VTOP_BENCH_VLLM") if client == "vllm" else sys.executable
    if not python:
        return None
    mock = Mock(*options)
    try:
        wanted = [mock.url, str(streams), str(waves * streams), str(tokens), "1" if "--stamps" in options else "0"]
        command = [*pinned(1), python, str(HERE / f"load_client_{client}.py"), *wanted]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=300, check=False)
        if done.returncode:
            return None
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        true = mock.ttfts_s()
    except subprocess.TimeoutExpired:
        return None
    finally:
        mock.close()
    found["cpu_per_token_us"] = found["cpu_s"] / max(1, found["tokens"]) * 1e6
    # The second wave goes over connections that are open.
    found["ttft_error_ms"] = (statistics.median(found["ttfts_s"][streams:]) - statistics.median(true[streams:])) * 1e3
    return found


def shown(found: dict[str, Any] | None, key: str, unit: str) -> str:
    """A number of a client, or why it is missing."""
    return "not run" if found is None else f"{found[key]:.2f} {unit}"


def pairs(streams: int, against: str, count: int) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """vtop's client and another's in turn, so that what else the machine does falls on both."""
    return [(measure("vtop", streams), measure(against, streams)) for _ in range(count)]


def ratio(found: list[tuple[dict[str, Any] | None, dict[str, Any] | None]], limit: float) -> str:
    """The median of the pairs' CPU ratios, and whether it is within the budget."""
    ratios = [ours["cpu_per_token_us"] / theirs["cpu_per_token_us"] for ours, theirs in found if ours and theirs]
    if not ratios:
        return "not run"
    value = statistics.median(ratios)
    return f"{value:.2f}x (budget {limit:g}x) {'ok' if value <= limit else 'ABOVE'}"


def least(runs: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The lowest value of each number: the run that the rest of the machine disturbed least."""
    done = [run for run in runs if run is not None]
    if not done:
        return None
    return {key: min(run[key] for run in done) for key in ("cpu_per_token_us", "ttft_error_ms")}


def bench_cost() -> list[Row]:
    """CPU a token and TTFT error."""
    rows: list[Row] = []
    for streams, error_budget_ms in ((16, 0.5), (64, 1.0), (256, 5.0)):
        found = pairs(streams, "vllm", 3)
        ours, vllm = least([pair[0] for pair in found]), least([pair[1] for pair in found])
        # httpx does not end within minutes at 256 streams.
        slow = pairs(streams, "httpx", 1) if streams <= 64 else []
        httpx = least([pair[1] for pair in slow])
        if streams >= 64:
            name = f"load client CPU per token, {streams} streams"
            mine = shown(ours, "cpu_per_token_us", "µs")
            rows.append((name, mine, f"vllm bench {shown(vllm, 'cpu_per_token_us', 'µs')}", ratio(found, 0.4)))
            if httpx is not None:
                rows.append((name, mine, f"httpx {shown(httpx, 'cpu_per_token_us', 'µs')}", ratio(slow, 0.4)))
        within = ours is not None and ours["ttft_error_ms"] <= error_budget_ms
        rows.append(
            (
                f"TTFT added by the client, median, open connections, {streams} streams",
                shown(ours, "ttft_error_ms", "ms"),
                f"vllm bench {shown(vllm, 'ttft_error_ms', 'ms')}"
                + ("" if httpx is None else f", httpx {shown(httpx, 'ttft_error_ms', 'ms')}"),
                f"budget {error_budget_ms:g} ms {'ok' if within else 'ABOVE'}",
            )
        )
    return rows


def bench_many() -> list[Row]:
    """2,000 streams of 10 tokens a second, server and client on two cores."""
    slow = ("--first", "1.0", "--step", "0.1", "--stamps")
    ours = measure("vtop", 2000, *slow, tokens=40)
    theirs = measure("vllm", 2000, *slow, tokens=40)
    if ours is None:
        return [("2,000 streams of 10 tokens/s", "did not finish", "", "FAILED")]
    lags = ours["lags_s"]
    p99 = lags[int(0.99 * (len(lags) - 1))] * 1e3
    verdict = "ok" if p99 <= 100 and ours["failed"] == 0 else "ABOVE"
    return [
        (
            "2,000 streams of 10 tokens/s: failures, delivery lag P99, TTFT added",
            f"{ours['failed']} failed, {p99:.1f} ms, {ours['ttft_error_ms']:.1f} ms",
            "vllm bench not run"
            if theirs is None
            else f"vllm bench {theirs['failed']} failed, TTFT {theirs['ttft_error_ms']:.1f} ms",
            f"budget 0 and 100 ms {verdict}",
        )
    ]


async def whole_command(url: str) -> float:
    """Seconds from the start of a load test to its saved result, less the test itself (no warm-up)."""
    runner = LoadRunner()
    began = time.monotonic()
    await runner.start(LoadRequest(workload="demo", url=url, model="normal", warmup=0, requests=32, max_tokens=50))
    result = await runner.wait()
    took = time.monotonic() - began
    await runner.close()
    return took - result.duration_s


def bench_whole() -> list[Row]:
    """What the command adds to the test."""
    with tempfile.TemporaryDirectory() as runs:
        os.environ["VTOP_RUNS_DIR"] = runs
        mock = Mock()
        try:
            over = statistics.median(asyncio.run(whole_command(mock.url)) for _ in range(3))
        finally:
            mock.close()
    verdict = "ok" if over <= 1.0 else "ABOVE"
    return [("load test over the test itself", f"{over:.2f} s", "vllm bench: see docs", f"budget 1 s {verdict}")]


async def one_behaviour(url: str, model: str) -> Any:
    """A small test of one behaviour."""
    runner = LoadRunner()
    await runner.start(
        LoadRequest(
            workload="demo",
            url=url,
            model=model,
            concurrency=8,
            requests=40,
            max_tokens=100,
            warmup=0,
            measure_client=False,
        )
    )
    result = await runner.wait()
    await runner.close()
    return result


def is_right(model: str, result: Any) -> bool:
    """Whether the numbers are the mock's truth (timers on a busy machine add up to a fifth)."""
    failed = 10 if model in ("err", "cut") else 0
    tpot = 240 / 99 / 1000 if model == "chunk4" else 0.010
    right = result.failed == failed and result.output_tokens == (40 - failed) * 100
    right = right and 0.2 <= result.ttft.p50 <= 0.24 and 0.98 * tpot <= result.tpot.p50 <= 1.25 * tpot
    if model == "reason":
        right = right and 0.68 <= result.ttfo.p50 <= 0.85
    return bool(right)


def bench_behaviours() -> list[Row]:
    """Seven servers whose truth is known."""
    models = ("normal", "rolefirst", "chunk4", "reason", "empty", "err", "cut")
    with tempfile.TemporaryDirectory() as runs:
        os.environ["VTOP_RUNS_DIR"] = runs
        wrong: list[str] = []
        for model in models:
            mock = Mock()
            try:
                if not is_right(model, asyncio.run(one_behaviour(mock.url, model))):
                    wrong.append(model)
            finally:
                mock.close()
    right = f"{len(models) - len(wrong)} of {len(models)} right" + (f" (wrong: {', '.join(wrong)})" if wrong else "")
    return [
        (
            "server behaviours reported rightly",
            right,
            "vllm bench 3 of 7, guidellm 4 of 7",
            "ok" if not wrong else "WRONG",
        )
    ]


def run() -> list[Row]:
    """(what, vtop, against, verdict) of every budget of the load generator."""
    kept = os.environ.get("VTOP_RUNS_DIR")
    try:
        return [*bench_behaviours(), *bench_whole(), *bench_cost(), *bench_many()]
    finally:
        if kept is None:
            os.environ.pop("VTOP_RUNS_DIR", None)
        else:
            os.environ["VTOP_RUNS_DIR"] = kept


if __name__ == "__main__":
    for row in run():
        print(" | ".join(row))
