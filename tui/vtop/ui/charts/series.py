"""From recorded series to a chart: limits, ticks in seconds ago, floors and marks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from vtop.ui.charts.binning import Bin, binned, nice_step, nice_top
from vtop.ui.charts.plotext_chart import ChartSpec, Trace, draw, level, trace
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line

Series = tuple[Sequence[float], Sequence[float | None]]
"""Times (monotonic seconds) and values; None is a gap."""


class Chart:
    """One chart that remembers what it drew: the same data at the same size is not drawn twice."""

    def __init__(self) -> None:
        self._spec: ChartSpec | None = None
        self._ascii: bool | None = None
        self._rows: list[Line] = []
        self.builds = 0
        """How often plotext really ran."""

    def render(self, spec: ChartSpec, glyphs: Glyphs) -> list[Line]:
        """The rows of the chart."""
        if spec != self._spec or glyphs.ascii != self._ascii:
            self._rows = draw(spec, glyphs)
            self._spec = spec
            self._ascii = glyphs.ascii
            self.builds += 1
        return self._rows


def has_room(width: int, height: int) -> bool:
    """Whether a chart with its axes can be drawn in so many cells and rows."""
    return width >= 16 and height >= 4


def history_spec(
    series: Sequence[tuple[Series, str]],
    *,
    now: float,
    span_s: float,
    width: int,
    height: int,
    unit: Callable[[float], str],
    floor: float | None = None,
    marks: Sequence[float] = (),
    least_top: float = 0.0,
) -> ChartSpec | None:
    """A chart of the last `span_s` seconds, or None where there is nothing to draw or no room.

    Args:
        series: each with its role; the first one is drawn last, on top.
        now: the right edge.
        span_s: seconds from the left edge to the right one.
        width: cells.
        height: rows.
        unit: writes a value for the axis.
        floor: a physical floor, drawn as a dashed line.
        marks: moments of events.
        least_top: the value axis reaches at least this far.
    """
    if not has_room(width, height):
        return None
    bins = 2 * max(8, width - 8)
    step = span_s / bins
    # The right edge moves in steps of one bin, so that within a step nothing changes.
    edge = math.ceil(now / step) * step
    start = edge - span_s
    runs = [binned(times, values, start, edge, bins) for (times, values), _ in series]
    highest = max((item.high for each in runs for run in each for item in run), default=None)
    if highest is None:
        return None
    top = nice_top(max(highest * 1.02, (floor or 0.0) * 1.1, least_top))
    traces: list[Trace] = []
    if floor is not None and math.isfinite(floor):
        traces.append(level(floor, start, edge))
    for each, (_, role) in reversed(list(zip(runs, series, strict=True))):
        traces.append(trace(each, role))
    origin = edge
    return ChartSpec(
        width=width,
        height=height,
        traces=tuple(_moved(item, origin) for item in traces),
        x_low=-span_s,
        x_high=0.0,
        y_top=top,
        x_ticks=ago_ticks(span_s, width),
        y_ticks=value_ticks(top, height, unit),
        marks=tuple(round(at - origin, 3) for at in marks if start <= at <= edge),
    )


def _moved(item: Trace, origin: float) -> Trace:
    return Trace(
        tuple(tuple(Bin(round(b.x - origin, 4), b.low, b.high) for b in run) for run in item.runs),
        item.role,
        item.dots,
        item.level,
    )


def ago_ticks(span_s: float, width: int) -> tuple[tuple[float, str], ...]:
    """Ticks of a time axis that ends now: `-120 s ... now`."""
    step = nice_step(span_s, max(1, width // 14))
    ticks = []
    at = 0.0
    while at <= span_s + 1e-6:
        ticks.append((-at, "now" if at == 0 else f"-{at:.0f} s"))
        at += step
    return tuple(reversed(ticks))


def elapsed_ticks(span_s: float, width: int) -> tuple[tuple[float, str], ...]:
    """Ticks of a time axis that starts at 0: `0 s ... 30 s`."""
    step = nice_step(span_s, max(1, width // 12))
    count = int(span_s / step + 1e-6)
    return tuple((step * index, f"{step * index:.0f} s") for index in range(count + 1))


def value_ticks(top: float, height: int, unit: Callable[[float], str]) -> tuple[tuple[float, str], ...]:
    """Ticks of the value axis: the ends, and the middle where there is room."""
    if height < 7:
        return ((0.0, unit(0.0)), (top, unit(top)))
    return ((0.0, unit(0.0)), (top / 2, unit(top / 2)), (top, unit(top)))
