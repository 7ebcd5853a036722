"""The report of a load test, ladder or search: totals, latencies, curves, failures, how to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vtop import units
from vtop.load.progress import LoadResult, Percentiles
from vtop.load.stats import too_few
from vtop.results import store
from vtop.results.blocks import Block, Bullets, Command, Heading, Lines, Point, Table, Text
from vtop.results.definitions import LOAD_DEFINITIONS
from vtop.results.report_parts import SIMULATED, definitions, when

MOST_POINTS = 2000
"""Of a cloud of requests; of longer runs every n-th."""


def run_blocks(result: LoadResult) -> Iterator[Block]:
    """The blocks of a load test, a ladder or a search."""
    request = result.request
    what = {"ladder": "Ladder", "search": "Search for the highest rate"}.get(result.kind, "Load test")
    yield Heading(f"{what}: {request.workload} · {request.model}{' (SIMULATED)' if result.simulated else ''}", 1)
    if result.simulated:
        yield SIMULATED
    if not result.complete:
        yield Text("Cut before its end: what was measured until then.", loud=True)
    if not result.comparable:
        yield Text(f"Not comparable: {result.not_comparable_because}", loud=True)
    said = [when(result.at_wall_s)]
    for name, words in (("vllm_version", "vLLM"), ("gpu", "GPU"), ("driver", "driver")):
        value = result.fingerprint.get(name)
        if value:
            said.append(f"{words} {value if isinstance(value, str) else ', '.join(map(str, value))}")
    yield Text(" · ".join(said))
    yield _totals(result)
    yield _latencies(result)
    if result.steps:
        yield from _steps(result)
    else:
        yield from _over_time(result)
    if result.failures:
        yield Heading("Failures")
        yield Table(("cause", "requests"), tuple((cause, str(count)) for cause, count in result.failures))
    if result.warnings:
        yield Heading("Mind")
        yield Bullets(result.warnings)
    if numbers := _plain_numbers(result):
        yield Heading("Server and GPU over the same window")
        yield Table(("number", "value"), numbers, wide=(1,))
    yield Heading("How to repeat")
    yield Command(result.repeat_command or units.DASH)
    yield Text(f"Prompts of this run: seed {result.seed}. A repeat takes fresh ones.")
    if result.definitions:
        yield Text(f"Imported; the numbers follow the formulas of {result.definitions}.", loud=True)
        yield from definitions(result.sources)
    else:
        yield from definitions(LOAD_DEFINITIONS)


def _totals(result: LoadResult) -> Table:
    request = result.request
    rows = [
        ("requests", f"{result.completed} of {result.requests} ok, {result.failed} failed"),
        ("concurrency", units.count(request.concurrency)),
        ("total time", units.duration(result.duration_s)),
        ("output", units.rate(result.output_tokens_per_s, "tok/s")),
        ("output, steady", units.rate(result.steady_tokens_per_s, "tok/s")),
        ("requests/s", units.significant(result.requests_per_s)),
        ("tokens", f"{units.count(result.prompt_tokens)} in, {units.count(result.output_tokens)} out"),
        ("mean latency", units.duration(result.e2e.mean)),
        ("P95 latency", _marked(result.e2e, 95)),
    ]
    if result.asked_rate is not None:
        rows.append(
            (
                "rate",
                f"{units.significant(result.asked_rate)}/s asked, {units.significant(result.achieved_rate)}/s sent",
            )
        )
    if result.goodput_per_s is not None:
        rows.append(("goodput", units.rate(result.goodput_per_s, "requests/s")))
    if result.client_overhead_s is not None:
        rows.append(("client", f"adds {units.duration(result.client_overhead_s)} to TTFT"
                               + (", CLIENT-BOUND" if result.client_bound else "")))  # fmt: skip
    return Table(("", ""), tuple(rows), wide=(1,))


def _marked(numbers: Percentiles, which: int) -> str:
    value = {95: numbers.p95, 99: numbers.p99}[which]
    return units.duration(value) + ("?" if value is not None and too_few(which, numbers.n) else "")


def _latencies(result: LoadResult) -> Table:
    gap = "ITL" if (result.tokens_per_chunk or 1.0) <= 1.05 else "chunk gap"
    named = [("TTFT", result.ttft), ("TPOT", result.tpot), (gap, result.itl), ("E2E", result.e2e)]
    named += [("E2E from schedule", result.e2e_from_schedule), ("wait before send", result.wait_before_send)]
    return Table(
        ("latency", "mean", "p50", "p90", "p95", "p99", "n"),
        tuple(
            (
                name,
                *map(units.duration, (numbers.mean, numbers.p50, numbers.p90)),
                _marked(numbers, 95),
                _marked(numbers, 99),
                units.count(numbers.n),
            )
            for name, numbers in named
            if numbers.n
        ),
    )


def _steps(result: LoadResult) -> Iterator[Block]:
    yield Heading("Steps")
    by_rate = any(step.rate is not None for step in result.steps)
    yield Table(
        ("requests/s asked" if by_rate else "concurrency", "output tok/s", "requests/s", "TTFT p50", "TTFT p95",
         "TPOT p50", "TPOT p95", "failed", "end"),
        tuple(
            (
                units.significant(step.rate) if step.rate is not None else units.count(step.concurrency),
                units.significant(step.output_tokens_per_s),
                units.significant(step.requests_per_s),
                *map(units.duration, (step.ttft_p50_s, step.ttft_p95_s, step.tpot_p50_s, step.tpot_p95_s)),
                units.count(step.failed),
                step.why,
            )
            for step in result.steps
        ),
        wide=(8,),
    )  # fmt: skip
    yield from _step_chart(result, "TTFT p50", [step.ttft_p50_s for step in result.steps])
    yield from _step_chart(result, "TPOT p50", [step.tpot_p50_s for step in result.steps])


def _step_chart(result: LoadResult, name: str, values_s: Sequence[float | None]) -> Iterator[Block]:
    points = tuple(
        (step.output_tokens_per_s, value_s * 1000)
        for step, value_s in zip(result.steps, values_s, strict=True)
        if step.output_tokens_per_s is not None and value_s is not None
    )
    if len(points) > 1:
        yield Lines(f"{name} against throughput, one point a step", "output tok/s", f"{name}, ms", ((name, points),))


def _over_time(result: LoadResult) -> Iterator[Block]:
    """Charts from the requests that lie beside the result; none where they do not."""
    if not result.directory:
        return
    directory = Path(result.directory)
    requests = store.load_requests(directory.name, directory.parent)
    good = [line for line in requests if line.get("ok") and isinstance(line.get("sent_s"), int | float)]
    ttft = _thinned((line["sent_s"], line["ttft_s"] * 1000) for line in good if line.get("ttft_s") is not None)
    tpot = _thinned((line["sent_s"], line["tpot_s"] * 1000) for line in good if line.get("tpot_s") is not None)
    output = _tokens_by_second(good)
    if len(output) > 2:
        yield Lines("Output over the run", "seconds", "output tok/s", (("output", output),))
    if len(ttft) > 1:
        yield Lines("TTFT of each request", "sent at, seconds", "ms", (("TTFT", ttft),), dots_only=True)
    if len(tpot) > 1:
        yield Lines("TPOT of each request", "sent at, seconds", "ms", (("TPOT", tpot),), dots_only=True)


def _thinned(points: Iterator[Point]) -> tuple[Point, ...]:
    known = sorted(points)
    stride = -(-len(known) // MOST_POINTS) or 1
    return tuple(known[::stride])


def _tokens_by_second(good: Sequence[dict[str, Any]]) -> tuple[Point, ...]:
    """Output tokens in each whole second; the last, cut one is left out."""
    seconds: dict[int, float] = {}
    for line in good:
        stamps = line.get("chunk_s") or []
        counts = line.get("chunk_tokens")
        even = (line.get("output_tokens") or len(stamps)) / len(stamps) if stamps else 0.0
        for index, stamp in enumerate(stamps):
            second = int(line["sent_s"] + stamp)
            seconds[second] = seconds.get(second, 0.0) + (counts[index] if counts else even)
    last = max(seconds, default=0)
    return tuple((float(second), seconds.get(second, 0.0)) for second in range(last))


def _plain_numbers(result: LoadResult) -> tuple[tuple[str, str], ...]:
    rows = []
    for owner, numbers in (("server", result.server), ("GPU", result.gpu)):
        for name, value in sorted(numbers.items()):
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                continue
            rows.append((f"{owner}: {_words(name)}", value if isinstance(value, str) else _worded(name, value)))
    return tuple(rows)


_UNITS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("joules_per_token", "", lambda value: f"{units.significant(value)} J"),
    ("_percent", "_percent", units.percent_of_100),
    ("_share", "", units.percent),
    ("_rate", "", units.percent),
    ("acceptance", "", units.percent),
    ("kv_usage_max", "", units.percent),
    ("_bytes", "_bytes", units.gib),
    ("_w", "_w", lambda value: f"{units.significant(value)} W"),
    ("_s", "_s", units.duration),
    ("_tokens", "", units.count),
    ("_max", "", units.count),
    ("preemptions", "", units.count),
)
"""(how a name ends, what of it is its unit, how its value is written); the first that fits."""


_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "kv": "KV", "gpu": "GPU"}


def _words(name: str) -> str:
    unit = next((unit for end, unit, _ in _UNITS if name.endswith(end)), "")
    return " ".join(_SHORT.get(word, word) for word in name.removesuffix(unit).split("_"))


def _worded(name: str, value: float) -> str:
    write = next((write for end, _, write in _UNITS if name.endswith(end)), units.significant)
    return write(value)
