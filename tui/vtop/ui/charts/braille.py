"""Filled histories in braille, for what is always on: a twentieth of the cost of a chart with axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vtop.ui.charts.bars import history_row
from vtop.ui.glyphs import Glyphs

_LEFT = (0x00, 0x40, 0x44, 0x46, 0x47)
_RIGHT = (0x00, 0x80, 0xA0, 0xB0, 0xB8)
"""Dots of the left and right half of a cell filled from the bottom, by count."""


def area(values: Sequence[float | None], width: int, height: int, top: float, glyphs: Glyphs) -> list[str]:
    """`height` rows of `width` cells, two values a cell, filled from the bottom.

    Args:
        values: oldest first; the last ones are shown. None is a gap; a known value, zero too, has at least one dot.
        width: cells.
        height: rows.
        top: the value at the top edge.
        glyphs: the ASCII set gives one row of heights at the bottom.
    """
    if glyphs.ascii:
        rows = [" " * width] * (height - 1)
        rows.append(history_row(values[-width:], width, top, glyphs))
        return rows
    known = list(values)[-2 * width :]
    shown: list[float | None] = [*[None] * (2 * width - len(known)), *known]
    dots = height * 4
    heights = [
        0
        if value is None or not math.isfinite(value)
        else max(1, min(dots, round(value / top * dots) if top > 0 else 1))
        for value in shown
    ]
    rows = []
    for row in range(height):
        base = (height - 1 - row) * 4
        cells = []
        for column in range(width):
            left = max(0, min(4, heights[2 * column] - base))
            right = max(0, min(4, heights[2 * column + 1] - base))
            code = _LEFT[left] | _RIGHT[right]
            cells.append(chr(0x2800 + code) if code else " ")
        rows.append("".join(cells))
    return rows


def resample(
    times: Sequence[float], values: Sequence[float | None], start: float, end: float, count: int
) -> list[float | None]:
    """The highest value in each of `count` equal steps from `start` to `end`; None where nothing was measured."""
    step = (end - start) / count
    slots: list[float | None] = [None] * count
    previous = -1
    for at, value in zip(times, values, strict=False):
        slot = math.floor((at - start) / step)
        if not 0 <= slot < count:
            continue
        if value is None or not math.isfinite(value):
            previous = -1
            continue
        kept = slots[slot]
        slots[slot] = value if kept is None else max(kept, value)
        if 0 <= previous < slot - 1 and slot - previous <= max(4, 3 / step):
            for missing in range(previous + 1, slot):
                slots[missing] = value
        previous = slot
    return slots
