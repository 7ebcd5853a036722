"""A question before something is destroyed."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from vtop.ui.ink import printable


class ConfirmScreen(ModalScreen[bool]):
    """Yes or no. `enter` presses the button that is lit, and that is the harmless one."""

    AUTO_FOCUS = "#no"
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (16, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape", "answer(False)", show=False),
        Binding("left,up,shift+tab", "app.focus_previous", show=False),
        Binding("right,down,tab", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, detail: str, yes: str, no: str) -> None:
        super().__init__()
        self.question = question
        self.detail = detail
        self.yes = yes
        self.no = no
        self._answered = False

    def compose(self) -> ComposeResult:
        """The question, what follows from it, and the two answers with their keys."""
        text = Content.assemble((printable(self.question), "bold"))
        for line in self.detail.split("\n") if self.detail else []:
            text = text + Content("\n" + printable(line))
        with Vertical(id="confirm-box"):
            yield Static(text, id="confirm-text", markup=False)
            with Horizontal(id="confirm-buttons"):
                yield Button(Content(f"y  {self.yes}"), id="yes", variant="error")
                yield Button(Content(f"n  {self.no}"), id="no")

    def action_answer(self, answer: bool) -> None:
        """Closes with the answer; a second key that was typed ahead answers nothing."""
        if not self._answered:
            self._answered = True
            self.dismiss(answer)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.action_answer(event.button.id == "yes")
