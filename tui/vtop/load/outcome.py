"""Records of one stage to a `LoadResult` and to a step of a ladder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vtop import units
from vtop.load import stats
from vtop.load.floor import ClientFloor
from vtop.load.progress import LoadRequest, LoadResult, LoadStep
from vtop.load.search import ACHIEVED_SHARE
from vtop.load.stats import RequestRecord, Span
from vtop.load.workload import Shape

LAG_SHARE = 0.05
"""A loop lag above this share of the median TTFT bends the result."""
LAG_FLOOR_S = 0.005
CAPACITY_SHARE = 0.8
"""Above this share of what the client was measured to read, it may be the limit."""
WARM_CACHE_SHARE = 0.01
SEVERAL_TOKENS = 1.05
LENGTH_TOLERANCE = 0.05


@dataclass(slots=True)
class Measured:
    """All that the worker knows when a stage has ended."""

    records: Sequence[RequestRecord]
    warmup_records: Sequence[RequestRecord]
    started_s: float
    shape: Shape
    complete: bool
    floor: ClientFloor | None = None
    loop_lag_p99_s: float | None = None
    realtime: bool = False
    """The client was scheduled before other processes."""
    processes: int = 1
    reconnects: int = 0
    notes: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def duration_s(measured: Measured) -> float:
    """First counted request to the end of the last answer that was not cut by us."""
    ends = [record.ended_s for record in measured.records if record.failure != "cancelled"]
    return max(0.0, max(ends) - measured.started_s) if ends else 0.0


def is_client_bound(
    ttft_p50_s: float | None,
    lag_p99_s: float | None,
    tokens_per_s: float | None,
    floor: ClientFloor | None,
    processes: int = 1,
) -> bool:
    """Whether the client itself may have shaped the numbers."""
    if lag_p99_s is not None and ttft_p50_s is not None and lag_p99_s > max(LAG_FLOOR_S, LAG_SHARE * ttft_p50_s):
        return True
    return (
        floor is not None
        and tokens_per_s is not None
        and tokens_per_s > CAPACITY_SHARE * floor.capacity_tokens_per_s * processes
    )


def step_of(measured: Measured, request: LoadRequest) -> LoadStep:
    """One row of a ladder or search."""
    counted = [record for record in measured.records if record.failure != "cancelled"]
    good = [record for record in counted if record.ok]
    took = duration_s(measured)
    ttft = stats.percentiles(record.ttft_s for record in good)
    tpot = stats.percentiles(record.tpot_s for record in good)
    tokens = sum(_tokens(record) for record in good)
    why = broken_limit(request, ttft.p95, tpot.p95, stats.percentiles(record.e2e_s for record in good).p95)
    failed = len(counted) - len(good)
    if not why and counted and failed > stats.FAILURE_LIMIT * len(counted):
        why = f"{failed} of {len(counted)} requests failed"
    rate = measured.shape.rate
    why = why or sent_too_slowly(rate, counted)
    limits = any(limit is not None for limit in (request.slo_ttft_s, request.slo_tpot_s, request.slo_e2e_s))
    return LoadStep(
        concurrency=measured.shape.concurrency,
        rate=rate,
        requests=len(counted),
        failed=failed,
        output_tokens_per_s=tokens / took if took > 0 else None,
        requests_per_s=len(good) / took if took > 0 else None,
        ttft_p50_s=ttft.p50,
        ttft_p95_s=ttft.p95,
        tpot_p50_s=tpot.p50,
        tpot_p95_s=tpot.p95,
        holds=(not why and bool(good)) if limits else None,
        why=why,
    )


def broken_limit(request: LoadRequest, ttft_s: float | None, tpot_s: float | None, e2e_s: float | None) -> str:
    """Which SLO a 95th percentile breaks, in words; "" when all hold."""
    for name, value, limit in (
        ("TTFT", ttft_s, request.slo_ttft_s),
        ("TPOT", tpot_s, request.slo_tpot_s),
        ("latency", e2e_s, request.slo_e2e_s),
    ):
        if limit is not None and value is not None and value > limit:
            return f"{name} P95 {value * 1000:.4g} ms is above {limit * 1000:.4g} ms"
    return ""


def send_rate(records: Sequence[RequestRecord]) -> float | None:
    """Requests sent a second, from the first to the last send."""
    return _rate_of([record.sent_s for record in records])


def _rate_of(times_s: Sequence[float]) -> float | None:
    """Events a second from the first to the last."""
    if len(times_s) < 2 or max(times_s) <= min(times_s):
        return None
    return (len(times_s) - 1) / (max(times_s) - min(times_s))


def sent_too_slowly(asked: float | None, records: Sequence[RequestRecord]) -> str:
    """That requests left more slowly than they should have, in words; "" when they did not.

    What should have left is the schedule's own rate: under a ramp it is below the one that was asked for.
    """
    achieved = send_rate(records)
    if asked is None or achieved is None:
        return ""
    planned = _rate_of([record.scheduled_s for record in records if record.scheduled_s is not None])
    wanted = asked if planned is None else min(asked, planned)
    if achieved >= ACHIEVED_SHARE * wanted:
        return ""
    return f"only {units.significant(achieved)} of {units.significant(wanted)} requests/s could be sent"


def _tokens(record: RequestRecord) -> int:
    return record.output_tokens if record.output_tokens is not None else record.chunks


def result_of(
    measured: Measured,
    request: LoadRequest,
    *,
    run_id: str,
    directory: str,
    at_wall_s: float,
    repeat_command: str,
    server: Mapping[str, Any],
    gpu: Mapping[str, Any],
    fingerprint: Mapping[str, Any],
) -> LoadResult:
    """Everything that a finished (or cut) test says about itself."""
    shape = measured.shape
    records = [record for record in measured.records if record.failure != "cancelled"]
    good = [record for record in records if record.ok]
    took = duration_s(measured)
    ttft = stats.percentiles(record.ttft_s for record in good)
    tpot = stats.percentiles(record.tpot_s for record in good)
    e2e = stats.percentiles(record.e2e_s for record in good)
    tokens = sum(_tokens(record) for record in good)
    rate = tokens / took if took > 0 and good else None
    steps = stats.concurrency_steps(
        (record.sent_s, record.ended_s) for record in (*measured.records, *measured.warmup_records)
    )
    window = Span(measured.started_s, measured.started_s + took)
    steady = None if shape.open_loop else stats.steady_window(steps, shape.concurrency or 1)
    if steady is not None:
        steady = Span(max(steady.start_s, window.start_s), min(steady.end_s, window.end_s))
    steady_rate = stats.tokens_within(good, steady) / steady.length_s if steady and steady.length_s > 0.5 else None
    seconds = stats.tokens_by_second(good, measured.started_s)
    whole = seconds[:-1] if len(seconds) > 1 else []
    chunks = sum(record.chunks for record in good)
    limits = (request.slo_ttft_s, request.slo_tpot_s, request.slo_e2e_s)
    kept = sum(stats.holds(record, *limits) for record in good)
    scheduled = [record for record in good if record.scheduled_s is not None]
    failed = len(records) - len(good)
    because = _not_comparable(records, failed, measured.complete)
    # A client that is very late makes the TTFT that it sees so long that its lag looks small beside it.
    shortest = min((value for value in (ttft.p50, server.get("ttft_mean_s")) if value is not None), default=None)
    bound = is_client_bound(shortest, measured.loop_lag_p99_s, rate, measured.floor, measured.processes)
    result = LoadResult(
        run_id=run_id,
        directory=directory,
        request=request,
        complete=measured.complete,
        requests=len(records),
        completed=len(good),
        failed=failed,
        cancelled=len(measured.records) - len(records),
        duration_s=took,
        output_tokens=tokens,
        prompt_tokens=sum(record.prompt_tokens or 0 for record in good),
        output_tokens_per_s=rate,
        steady_tokens_per_s=steady_rate,
        steady_from_s=steady.start_s - measured.started_s if steady else None,
        steady_to_s=steady.end_s - measured.started_s if steady else None,
        requests_per_s=len(good) / took if took > 0 and good else None,
        ttft=ttft,
        tpot=tpot,
        itl=stats.percentiles(gap for record in good for gap in record.gaps_s),
        e2e=e2e,
        ttfo=stats.percentiles(record.ttfo_s for record in good),
        e2e_from_schedule=stats.percentiles(
            record.last_token_s - record.scheduled_s
            for record in scheduled
            if record.last_token_s is not None and record.scheduled_s is not None
        ),
        wait_before_send=stats.percentiles(
            record.sent_s - record.scheduled_s for record in records if record.scheduled_s is not None
        ),
        asked_rate=shape.rate,
        achieved_rate=send_rate(records) if shape.open_loop else None,
        goodput_per_s=kept / took if took > 0 and any(limit is not None for limit in limits) else None,
        failures=tuple(stats.cause_groups(records)),
        comparable=not because,
        not_comparable_because=because,
        simulated=request.simulated,
        server=server,
        gpu=gpu,
        fingerprint=fingerprint,
        repeat_command=repeat_command,
        at_wall_s=at_wall_s,
        seed=shape.seed,
        concurrency_mean=stats.mean_concurrency(steps, window),
        peak_tokens_per_s=max(whole, default=None),
        tokens_per_chunk=tokens / chunks if chunks else None,
        client_overhead_s=None if measured.floor is None else measured.floor.added_ttft_s,
        client_capacity_tokens_per_s=None
        if measured.floor is None
        else measured.floor.capacity_tokens_per_s * measured.processes,
        loop_lag_p99_s=measured.loop_lag_p99_s,
        client_scheduling="real-time" if measured.realtime else "normal",
        client_bound=bound,
    )
    return _with_warnings(result, measured, records, good)


def _not_comparable(records: Sequence[RequestRecord], failed: int, complete: bool) -> str:
    if not records:
        return "no request was answered"
    if failed > stats.FAILURE_LIMIT * len(records):
        return f"{failed} of {len(records)} requests failed ({failed / len(records):.0%})"
    if not complete:
        return "the test was cut before its end"
    return ""


def _with_warnings(
    result: LoadResult, measured: Measured, records: Sequence[RequestRecord], good: Sequence[RequestRecord]
) -> LoadResult:
    return replace(result, warnings=tuple(_warnings(result, measured, records, good)))


def _warnings(
    result: LoadResult, measured: Measured, records: Sequence[RequestRecord], good: Sequence[RequestRecord]
) -> list[str]:
    shape = measured.shape
    words: list[str] = list(measured.notes)
    for cause, count in result.failures:
        example = next((r for r in records if r.failure == cause and r.detail), None)
        later = next((r.retry_after for r in records if r.failure == cause and r.retry_after), None)
        text = f"{count} failed: {cause}" + (f": {example.detail}" if example else "")
        words.append(text + (f" (Retry-After: {later}; not retried)" if later else ""))
    if result.client_bound:
        lag = "–" if result.loop_lag_p99_s is None else f"{result.loop_lag_p99_s * 1000:.0f} ms"
        words.append(
            f"CLIENT-BOUND: this client's loop lag P99 is {lag}; the server's own TTFT may be better. "
            + (
                "Use more --processes, or a quieter machine."
                if measured.realtime
                else "Use more --processes, a quieter machine, or let the client run first (as root, or `ulimit -r 1`)."
            )
        )
    words += _server_warnings(result, shape)
    if measured.warmup_records and not any(record.ok for record in measured.warmup_records):
        words.append("no warm-up request succeeded, so the first counted ones met a cold server")
    if not measured.warmup_records and good:
        first = min(good, key=lambda record: record.sent_s)
        rest = stats.percentiles(record.ttft_s for record in good if record is not first)
        if result.ttft.p99 is not None and rest.p99 is not None and first.ttft_s is not None:
            words.append(
                f"no warm-up: the first request took {first.ttft_s * 1000:.4g} ms to its first token; TTFT P99 "
                f"{result.ttft.p99 * 1000:.4g} ms with it, {rest.p99 * 1000:.4g} ms without it"
            )
    if result.tokens_per_chunk is not None and result.tokens_per_chunk > SEVERAL_TOKENS:
        words.append(
            f"{result.tokens_per_chunk:.2f} tokens per chunk (speculative decoding or stream interval): "
            "read TPOT, not the gaps"
        )
    estimated = sum(record.output_tokens is None for record in good)
    if estimated:
        words.append(
            f"{estimated} answers came without usage: their tokens are counted as chunks (~), their TPOT is unknown"
        )
    noted = [record for record in good if record.note]
    for note in sorted({record.note for record in noted}):
        words.append(f"{sum(record.note == note for record in noted)} answers: {note}")
    words += _length_warnings(shape, good)
    if slow := sent_too_slowly(result.asked_rate, records):
        words.append(slow)
    if result.e2e.n < stats.P95_NEEDS and good:
        words.append(f"{result.e2e.n} requests are too few for a P95 (72 are needed) and for a P99 (368)")
    if shape.workload == "demo" and shape.requests and shape.concurrency:
        waves = math.ceil(shape.requests / shape.concurrency)
        words.append(f"{waves} waves of {shape.concurrency}: a demo; for comparing use the workload chat")
    if result.cancelled:
        words.append(f"{result.cancelled} requests were cut and are counted nowhere")
    if measured.reconnects:
        words.append(
            f"the server had closed {measured.reconnects} kept connections; their requests went out again on fresh ones"
        )
    return words


def server_window_fits(result: LoadResult) -> bool:
    """Whether the server's numbers are of this test alone: a test of a second lies between readings a second apart."""
    window_s = result.server.get("window_s")
    return not isinstance(window_s, int | float) or window_s <= max(result.duration_s * 1.25, result.duration_s + 0.1)


def _server_warnings(result: LoadResult, shape: Shape) -> list[str]:
    """What the server's own numbers over the same window say against the client's."""
    words: list[str] = []
    mean = result.server.get("ttft_mean_s")
    if (
        isinstance(mean, int | float)
        and result.ttft.mean is not None
        and server_window_fits(result)
        and result.ttft.mean - mean > max(0.05, 0.25 * mean)
    ):
        words.append(
            f"the client's mean TTFT is {result.ttft.mean:.4g} s, the server's own {mean:.4g} s: "
            "the load generator or a proxy is the bottleneck, this is not the server's TTFT"
        )
    running = result.server.get("running_max")
    if (
        isinstance(running, int | float)
        and shape.concurrency
        and not shape.open_loop
        and running < 0.9 * shape.concurrency
    ):
        words.append(f"the server never ran more than {running:g} of {shape.concurrency} requests at once")
    hits = result.server.get("prefix_hit_rate")
    if isinstance(hits, int | float) and hits > WARM_CACHE_SHARE and shape.workload != "prefix" and not shape.file:
        words.append(
            f"warm prefix cache: {hits:.1%} of this run's prompt tokens came from it. "
            "Take a fresh seed, reset the cache or restart before comparing"
        )
    return words


def _length_warnings(shape: Shape, good: Sequence[RequestRecord]) -> list[str]:
    words: list[str] = []
    if shape.ignore_eos:
        short = sum(r.output_tokens is not None and r.output_tokens != shape.max_tokens * shape.choices for r in good)
        if short and not shape.file:
            words.append(f"{short} answers are not {shape.max_tokens} tokens long although ignore_eos was asked for")
    wrong = [
        r for r in good if r.wanted_prompt_tokens and r.prompt_tokens and r.prompt_tokens != r.wanted_prompt_tokens
    ]
    if wrong:
        words.append(
            f"{len(wrong)} prompts are not as long as they were made ({wrong[0].prompt_tokens} tokens, "
            f"not {wrong[0].wanted_prompt_tokens})"
        )
    return words
