"""The finished steps of a ladder (throughput against TPOT) or of a search (the rate as it closes in)."""

from __future__ import annotations

from collections.abc import Sequence

from vtop import units
from vtop.load.progress import LoadProgress, LoadStep
from vtop.ui.charts.binning import Bin, nice_top
from vtop.ui.charts.plotext_chart import ChartSpec, level, trace
from vtop.ui.charts.series import value_ticks
from vtop.ui.ink import Line

AXIS_CELLS = 7


def steps_title(progress: LoadProgress) -> Line:
    """What the chart beside it shows; of a search, between which rates the answer lies."""
    if not progress.request.search:
        return Line("tok/s", "output").add(" over ", "dim").add("TPOT", "tpot").add(", step by step", "dim")
    held = max((step.rate for step in progress.steps if step.holds and step.rate), default=None)
    broke = min((step.rate for step in progress.steps if step.holds is False and step.rate), default=None)
    if held is None:
        return Line("below ", "dim").add(units.rate(broke, "req/s"), "warn")
    if broke is None or broke <= held:
        return Line("above ", "dim").add(units.rate(held, "req/s"), "good")
    return Line(units.significant(held), "good").add(" to ", "dim").add(units.rate(broke, "req/s"), "warn")


def step_lines(steps: Sequence[LoadStep], height: int) -> list[Line]:
    """The last steps, one a row: load, throughput, TPOT, and whether it kept the limits."""
    return [_step(step) for step in steps[max(0, len(steps) - height) :]] if height > 0 else []


def _step(step: LoadStep) -> Line:
    name = f"{step.concurrency:,}" if step.rate is None else f"{units.significant(step.rate)}/s"
    line = Line(f"{name:>7}", "strong")
    line.add(f" {units.significant(step.output_tokens_per_s):>6}", "output").add(" tok/s", "dim")
    line.add(f" {units.duration(step.tpot_p50_s):>8}", "tpot")
    if step.holds is not None:
        line.add(" ok" if step.holds else " no", "good" if step.holds else "bad")
    return line


def steps_spec(progress: LoadProgress, width: int, height: int) -> ChartSpec | None:
    """The chart of the steps, or None where there is nothing to draw or no room."""
    if width < 16 or height < 4 or not progress.steps:
        return None
    return _search_spec(progress, width, height) if progress.request.search else _ladder_spec(progress, width, height)


def _ladder_spec(progress: LoadProgress, width: int, height: int) -> ChartSpec | None:
    points = [
        Bin(step.tpot_p50_s * 1000, step.output_tokens_per_s, step.output_tokens_per_s)
        for step in progress.steps
        if step.tpot_p50_s is not None and step.output_tokens_per_s is not None
    ]
    if not points:
        return None
    right = nice_top(1.05 * max(point.x for point in points))
    top = nice_top(1.05 * max(point.high for point in points))
    ticks = tuple((share * right, f"{units.significant(share * right)} ms") for share in (0.0, 0.5, 1.0))
    traces = [trace([points], "output")]
    return ChartSpec(width, height, tuple(traces), 0.0, right, top, ticks, value_ticks(top, height, _plain))


def _search_spec(progress: LoadProgress, width: int, height: int) -> ChartSpec:
    numbered = [(number, step) for number, step in enumerate(progress.steps, 1) if step.rate is not None]
    most = max(8, len(progress.steps))
    top = nice_top(1.05 * max((step.rate or 0.0 for _, step in numbered), default=1.0))

    def runs(holds: bool) -> list[list[Bin]]:
        return [[Bin(n, step.rate or 0.0, step.rate or 0.0)] for n, step in numbered if bool(step.holds) is holds]

    traces = [trace(runs(True), "good", dots=True), trace(runs(False), "bad", dots=True)]
    held = max((step.rate for _, step in numbered if step.holds and step.rate), default=None)
    if held is not None:
        traces.insert(0, level(held, 0.0, most + 1.0, "dim"))
    ticks = tuple((float(number), f"run {number}") for number in (1, most // 2, most))
    return ChartSpec(
        width,
        height,
        tuple(item for item in traces if item.runs),
        0.0,
        most + 1.0,
        top,
        ticks,
        value_ticks(top, height, _plain),
    )


def _plain(value: float) -> str:
    return units.significant(value, 3).rjust(AXIS_CELLS)
