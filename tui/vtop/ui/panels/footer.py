"""The last row: what can be done now, each with its key; clicks on it work too."""

from __future__ import annotations

from collections.abc import Mapping

from vtop.ui.actions import ACTIONS, Situation, can_act, keys_of, label_of
from vtop.ui.ink import Line, spread


def footer(now: Situation, keymap: Mapping[str, str], width: int) -> tuple[Line, list[tuple[int, int, str]]]:
    """The row, and the cells (from, to, action id) that react to a click."""
    shown = [
        action
        for action in ACTIONS
        if action.footer and (not action.screens or now.screen in action.screens) and can_act(action, now)
    ]
    right = Line("^p", "key").add(" palette ", "dim") if width >= 100 else Line("^p ", "key")
    room = width - right.width - 2

    def size() -> int:
        return 1 + sum(len(keys_of(a, keymap)[0]) + 1 + len(label_of(a, now)) + 2 for a in shown if keys_of(a, keymap))

    while shown and size() > room:
        shown.remove(max(shown, key=lambda action: action.footer))
    row = Line(" ")
    places: list[tuple[int, int, str]] = []
    for action in shown:
        names = keys_of(action, keymap)
        if not names:
            continue
        start = row.width
        row.add(names[0], "key").add(" " + label_of(action, now))
        places.append((start, row.width, action.id))
        row.add("  ")
    line = spread(row, right, width)
    places.append((width - right.width, width, "palette"))
    return line, places
