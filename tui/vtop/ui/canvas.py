"""A widget that draws rows of `Line` and sends the terminal only the rows that changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.dom import DOMNode
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from vtop.ui.glyphs import plain
from vtop.ui.ink import ROLES, Line

Draw = Callable[[int, int], Sequence[Line]]
"""Draws the content for a width and a height in cells."""

INKS = {role: f"ink--{role}" for role in (*ROLES, "cursor")}
"""Role → class in the style sheet."""


class Canvas(Widget):
    """Shows what a draw function returns.

    Textual sends a refreshed widget whole; here each new row is compared with the row on the screen, and only the
    changed ones are refreshed, up to their last changed cell. That is what keeps a dashboard within some KiB a second.
    """

    class Clicked(Message):
        """A row was clicked."""

        def __init__(self, canvas: Canvas, x: int, y: int) -> None:
            self.canvas = canvas
            self.x = x
            self.y = y
            super().__init__()

        @property
        def control(self) -> Canvas:
            """The canvas that was clicked."""
            return self.canvas

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.plain_text = False
        """Signs outside ASCII are replaced by their plain twins."""
        self._draw: Draw | None = None
        self._strips: list[Strip] = []
        self._lines: list[Line] = []
        self._styles: dict[tuple[str, bool], Style] = {}

    @property
    def lines(self) -> Sequence[Line]:
        """The rows on the screen."""
        return self._lines

    def show(self, draw: Draw) -> None:
        """Draws now, and again whenever the size or the theme changes."""
        self._draw = draw
        self.redraw()

    def redraw(self) -> None:
        """Draws again with the last draw function; unchanged rows cost nothing."""
        width, height = self.content_size
        if self._draw is None or width <= 0 or height <= 0:
            return
        lines = [line.fit(width) for line in list(self._draw(width, height))[:height]]
        if self.plain_text:
            for line in lines:
                line.spans = [(plain(text), role) for text, role in line.spans]
        lines.extend(Line().fit(width) for _ in range(height - len(lines)))
        dirty: list[Region] = []
        strips: list[Strip] = []
        for y, line in enumerate(lines):
            if y < len(self._lines) and y < len(self._strips) and self._lines[y] == line:
                strips.append(self._strips[y])
                continue
            strip = self._strip(line, width)
            before = self._strips[y] if y < len(self._strips) else None
            end = width if before is None else _last_difference(before, strip)
            if end:
                dirty.append(Region(0, y, end, 1))
            strips.append(strip)
        resized = len(self._strips) != len(strips)
        self._strips = strips
        self._lines = lines
        if resized:
            self.refresh()
        elif dirty:
            self.refresh(*dirty)

    def _strip(self, line: Line, width: int) -> Strip:
        pieces: list[tuple[str, str]] = []
        for text, role in line.spans:
            if pieces and pieces[-1][1] == role:
                pieces[-1] = (pieces[-1][0] + text, role)
            else:
                pieces.append((text, role))
        return Strip([Segment(text, self._style(role, line.cursor)) for text, role in pieces], width)

    def _style(self, role: str, cursor: bool) -> Style:
        style = self._styles.get((role, cursor))
        if style is None:
            style = self._ink(role) if role else self.rich_style
            if cursor:
                chosen = self._ink("cursor")
                style += Style(
                    bgcolor=chosen.bgcolor, color=chosen.color if role in ("", "strong", "dim") else None, bold=True
                )
            self._styles[role, cursor] = style
        return style

    def _ink(self, role: str) -> Style:
        """What the style sheet says of a role in this canvas. KeyError: there is no such role.

        Textual's own COMPONENT_CLASSES would keep one node for each role in each canvas (200 on the dashboard: 3 MiB
        and some 50 ms of the start), for the few roles that a canvas really writes in.
        """
        node = DOMNode(classes=INKS[role])
        node._attach(self)
        self.app.stylesheet.apply(node)
        return node.rich_style

    def render_line(self, y: int) -> Strip:
        """The cached row."""
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.size.width, self.rich_style)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as were drawn last; canvases get their height from the layout."""
        return len(self._strips)

    def notify_style_update(self) -> None:
        """The theme or a class changed: every strip has the wrong colours."""
        super().notify_style_update()
        self._styles.clear()
        self._lines = []
        self._strips = []
        if self.is_mounted:
            self.redraw()

    def on_resize(self, event: Resize) -> None:
        """Draws for the new size."""
        self._lines = []
        self._strips = []
        self.redraw()

    def on_click(self, event: Click) -> None:
        """Tells the screen which row it was."""
        offset = event.get_content_offset(self)
        if offset is not None:
            self.post_message(self.Clicked(self, offset.x, offset.y))


def _last_difference(before: Strip, after: Strip) -> int:
    """One past the last cell that differs, 0 where nothing does."""
    if before.cell_length != after.cell_length:
        return max(before.cell_length, after.cell_length)
    end = after.cell_length
    for old, new in zip(reversed(list(before)), reversed(list(after)), strict=False):
        if old != new:
            # Inside the segment that differs, equal cells at its end need not be sent either.
            if old.style == new.style and old.text.isascii() and new.text.isascii():
                while old.text and new.text and old.text[-1] == new.text[-1]:
                    old, new = Segment(old.text[:-1], old.style), Segment(new.text[:-1], new.style)
                    end -= 1
            return end
        end -= new.cell_length
    return max(end, 0)
