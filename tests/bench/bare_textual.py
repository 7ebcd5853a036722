"""A Textual application that does nothing but draw a page of text once a second: the floor of any vtop."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import Static

PAGE = "\n".join("x" * 100 for _ in range(38))


class BareApp(App[None]):
    """One page, one key."""

    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit")]

    def compose(self) -> ComposeResult:
        """The page."""
        yield Static(PAGE, markup=False)

    def on_mount(self) -> None:
        """Starts counting."""
        self._seconds = 0
        self.set_interval(1.0, self._draw)

    def _draw(self) -> None:
        self._seconds += 1
        self.query_one(Static).update(f"{PAGE}\n{self._seconds}")


if __name__ == "__main__":
    BareApp().run()
