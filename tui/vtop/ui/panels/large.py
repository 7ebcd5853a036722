"""The three numbers in large type, readable from the back of a room."""

from __future__ import annotations

from vtop import units
from vtop.telemetry.snapshot import ServerView
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line
from vtop.ui.panels.latency import CHARTS, ROLES, main_number, number_name, second_number

_SHAPES = {
    "0": ("███", "█ █", "█ █", "█ █", "███"), "1": (" █ ", "██ ", " █ ", " █ ", "███"),
    "2": ("███", "  █", "███", "█  ", "███"), "3": ("███", "  █", "███", "  █", "███"),
    "4": ("█ █", "█ █", "███", "  █", "  █"), "5": ("███", "█  ", "███", "  █", "███"),
    "6": ("███", "█  ", "███", "█ █", "███"), "7": ("███", "  █", " █ ", " █ ", " █ "),
    "8": ("███", "█ █", "███", "█ █", "███"), "9": ("███", "█ █", "███", "  █", "███"),
    ".": (" ", " ", " ", " ", "█"), ",": (" ", " ", " ", "█", "█"), "k": ("█ █", "█ █", "██ ", "█ █", "█ █"),
    units.DASH: ("   ", "   ", "███", "   ", "   "), "-": ("   ", "   ", "███", "   ", "   "),
}  # fmt: skip


def big(text: str, glyphs: Glyphs) -> list[str]:
    """Five rows of large digits."""
    fill = "#" if glyphs.ascii else "█"
    shapes = [_SHAPES[character] for character in text if character in _SHAPES]
    return [" ".join(shape[row] for shape in shapes).replace("█", fill) for row in range(5)]


def large_numbers(server: ServerView | None, width: int, glyphs: Glyphs) -> list[Line]:
    """TTFT, TPOT and output in three columns of five rows, each with its unit beside it."""
    column = width // 3
    rows = [Line() for _ in range(5)]
    for chart in range(3):
        number, role = main_number(server, chart)
        value, _, unit = number.partition(" ")
        digits = big(value, glyphs)
        beside = [number_name(server, chart) or CHARTS[chart], "", unit, "", second_number(server, chart)]
        room = column - len(digits[0]) - 3
        for index in range(5):
            cell = Line(" ").add(digits[index], ROLES[chart] if role != "dim" else "dim")
            text = beside[index]
            cell.add("  ").add(text if len(text) <= room else "", "title" if index == 0 else "dim")
            rows[index].join(cell.fit(column))
    return rows
