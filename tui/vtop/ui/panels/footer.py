"""The last row: what can be done now, each with its key; clicks on it work too."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len

from vtop.ui.actions import ACTIONS, Situation, can_act, key_shown, label_of
from vtop.ui.ink import Line, spread


def footer(now: Situation, keymap: Mapping[str, str], width: int) -> tuple[Line, list[tuple[int, int, str]]]:
    """The row, and the cells (from, to, action id) that react to a click."""
    shown = [
        (key, action)
        for action in ACTIONS
        if action.footer
        and (not action.screens or now.screen in action.screens)
        and can_act(action, now)
        and (key := key_shown(action, now, keymap))
    ]
    right = Line("^p", "key").add(" palette ", "dim") if width >= 100 else Line("^p " if width >= 60 else "", "key")
    room = width - right.width - 1

    def size() -> int:
        return 1 + sum(cell_len(key) + 1 + cell_len(label_of(action, now)) + 2 for key, action in shown) - 2

    while shown and size() > room:
        shown.remove(max(shown, key=lambda pair: pair[1].footer))
    row = Line(" ")
    places: list[tuple[int, int, str]] = []
    for key, action in shown:
        start = row.width
        row.add(key, "key").add(" " + label_of(action, now))
        places.append((start, row.width, action.id))
        row.add("  ")
    line = spread(row, right, width)
    if right.width:
        places.append((width - right.width, width, "palette"))
    return line, places
