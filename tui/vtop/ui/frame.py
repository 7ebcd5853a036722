"""Frames around panels, with the numbers of the panel in the title."""

from __future__ import annotations

from collections.abc import Sequence

from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line, cut


def rule(width: int, title: Line, right: Line, glyphs: Glyphs, ends: str = "  ") -> Line:
    """A horizontal rule with a title at the left and more at the right; what does not fit is dropped whole."""
    inner = width - 2
    row = Line(ends[0] if ends.strip() else glyphs.horizontal, "frame")
    if title.spans and title.width + 4 <= inner:
        row.add(glyphs.horizontal + " ", "frame").join(title).add(" ", "frame")
    elif title.spans and inner > 8:
        row.add(glyphs.horizontal + " ", "frame").add(cut(title.text, inner - 4, glyphs.ellipsis), "title")
        row.add(" ", "frame")
    left = inner - (row.width - 1)
    if right.spans and right.width + 3 <= left:
        row.add(glyphs.horizontal * (left - right.width - 3), "frame")
        row.add(" ", "frame").join(right).add(" " + glyphs.horizontal, "frame")
    else:
        row.add(glyphs.horizontal * max(0, left), "frame")
    return row.add(ends[1] if ends.strip() else glyphs.horizontal, "frame")


def framed(
    lines: Sequence[Line],
    width: int,
    height: int,
    glyphs: Glyphs,
    title: Line | None = None,
    right: Line | None = None,
) -> list[Line]:
    """`lines` inside a frame of exactly `width` by `height`; rows that do not fit are left out at the end."""
    if width < 4 or height < 3:
        return [line.fit(width) for line in lines][:height]
    top = rule(width, title or Line(), right or Line(), glyphs, glyphs.corners[:2])
    rows = [top]
    for index in range(height - 2):
        inner = lines[index] if index < len(lines) else Line()
        body = inner.fit(width - 2)
        row = Line(glyphs.vertical, "frame").join(body).add(glyphs.vertical, "frame")
        row.cursor = inner.cursor
        rows.append(row)
    rows.append(Line(glyphs.corners[2] + glyphs.horizontal * (width - 2) + glyphs.corners[3], "frame"))
    return rows
