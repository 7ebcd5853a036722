"""A load test as plain text: the lines that people paste."""

from __future__ import annotations

from collections.abc import Iterator

from vtop import units
from vtop.load.outcome import server_window_fits
from vtop.load.progress import LoadProgress, LoadResult, LoadStep, Percentiles
from vtop.load.stats import too_few

_BAR = 24
_STEP_BAR = 20


def summary_lines(result: LoadResult) -> list[str]:
    """The result in lines: totals first, then latencies with their n, warnings, where it is saved, how to repeat it."""
    return list(_lines(result))


def summary_text(result: LoadResult) -> str:
    """See `summary_lines`."""
    return "\n".join(summary_lines(result))


def _seconds(value: float | None) -> str:
    return units.DASH if value is None else f"{value:.2f} s"


def _row(name: str, value: str) -> str:
    return f"  {name:<20}{value}"


def _lines(result: LoadResult) -> Iterator[str]:
    request = result.request
    mark = "SIMULATED  " if result.simulated else ""
    cut = "" if result.complete else "  (cut before its end)"
    yield f"{mark}Load test · {request.workload} · {request.model}{cut}"
    load = f"{result.completed} of {result.requests} ok"
    cap = "at most " if result.asked_rate else ""
    load += f", {cap}{request.concurrency} at once" if request.concurrency else ""
    load += (
        f", {units.significant(result.asked_rate)}/s asked, {units.significant(result.achieved_rate)}/s sent"
        if result.asked_rate
        else ""
    )
    yield _row("Requests", load + (f", {result.failed} failed" if result.failed else ""))
    if result.request.warmup is not None:
        words = f"{result.request.warmup} requests before the clock, with other prompts, not counted"
        yield _row("Warm-up", words if result.request.warmup else "none")
    yield _row("Total time", _seconds(result.duration_s))
    steady = result.steady_tokens_per_s
    output = units.rate(result.output_tokens_per_s, "tokens/s", 4)
    yield _row("Output", output + (f" (steady {units.rate(steady, 'tokens/s', 4)})" if steady is not None else ""))
    yield _row("QPS", units.rate(result.requests_per_s, "requests/s"))
    yield _row("Mean latency", _seconds(result.e2e.mean))
    yield _row("P95 latency", _seconds(result.e2e.p95) + _mark(result.e2e))
    yield ""
    yield f"  {'':<20}{'mean':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'n':>8}"
    gap = "ITL" if (result.tokens_per_chunk or 1.0) <= 1.05 else "Chunk gap"
    for name, numbers in (("TTFT", result.ttft), ("TPOT", result.tpot), (gap, result.itl), ("E2E", result.e2e)):
        yield _numbers(name, numbers)
    if result.ttfo.n:
        yield _numbers("First answer", result.ttfo)
    if result.e2e_from_schedule.n:
        yield _numbers("E2E from schedule", result.e2e_from_schedule)
        yield _numbers("Wait before send", result.wait_before_send)
    if result.goodput_per_s is not None:
        yield _row("Goodput", units.rate(result.goodput_per_s, "requests/s"))
    yield from _steps(result)
    yield ""
    yield from _client_and_server(result)
    if not result.comparable:
        yield _row("Not comparable", result.not_comparable_because)
    for words in result.warnings:
        yield f"  ! {words}"
    yield _row("Saved", result.directory)
    if result.repeat_command:
        yield _row("Repeat", result.repeat_command)


def _mark(numbers: Percentiles) -> str:
    return "  (too few requests for a P95)" if numbers.n and too_few(95, numbers.n) else ""


def _numbers(name: str, numbers: Percentiles) -> str:
    p95 = units.duration(numbers.p95) + ("?" if numbers.n and too_few(95, numbers.n) else "")
    p99 = units.duration(numbers.p99) + ("?" if numbers.n and too_few(99, numbers.n) else "")
    mean, p50 = units.duration(numbers.mean), units.duration(numbers.p50)
    return f"  {name:<20}{mean:>10}{p50:>10}{p95:>10}{p99:>10}{numbers.n:>8}"


def _steps(result: LoadResult) -> Iterator[str]:
    if not result.steps:
        return
    yield ""
    yield f"  {STEP_HEADING}"
    top = max((step.output_tokens_per_s or 0.0 for step in result.steps), default=0.0)
    for step in result.steps:
        share = (step.output_tokens_per_s or 0.0) / top if top > 0 else 0.0
        yield f"  {step_row(step)}  {'#' * round(_STEP_BAR * share):<{_STEP_BAR}} {step.why}".rstrip()


STEP_HEADING = f"{'at once / rate':<16}{'tok/s':>8}{'req/s':>8}{'TTFT p95':>10}{'TPOT p50':>10}{'TPOT p95':>10}"
"""Over rows of `step_row`."""


def step_row(step: LoadStep) -> str:
    """A finished step of a ladder or a search."""
    name = f"{units.significant(step.rate)}/s" if step.rate is not None else str(step.concurrency)
    return (
        f"{name:<16}{units.significant(step.output_tokens_per_s):>8}{units.significant(step.requests_per_s):>8}"
        f"{units.duration(step.ttft_p95_s):>10}{units.duration(step.tpot_p50_s):>10}{units.duration(step.tpot_p95_s):>10}"
    )


def _client_and_server(result: LoadResult) -> Iterator[str]:
    if result.client_overhead_s is not None:
        verdict = "CLIENT-BOUND" if result.client_bound else "not the bottleneck"
        yield _row(
            "Client",
            f"adds {units.duration(result.client_overhead_s)} to TTFT, can read "
            f"{units.rate(result.client_capacity_tokens_per_s, 'tok/s')}: {verdict}"
            + (", scheduled real-time" if result.client_scheduling == "real-time" else ""),
        )
    server = result.server
    if server.get("ttft_mean_s") is not None:
        window = "the same window"
        if not server_window_fits(result):
            window = f"{units.duration(server['window_s'])}, with what ran before or after"
        yield _row("Server's own TTFT", f"mean {units.duration(server['ttft_mean_s'])} over {window}")
    if server.get("prefix_hit_rate") is not None:
        yield _row("Prefix cache hits", f"{units.percent(server['prefix_hit_rate'])} of this run's prompt tokens")


def progress_line(progress: LoadProgress, width: int = 100) -> str:
    """One line for a terminal while the test runs, no longer than `width`."""
    share = None
    if progress.total:
        share = progress.finished / progress.total
    elif progress.remaining_s is not None and progress.elapsed_s + progress.remaining_s > 0:
        share = progress.elapsed_s / (progress.elapsed_s + progress.remaining_s)
    if progress.state == "warming-up" and progress.warmup_total:
        filled = round(_BAR * progress.warmup_done / progress.warmup_total)
        parts = [f"[{'#' * filled}{'.' * (_BAR - filled)}]"]
        parts.append(f"warming up {progress.warmup_done}/{progress.warmup_total}")
        if progress.remaining_s is not None:
            parts.append(f"{units.elapsed(progress.remaining_s)} left")
        return " ".join(parts)[:width]
    if progress.state in ("preparing", "warming-up"):
        return f"{progress.state.replace('-', ' ')} {progress.message}".strip()[:width]
    filled = round(_BAR * min(1.0, share or 0.0))
    parts = [f"[{'#' * filled}{'.' * (_BAR - filled)}]"]
    parts.append(f"{progress.finished}/{progress.total}" if progress.total else f"{progress.finished}")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    parts.append(units.rate(progress.output_tokens_per_s, "tok/s"))
    parts.append(f"TTFT {units.duration(progress.ttft.p50)}")
    parts.append(f"TPOT {units.duration(progress.tpot.p50)}")
    if progress.remaining_s is not None:
        parts.append(f"{units.elapsed(progress.remaining_s)} left")
    if progress.phase:
        parts.append(progress.phase)
    if progress.client_bound:
        parts.append("CLIENT-BOUND")
    return " ".join(parts)[:width]
