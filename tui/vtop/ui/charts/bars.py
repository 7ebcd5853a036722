"""Bars and one-row histories made of block characters, or of ASCII."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line


def bar(share: float | None, width: int, glyphs: Glyphs, role: str = "bar") -> Line:
    """A bar of `width` cells with its two ends; unknown is drawn as an empty bar of dashes, not as zero."""
    inner = max(1, width - 2)
    line = Line(glyphs.bar_left, "track")
    if share is None or not math.isfinite(share):
        return line.add("·" * inner, "track").add(glyphs.bar_right, "track")
    steps = len(glyphs.eighths) - 1
    filled = round(min(1.0, max(0.0, share)) * inner * steps)
    if filled == 0 and share > 0:
        filled = 1
    full, part = divmod(filled, steps)
    line.add(glyphs.eighths[-1] * full, role)
    if part:
        line.add(glyphs.eighths[part], role)
    return line.add(glyphs.track * (inner - full - (1 if part else 0)), "track").add(glyphs.bar_right, "track")


def history_row(values: Sequence[float | None], width: int, top: float, glyphs: Glyphs) -> str:
    """The last values as heights of one cell each; a gap is a blank, a true zero is the lowest mark."""
    steps = glyphs.blocks
    shown = list(values)[-width:]
    cells = [
        " "
        if value is None or not math.isfinite(value)
        else steps[max(1, min(len(steps) - 1, math.ceil(value / top * (len(steps) - 1))))]
        for value in shown
    ]
    return "".join(cells).rjust(width)


def positions(shares: Sequence[float], glyphs: Glyphs) -> str:
    """Acceptance by position, one cell a position, from left (first guessed token) to right."""
    steps = glyphs.blocks
    return "".join(
        steps[max(1, min(len(steps) - 1, math.ceil(share * (len(steps) - 1))))] if share > 0 else steps[1]
        for share in shares
    )
