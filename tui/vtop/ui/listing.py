"""Rows that scroll: a text to read, or a list with a chosen row. Text is literal, marks work without colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.message import Message

from vtop.ui.canvas import Canvas
from vtop.ui.ink import Line


class Pager(Canvas, can_focus=True):
    """A text of any length with its position; holds the rows and draws those in sight."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home", "ends(-1)", show=False),
        Binding("end", "ends(1)", show=False),
    ]

    class Moved(Message):
        """The person moved in the text."""

        def __init__(self, pager: Pager) -> None:
            self.pager = pager
            super().__init__()

        @property
        def control(self) -> Pager:
            """The pager."""
            return self.pager

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._make: Callable[[int], Sequence[Line]] = lambda width: ()
        self._rows: Sequence[Line] = ()
        self.top = 0
        """First row in sight."""
        self.at_end = False

    def fill(self, make: Callable[[int], Sequence[Line]]) -> None:
        """New text; `make` gets the width and may wrap to it. The position stays."""
        self._make = make
        self.show(self._visible)

    def _visible(self, width: int, height: int) -> Sequence[Line]:
        rows = self._make(width - 1)
        self._rows = rows
        last = max(0, len(rows) - height)
        if self.at_end:
            self.top = last
        self.top = max(0, min(self.top, last))
        shown = list(rows[self.top : self.top + height])
        if len(rows) > height:
            # The scroll bar is one column of text: which part of the whole is in sight.
            start = round(self.top / len(rows) * height)
            length = max(1, round(height * height / len(rows)))
            start = min(start, height - length)
            bar = [
                ("#" if self.plain_text else "┃") if start <= y < start + length else ("|" if self.plain_text else "│")
                for y in range(height)
            ]
            shown = [line.fit(width - 1).add(bar[y], "frame") for y, line in enumerate(shown)]
        return shown

    def go(self, row: int) -> None:
        """Brings a row into the middle."""
        self.at_end = False
        self.top = max(0, row - max(1, self.content_size.height) // 2)
        self.redraw()

    def action_move(self, by: int) -> None:
        """One row."""
        self.at_end = False
        self.top += by
        self.redraw()
        self.post_message(self.Moved(self))

    def action_page(self, by: int) -> None:
        """One page."""
        self.action_move(by * max(1, self.content_size.height - 1))

    def action_ends(self, by: int) -> None:
        """Beginning or end."""
        self.at_end = by > 0
        self.top = 0 if by < 0 else self.top
        self.redraw()
        self.post_message(self.Moved(self))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Three rows on."""
        event.stop()
        self.action_move(3)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Three rows back."""
        event.stop()
        self.action_move(-3)


class Picker(Canvas, can_focus=True):
    """A list with a chosen row; headings and notes between the rows cannot be chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home", "move(-100000)", show=False),
        Binding("end", "move(100000)", show=False),
        Binding("left", "change(-1)", show=False),
        Binding("right", "change(1)", show=False),
    ]

    class Moved(Message):
        """Another row is chosen."""

        def __init__(self, picker: Picker) -> None:
            self.picker = picker
            super().__init__()

        @property
        def control(self) -> Picker:
            """The list."""
            return self.picker

    class Opened(Moved):
        """The chosen row was clicked again."""

    class Changed(Message):
        """Left or right on a row with values."""

        def __init__(self, picker: Picker, by: int) -> None:
            self.picker = picker
            self.by = by
            super().__init__()

        @property
        def control(self) -> Picker:
            """The list."""
            return self.picker

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._items: list[tuple[str, Callable[[int], Line]]] = []
        self.chosen = ""
        """Key of the chosen row, "" while there is none."""
        self._top = 0

    def fill(self, items: Sequence[tuple[str, Callable[[int], Line]]]) -> None:
        """New rows, each with its key ("" for a heading) and a function of the width. The choice stays where it can.

        Where the chosen row is gone, the one that took its place is chosen: what is deleted next is its neighbour.
        """
        before = self.keys
        at = before.index(self.chosen) if self.chosen in before else 0
        self._items = list(items)
        keys = self.keys
        if self.chosen not in keys:
            self.chosen = keys[min(at, len(keys) - 1)] if keys else ""
        self.show(self._visible)

    @property
    def keys(self) -> list[str]:
        """Keys of the rows that can be chosen."""
        return [key for key, _ in self._items if key]

    def _visible(self, width: int, height: int) -> Sequence[Line]:
        position = next((i for i, (key, _) in enumerate(self._items) if key and key == self.chosen), 0)
        # Keeps the heading above the first row in sight.
        if position <= 1:
            self._top = 0
        if position < self._top:
            self._top = position
        if position >= self._top + height:
            self._top = position - height + 1
        self._top = max(0, min(self._top, max(0, len(self._items) - height)))
        rows = []
        marked = False
        for key, make in self._items[self._top : self._top + height]:
            line = make(width)
            if key and key == self.chosen and not marked:
                line.cursor = marked = True
            rows.append(line)
        hidden = len(self._items) - self._top - height
        if hidden > 0 and rows:
            rows[-1] = rows[-1].fit(max(0, width - 10)).add(f" {hidden} more".rjust(10), "dim")
        return rows

    def action_move(self, by: int) -> None:
        """Chooses another row."""
        keys = self.keys
        if not keys:
            return
        at = keys.index(self.chosen) if self.chosen in keys else 0
        self.choose(keys[max(0, min(len(keys) - 1, at + by))])

    def choose(self, key: str) -> None:
        """Chooses the row of that key."""
        if key != self.chosen:
            self.chosen = key
            self.redraw()
            self.post_message(self.Moved(self))

    def action_change(self, by: int) -> None:
        """Another value in the chosen row."""
        self.post_message(self.Changed(self, by))

    def on_click(self, event: Click) -> None:
        """Chooses the clicked row, or opens it where it was chosen already."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        index = self._top + offset.y
        if 0 <= index < len(self._items) and self._items[index][0]:
            key = self._items[index][0]
            if key == self.chosen:
                self.post_message(self.Opened(self))
            self.choose(key)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """One row on."""
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """One row back."""
        event.stop()
        self.action_move(-1)
