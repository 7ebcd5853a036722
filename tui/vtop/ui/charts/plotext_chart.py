"""The only module that calls plotext (5.x): traces in, rows of text with roles out.

plotext keeps one global figure, so calls are locked; a build is synchronous and takes some milliseconds. Only finite
numbers reach it: 5.x raises on an infinity, and later versions abort the process on a NaN.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from vtop.ui.charts.binning import Bin
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line

_LOCK = threading.Lock()
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_AXES = str.maketrans("┤┼├┬┴└┘┌┐│─", "+++++++++|-")


@dataclass(frozen=True, slots=True)
class Trace:
    """One quantity: runs of bins with gaps between them."""

    runs: tuple[tuple[Bin, ...], ...]
    role: str
    dots: bool = False
    """Points without lines between them."""
    level: bool = False
    """A horizontal line of dashes, told from a measured line by its shape."""


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """Everything that decides how a chart looks; equal specs give equal charts, so they are drawn once."""

    width: int
    height: int
    traces: tuple[Trace, ...]
    x_low: float
    x_high: float
    y_top: float
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    marks: tuple[float, ...] = ()
    """Moments of events, as vertical lines."""


def trace(runs: Sequence[Sequence[Bin]], role: str, *, dots: bool = False, level: bool = False) -> Trace:
    """A trace from lists."""
    return Trace(tuple(tuple(run) for run in runs), role, dots, level)


def level(value: float, low: float, high: float, role: str = "floor") -> Trace:
    """A horizontal line at `value`."""
    return Trace(((Bin(low, value, value), Bin(high, value, value)),), role, level=True)


def draw(spec: ChartSpec, glyphs: Glyphs) -> list[Line]:
    """The chart as `height` rows of `width` cells."""
    roles: dict[int, str] = {}
    with _LOCK:
        import plotext

        plotext.clear_figure()
        # Else it draws no more than the terminal that it finds; in a browser there is none, and 80 cells it is.
        plotext.limit_size(False, False)
        plotext.plotsize(spec.width, spec.height)
        plotext.canvas_color("default")
        plotext.axes_color("default")
        plotext.ticks_color("default")
        plotext.xaxes(True, False)
        plotext.yaxes(True, False)
        plotext.xlim(spec.x_low, spec.x_high)
        plotext.ylim(0, spec.y_top)
        plotext.xticks([x for x, _ in spec.x_ticks], [text for _, text in spec.x_ticks])
        plotext.yticks([y for y, _ in spec.y_ticks], [text for _, text in spec.y_ticks])
        # Colours are tags here: they come back as SGR codes and are turned into roles.
        for tag, item in enumerate(spec.traces, start=1):
            roles[tag] = item.role
            marker = _marker(item, glyphs)
            for run in item.runs:
                xs, ys = _points(run, spec)
                if not xs:
                    continue
                if item.dots:
                    plotext.scatter(xs, ys, marker=marker, color=tag)
                else:
                    plotext.plot(xs, ys, marker=marker, color=tag)
        event_tag = len(spec.traces) + 1
        roles[event_tag] = "event"
        for mark in spec.marks:
            if spec.x_low <= mark <= spec.x_high:
                plotext.vline(mark, color=event_tag)
        text: str = plotext.build()
    rows = [_line(row, roles, glyphs) for row in text.rstrip("\n").split("\n")]
    rows = [row.fit(spec.width) for row in rows[: spec.height]]
    return rows + [Line().fit(spec.width) for _ in range(spec.height - len(rows))]


def _marker(item: Trace, glyphs: Glyphs) -> str:
    if item.level:
        return "-" if glyphs.ascii else "╌"
    if item.dots:
        return "o" if glyphs.ascii else "braille"
    return "*" if glyphs.ascii else "braille"


def _points(run: Sequence[Bin], spec: ChartSpec) -> tuple[list[float], list[float]]:
    """Both ends of each bin, in the order that joins neighbours; values beyond an edge are drawn on it.

    plotext would draw a line far beyond the edges point by point, for minutes.
    """
    xs: list[float] = []
    ys: list[float] = []
    for item in run:
        if not spec.x_low <= item.x <= spec.x_high:
            continue
        ends = (
            (item.low, item.high)
            if not ys or abs(ys[-1] - item.low) <= abs(ys[-1] - item.high)
            else (
                item.high,
                item.low,
            )
        )
        for value in ends if item.low != item.high else ends[:1]:
            xs.append(item.x)
            ys.append(min(max(value, 0.0), spec.y_top))
    return xs, ys


def _line(row: str, roles: dict[int, str], glyphs: Glyphs) -> Line:
    line = Line()
    role = "frame"
    at = 0
    for match in _SGR.finditer(row):
        line.add(_axis_text(row[at : match.start()], role, glyphs), role)
        at = match.end()
        codes = match.group(1).split(";")
        role = roles.get(int(codes[2]), "frame") if codes[:2] == ["38", "5"] and len(codes) > 2 else "frame"
    return line.add(_axis_text(row[at:], role, glyphs), role)


def _axis_text(text: str, role: str, glyphs: Glyphs) -> str:
    return text.translate(_AXES) if glyphs.ascii else text
