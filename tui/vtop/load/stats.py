"""Finished requests to numbers. Plain Python; percentiles as numpy's default (linear between order statistics)."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from vtop.load.progress import Percentiles

P95_NEEDS = 72
"""Below so many samples the upper end of a 95 % interval of the 95th percentile does not exist (binomial)."""
P99_NEEDS = 368
"""The same for the 99th percentile."""
FAILURE_LIMIT = 0.01
"""Above this share of failures a result is not comparable."""
STEADY_SHARE = 0.9
"""The steady window is the longest span with at least this share of the wanted concurrency."""


class RequestRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request of a test. Times are seconds; absolute ones on the machine's monotonic clock."""

    index: int
    place: int = 0
    """Of its prompt among those of the stage; the turns of a conversation have the same."""
    sent_s: float
    ended_s: float
    ok: bool = False
    failure: str = ""
    """Cause, such as `stream_cut`, `http_503`, `timeout`; `cancelled` is neither success nor failure."""
    detail: str = ""
    """The server's or the system's own words."""
    note: str = ""
    status: int | None = None
    retry_after: str | None = None
    """As the server sent it; not obeyed."""
    scheduled_s: float | None = None
    connect_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    first_answer_s: float | None = None
    ttft_s: float | None = None
    ttfo_s: float | None = None
    tpot_s: float | None = None
    tpot_by_choice_s: dict[int, float] | None = None
    e2e_s: float | None = None
    prompt_tokens: int | None = None
    wanted_prompt_tokens: int | None = None
    output_tokens: int | None = None
    """`usage.completion_tokens`; None where the server sent no usage."""
    cached_tokens: int | None = None
    chunks: int = 0
    """Events with generated tokens."""
    token_stamps: list[float] = []
    """Arrival of each such event."""
    token_counts: list[int] | None = None
    gaps_s: list[float] = []
    finish_reason: str | None = None
    text: str = ""


def percentile(ordered: Sequence[float], q: float) -> float | None:
    """The q-th percentile (0 to 100) of sorted values, linear between order statistics; None without values."""
    if not ordered:
        return None
    rank = (len(ordered) - 1) * q / 100.0
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """n, mean, extremes and percentiles of what is known."""
    return percentiles_of_sorted(sorted(value for value in values if value is not None))


def percentiles_of_sorted(ordered: Sequence[float]) -> Percentiles:
    """See `percentiles`."""
    if not ordered:
        return Percentiles(0)
    return Percentiles(
        n=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        minimum=ordered[0],
        maximum=ordered[-1],
    )


def standard_deviation(values: Sequence[float]) -> float:
    """Of the population, as `vllm bench serve` reports it."""
    if not values:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


class RunningPercentiles:
    """Percentiles of a growing list, without sorting it again."""

    def __init__(self) -> None:
        self._ordered: list[float] = []

    def add(self, value: float | None) -> None:
        """Takes a value in; None is not counted."""
        if value is not None:
            insort(self._ordered, value)

    def read(self) -> Percentiles:
        """The percentiles so far."""
        return percentiles_of_sorted(self._ordered)


def too_few(percentile_number: int, n: int) -> bool:
    """Whether a percentile of n samples should be drawn dimmed: its interval has no upper end."""
    return n < {95: P95_NEEDS, 99: P99_NEEDS}.get(percentile_number, 0)


def cause_groups(records: Iterable[RequestRecord]) -> list[tuple[str, int]]:
    """Failures by cause, most frequent first."""
    counts = Counter(record.failure for record in records if record.failure and record.failure != "cancelled")
    return counts.most_common()


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of time, seconds."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """End minus start."""
        return self.end_s - self.start_s


def concurrency_steps(spans: Iterable[tuple[float, float]]) -> list[tuple[float, int]]:
    """(time, requests in flight from then on) of spans, in order of time."""
    changes: dict[float, int] = {}
    for start, end in spans:
        changes[start] = changes.get(start, 0) + 1
        changes[end] = changes.get(end, 0) - 1
    level = 0
    steps: list[tuple[float, int]] = []
    for at in sorted(changes):
        level += changes[at]
        steps.append((at, level))
    return steps


def mean_concurrency(steps: Sequence[tuple[float, int]], window: Span) -> float | None:
    """Requests in flight, weighted by time, in a window."""
    if window.length_s <= 0:
        return None
    area = 0.0
    for i, (at, level) in enumerate(steps):
        until = steps[i + 1][0] if i + 1 < len(steps) else at
        area += level * max(0.0, min(until, window.end_s) - max(at, window.start_s))
    return area / window.length_s


def steady_window(steps: Sequence[tuple[float, int]], wanted: float, grace_s: float = 0.02) -> Span | None:
    """The longest span with at least 90 % of the wanted concurrency.

    Args:
        steps: from `concurrency_steps`.
        wanted: the concurrency that was asked for.
        grace_s: shorter drops, as when one request hands over to the next, do not end a span.
    """
    spans: list[Span] = []
    for i, (at, level) in enumerate(steps[:-1]):
        if level < STEADY_SHARE * wanted:
            continue
        until = steps[i + 1][0]
        if spans and at - spans[-1].end_s <= grace_s:
            spans[-1] = Span(spans[-1].start_s, until)
        else:
            spans.append(Span(at, until))
    return max(spans, key=lambda span: span.length_s, default=None)


def token_times(record: RequestRecord) -> Iterable[tuple[float, float]]:
    """(arrival, tokens) of each event; without a running usage the tokens are spread evenly over the events."""
    if record.token_counts is not None:
        return zip(record.token_stamps, record.token_counts, strict=True)
    if not record.token_stamps:
        return ()
    share = (record.output_tokens if record.output_tokens is not None else record.chunks) / len(record.token_stamps)
    return ((stamp, share) for stamp in record.token_stamps)


def tokens_within(records: Iterable[RequestRecord], window: Span) -> float:
    """Output tokens that arrived in a window."""
    return math.fsum(
        tokens for record in records for at, tokens in token_times(record) if window.start_s <= at <= window.end_s
    )


def tokens_by_second(records: Iterable[RequestRecord], origin_s: float) -> list[float]:
    """Output tokens of each whole second since the origin."""
    buckets: list[float] = []
    for record in records:
        for at, tokens in token_times(record):
            index = int(at - origin_s)
            if index >= 0:
                if index >= len(buckets):
                    buckets += [0.0] * (index + 1 - len(buckets))
                buckets[index] += tokens
    return buckets


def holds(record: RequestRecord, ttft_s: float | None, tpot_s: float | None, e2e_s: float | None) -> bool:
    """Whether a request was good: it succeeded and kept every limit (a single token has no TPOT to keep)."""
    if not record.ok:
        return False
    pairs = ((record.ttft_s, ttft_s), (record.tpot_s, tpot_s), (record.e2e_s, e2e_s))
    return all(limit is None or value is None or value <= limit for value, limit in pairs)
