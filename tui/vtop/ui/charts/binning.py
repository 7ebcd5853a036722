"""Points to bins, before anything is drawn: the cost of a chart follows its points, and a chart has few cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

NICE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Ends of a value axis, times a power of ten; few of them, so that the axis does not jump at each point."""


@dataclass(frozen=True, slots=True)
class Bin:
    """The values of one step on the time axis."""

    x: float
    low: float
    high: float


def nice_top(value: float) -> float:
    """The next round number at or above `value`; 1 where there is nothing to show."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in NICE:
        if value <= step * power * (1 + 1e-9):
            return step * power
    return 10.0 * power


def nice_step(span: float, parts: int) -> float:
    """The length of one tick, round in seconds or minutes."""
    wanted = span / max(1, parts)
    for step in (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600):
        if step >= wanted:
            return float(step)
    return 3600.0 * math.ceil(wanted / 3600)


def binned(
    times: Sequence[float], values: Sequence[float | None], start: float, end: float, bins: int
) -> list[list[Bin]]:
    """Runs of bins between `start` and `end`, broken at each gap.

    Bin edges lie on multiples of the bin's length, so that old bins keep their values while time goes on. A value that
    is None or not finite is a gap. A bin without any sample is bridged where its neighbours are less than four bins or
    2.5 usual sample distances apart, else it is a gap.
    """
    if bins <= 0 or end <= start or not times:
        return []
    width = (end - start) / bins
    runs: list[list[Bin]] = []
    current: list[Bin] = []
    last_time: float | None = None
    allowed = max(4 * width, 2.5 * _usual_step(times))
    index_now: int | None = None
    for at, value in zip(times, values, strict=False):
        if at < start - width or at > end:
            continue
        if value is None or not math.isfinite(value):
            if current:
                runs.append(current)
                current = []
            index_now = None
            last_time = at
            continue
        if current and last_time is not None and at - last_time > allowed:
            runs.append(current)
            current = []
            index_now = None
        index = math.floor(at / width)
        if current and index == index_now:
            before = current[-1]
            current[-1] = Bin(before.x, min(before.low, value), max(before.high, value))
        else:
            current.append(Bin((index + 0.5) * width, value, value))
            index_now = index
        last_time = at
    if current:
        runs.append(current)
    return runs


def _usual_step(times: Sequence[float]) -> float:
    if len(times) < 2:
        return 0.0
    steps = sorted(later - earlier for earlier, later in pairwise(times))
    return steps[len(steps) // 2]
