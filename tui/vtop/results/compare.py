"""Runs of several configurations -> the before/after table with intervals and verdicts.

The run is the unit. A configuration is compared with the first one by the runs of the same rounds, which had the same
prompts: paired differences of the logarithms of run-level values, with a 95 % t interval. The headline verdict is on
output tokens/s alone; TTFT and TPOT have their own, so that looking at three numbers makes no winner by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from vtop.load.progress import LoadResult
from vtop.results.comparability import Configuration, findings_alone, findings_between, prefix_hits, version_of
from vtop.results.comparison import CompareRow
from vtop.results.explanation import PREDICTION_WORDS, explain
from vtop.results.intervals import noise_of, paired_ratio, rounds_to_settle
from vtop.results.speculation import Guessing, guessing
from vtop.units import percent_of_100, significant

FASTER, SLOWER, FIRST_ROW = "faster", "slower", "first row"
IF_REAL_WORDS = "if the "
SMALLEST_DIFFERENCE = 0.01
"""Below it nothing is called faster or slower: simulated runs hardly vary, so any trifle would be outside of noise."""


class _Ratio(NamedTuple):
    ratio: float | None
    low: float | None
    high: float | None
    more: int | None = None
    """Rounds beyond those made that would show the difference seen, at the noise seen; None: none, or very many."""


_NO_RATIO = _Ratio(None, None, None)
Value = Callable[[LoadResult], float | None]


def compare_rows(configurations: Sequence[Configuration], drift: str = "") -> tuple[CompareRow, ...]:
    """One row a configuration, each against the first.

    Args:
        configurations: in the order of the table.
        drift: why the first configuration's own runs show that conditions changed; "" where they do not. It makes every
            row not comparable.
    """
    by_preset = {configuration.preset: configuration for configuration in configurations}
    rows = []
    for configuration in configurations:
        row = _row(configurations[0], configuration, drift)
        beside = by_preset.get(configuration.facts.compare_with or "")
        if beside is not None and beside is not configurations[0] and beside is not configuration:
            row = _held_beside(row, _row(beside, configuration, drift), beside.preset)
        rows.append(row)
    return tuple(rows)


def drift_between(runs: Sequence[LoadResult], check: LoadResult) -> str:
    """Whether the first configuration, run once more at the end, is outside of what its own runs allow.

    Args:
        runs: its runs at the beginning.
        check: its run at the end.

    Returns:
        The drift in words, or "".
    """
    values = [run.output_tokens_per_s for run in runs if run.complete and run.output_tokens_per_s]
    if not values or not check.complete or not check.output_tokens_per_s:
        return ""
    mean = _geometric_mean(values)
    if mean is None:
        return ""
    change = check.output_tokens_per_s / mean - 1
    spread = max(values) / min(values) - 1
    if abs(change) <= max(0.03, 2 * spread):
        return ""
    return f"conditions drifted: the first configuration gave {change * 100:+.1f} % when it was run again at the end"


def _row(base: Configuration, own: Configuration, drift: str) -> CompareRow:
    runs = list(own.counted.values())
    first = own is base
    alone = findings_alone(own)
    reasons, notes, ttft_reasons = list(alone.reasons), list(alone.notes), list(alone.ttft_reasons)
    output = ttft = tpot = _NO_RATIO
    if not first:
        between = findings_between(base, own)
        reasons += between.reasons
        notes += between.notes
        if base.failure or not base.counted:
            reasons.append("the first row has no runs")
        of_first = findings_alone(base)
        reasons += [f"first row: {reason}" for reason in of_first.reasons]
        ttft_reasons += [f"first row: {reason}" for reason in of_first.ttft_reasons]
        output = _ratio(base, own, lambda run: run.output_tokens_per_s)
        ttft = _ratio(base, own, lambda run: run.ttft.p50)
        tpot = _ratio(base, own, lambda run: run.tpot.p50)
    if drift and not first:
        reasons.append(drift)
    if own.failure:
        reasons.insert(0, own.failure)
    ttft_verdict = _verdict(ttft, reasons, first, higher_is_better=False)
    if ttft_reasons and ttft_verdict in (FASTER, SLOWER) and _holds_without_lag(base, own, ttft_verdict):
        notes.append(f"{ttft_reasons[0]}; TTFT is {ttft_verdict} even with that taken off")
    elif ttft_reasons and not first:
        ttft_verdict = _verdict(ttft, reasons + ttft_reasons, first, higher_is_better=False)
    elif ttft_reasons:
        notes.append(ttft_reasons[0])
    notes += [f"also: {reason}" for reason in reasons[1:]]
    guessed = _guessing(own, runs)
    row = CompareRow(
        preset=own.preset,
        runs=len(runs),
        output_tokens_per_s=_mean(runs, lambda run: run.output_tokens_per_s),
        ratio=1.0 if first and runs else output.ratio,
        ratio_low=output.low,
        ratio_high=output.high,
        ttft_p50_s=_mean(runs, lambda run: run.ttft.p50),
        ttft_p95_s=_mean(runs, lambda run: run.ttft.p95),
        tpot_p50_s=_mean(runs, lambda run: run.tpot.p50),
        tpot_p95_s=_mean(runs, lambda run: run.tpot.p95),
        e2e_mean_s=_mean(runs, lambda run: run.e2e.mean),
        e2e_p95_s=_mean(runs, lambda run: run.e2e.p95),
        bandwidth_percent=_one_source(runs),
        bandwidth_source=_source(runs),
        joules_per_token=_mean(runs, _joules_per_token),
        prefix_hit_rate=_plain_mean(runs, prefix_hits),
        acceptance=_plain_mean(
            runs, lambda run: _number(run.server.get("acceptance", run.server.get("acceptance_rate")))
        ),
        kv_capacity_tokens=own.facts.kv_capacity_tokens
        or _plain_mean(runs, lambda run: _number(run.server.get("kv_capacity_tokens"))),
        weights_bytes=own.facts.weights_bytes,
        failed=sum(run.failed for run in own.runs.values()),
        predicted_ratio=None if first else _predicted(base, own),
        guessed_share=guessed.guessed_share if guessed else None,
        tokens_per_step=guessed.tokens_per_step if guessed else None,
        verdict=_verdict(output, reasons, first, higher_is_better=True),
        ttft_verdict=ttft_verdict,
        tpot_verdict=_verdict(tpot, reasons, first, higher_is_better=False),
        ttft_ratio=ttft.ratio,
        ttft_ratio_low=ttft.low,
        ttft_ratio_high=ttft.high,
        tpot_ratio=tpot.ratio,
        tpot_ratio_low=tpot.low,
        tpot_ratio_high=tpot.high,
        version=version_of(own),
        gpus=max((len(run.fingerprint["gpu_uuid"]) for run in runs if run.fingerprint.get("gpu_uuid")), default=None),
    )
    if not first and runs and _by_the_clock(runs[0]):
        notes.append(
            "requests arrive by the clock, however fast the server is: output only shows whether it keeps up; what the "
            "configuration gives is in TTFT and TPOT"
        )
    worth_it = output.ratio is not None and abs(output.ratio - 1) >= SMALLEST_DIFFERENCE
    if row.verdict.startswith("no difference") and output.ratio and output.more and worth_it:
        notes.append(_if_real(output.ratio, output.more))
    notes += explain(row, own.facts, runs[0].request.workload if runs else "")
    return replace(row, notes=tuple(notes))


def _guessing(own: Configuration, runs: Sequence[LoadResult]) -> Guessing | None:
    """The mean over the runs."""
    if not own.facts.speculative:
        return None
    found = [one for run in runs if (one := guessing(run.server, own.facts.drafted_per_step)) is not None]
    if not found:
        return None
    shares, yields = [one.guessed_share for one in found], [one.tokens_per_step for one in found]
    return Guessing(math.fsum(shares) / len(found), math.fsum(yields) / len(found))


def _predicted(base: Configuration, own: Configuration) -> float | None:
    """Output against another configuration by bytes and FLOPs, given what caches and guesses the text allowed."""
    one, two = _at_the_floor(base), _at_the_floor(own)
    return two / one if one and two else None


def _by_the_clock(run: LoadResult) -> bool:
    """Whether a rate or a timed trace says when requests leave, and not the server by answering."""
    request = run.request
    trace = request.file is not None and request.concurrency is None and request.arrival != "burst"
    return request.rate is not None or trace


def _at_the_floor(own: Configuration) -> float | None:
    floor, runs = own.facts.floor, list(own.counted.values())
    if floor is None or not runs or _by_the_clock(runs[0]):
        return None
    hits = _plain_mean(runs, prefix_hits)
    if own.facts.prefix_caching and hits is None:
        return None
    gain = 1.0
    if own.facts.speculative:
        guessed = _guessing(own, runs)
        if guessed is None or own.facts.step_cost is None:
            return None
        gain = guessed.gain(own.facts.step_cost)
    return floor.tokens_per_s(hits or 0.0, gain)


def _held_beside(row: CompareRow, against: CompareRow, preset: str) -> CompareRow:
    """The row, with its comparison against the configuration of which it is a change."""
    said = tuple(
        f"against {preset}: {note}"
        for note in against.notes
        if note not in row.notes and note.startswith((PREDICTION_WORDS, IF_REAL_WORDS))
    )
    return replace(
        row,
        notes=(*row.notes, *said),
        beside=preset,
        beside_ratio=against.ratio,
        beside_low=against.ratio_low,
        beside_high=against.ratio_high,
        beside_verdict=against.verdict,
        beside_ttft_ratio=against.ttft_ratio,
        beside_ttft_verdict=against.ttft_verdict,
        beside_tpot_ratio=against.tpot_ratio,
        beside_tpot_verdict=against.tpot_verdict,
        beside_predicted_ratio=against.predicted_ratio,
    )


def _if_real(ratio: float, more: int) -> str:
    seen = percent_of_100(abs(ratio - 1) * 100)
    rounds = "1 more round" if more == 1 else f"{more} more rounds"
    return f"{IF_REAL_WORDS}{seen} {'more' if ratio > 1 else 'less'} that was seen is real, {rounds} would show it"


def _verdict(interval: _Ratio, reasons: Sequence[str], first: bool, *, higher_is_better: bool) -> str:
    """The closed set of verdicts."""
    if reasons:
        return f"not comparable: {reasons[0]}"
    if first:
        return FIRST_ROW
    if interval.ratio is None:
        return "not comparable: no value in the same round"
    if interval.low is None or interval.high is None:
        rounds = rounds_to_settle(interval.ratio)
        more = f"{rounds - 1} more" if rounds else "more than 20"
        return f"one run: no verdict ({more} would settle it)"
    if interval.low > 1 and interval.ratio >= 1 + SMALLEST_DIFFERENCE:
        return FASTER if higher_is_better else SLOWER
    if interval.high < 1 and interval.ratio <= 1 - SMALLEST_DIFFERENCE:
        return SLOWER if higher_is_better else FASTER
    return f"no difference seen (could be up to {_far_end(interval.low, interval.high)})"


def _far_end(low: float, high: float) -> str:
    """The larger of the differences that an interval allows; as a factor where percent would only confuse."""
    if max(high, 1 / low) > 4:
        return f"{significant(max(high, 1 / low))}x"
    return percent_of_100(max(1 - low, high - 1) * 100)


def _ratio(base: Configuration, own: Configuration, value: Value) -> _Ratio:
    rounds = [number for number in sorted(own.counted) if number in base.counted]
    pairs = [(value(base.counted[number]), value(own.counted[number])) for number in rounds]
    known = [(one, two) for one, two in pairs if one is not None and two is not None]
    interval = paired_ratio([one for one, _ in known], [two for _, two in known])
    if interval is None:
        return _NO_RATIO
    noise = noise_of(interval)
    needed = rounds_to_settle(interval.ratio, noise) if noise else None
    more = needed - interval.pairs if needed is not None and needed > interval.pairs else None
    return _Ratio(interval.ratio, interval.low, interval.high, more)


def _holds_without_lag(base: Configuration, own: Configuration, verdict: str) -> bool:
    """Whether the verdict on TTFT stays when either side alone is spared its client's loop lag (P99).

    A late client can only lengthen a TTFT, by up to its lag: where the verdict outlives both corrections, lateness is
    not what made it.
    """

    def spared(side: Configuration) -> Configuration:
        runs = {
            number: replace(run, ttft=replace(run.ttft, p50=max(run.ttft.p50 - (run.loop_lag_p99_s or 0.0), 1e-6)))
            for number, run in side.runs.items()
            if run.ttft.p50 is not None
        }
        return replace(side, runs=runs)

    both = ((spared(base), own), (base, spared(own)))
    return all(
        _verdict(_ratio(one, two, lambda run: run.ttft.p50), (), first=False, higher_is_better=False) == verdict
        for one, two in both
    )


def _geometric_mean(values: Sequence[float]) -> float | None:
    """The mean that agrees with ratios: its quotient is the mean ratio."""
    if not values or min(values) <= 0:
        return None
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _known(runs: Sequence[LoadResult], value: Value) -> list[float]:
    return [found for run in runs if (found := value(run)) is not None and math.isfinite(found)]


def _mean(runs: Sequence[LoadResult], value: Value) -> float | None:
    return _geometric_mean(_known(runs, value))


def _plain_mean(runs: Sequence[LoadResult], value: Value) -> float | None:
    values = _known(runs, value)
    return math.fsum(values) / len(values) if values else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _joules_per_token(run: LoadResult) -> float | None:
    return _number(run.gpu.get("joules_per_token"))


def _source(runs: Sequence[LoadResult]) -> str | None:
    sources = {str(run.gpu["bandwidth_source"]) for run in runs if run.gpu.get("bandwidth_source")}
    return sources.pop() if len(sources) == 1 else None


def _one_source(runs: Sequence[LoadResult]) -> float | None:
    """Bandwidth in percent of peak; nothing where it came from several sources."""
    return _plain_mean(runs, lambda run: _number(run.gpu.get("bandwidth_percent"))) if _source(runs) else None
