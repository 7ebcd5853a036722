"""Chat: one prompt, streamed, with its own TTFT, TPOT and usage. The smoke test of a server."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.events import Key, Paste
from textual.widgets import Input

from vtop import units
from vtop.contract import ChatEvent
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.ink import Line, wrap
from vtop.ui.listing import Pager
from vtop.ui.page import Page

KEPT = 20
"""Exchanges that are kept on the screen."""

LONGEST_ANSWER = 20_000
"""Characters of one answer that are kept."""


class Exchange:
    """A prompt and what came of it."""

    def __init__(self, server: str, prompt: str) -> None:
        self.server = server
        self.prompt = prompt
        self.answer = ""
        self.end: ChatEvent | None = None
        self.error = ""

    def add(self, event: ChatEvent) -> None:
        """A piece of the answer, or its end."""
        if len(self.answer) < LONGEST_ANSWER:
            self.answer += event.text
        if event.error:
            self.error = event.error
        if event.done or event.error:
            self.end = event

    def rows(self, width: int) -> list[Line]:
        """Prompt, answer, numbers."""
        rows = [Line(" you  ", "key").join(line) for line in wrap(self.prompt, width - 8, "strong")[:1]]
        rows += [Line("      ").join(line) for line in wrap(self.prompt, width - 8, "strong")[1:]]
        for paragraph in self.answer.split("\n"):
            rows += [Line("      ").join(line) for line in wrap(paragraph, width - 8)]
        if self.error:
            rows += [Line("      ").join(line) for line in wrap(self.error, width - 8, "bad")]
        elif self.end is None:
            rows.append(Line("      ").add("waiting for the first token" if not self.answer else "...", "dim"))
        else:
            end = self.end
            numbers = f"TTFT {units.duration(end.ttft_s)} · TPOT {units.duration(end.tpot_s)}"
            numbers += f" · {units.count(end.prompt_tokens)} tokens in, {units.count(end.completion_tokens)} out"
            rows.append(Line("      ").add(numbers, "second").add(f"   {self.server}", "dim"))
        return [*rows, Line()]


class PromptLine(Input):
    """One line to type in; a text of several lines that is pasted becomes one line, where Textual keeps the first."""

    def _on_paste(self, event: Paste) -> None:
        event.text = " ".join(event.text.splitlines())


class ChatScreen(Page):
    """A line to type in, and the exchanges above it."""

    NAME = "chat"
    HEADING = "Chat"
    AUTO_FOCUS = "#prompt"

    def __init__(self) -> None:
        super().__init__()
        self._exchanges: list[Exchange] = []
        self._version = 0

    def compose_body(self) -> ComposeResult:
        """The exchanges, and the line."""
        yield Pager(id="body")
        yield PromptLine(placeholder="type a prompt", id="prompt", compact=True)

    def on_mount(self) -> None:
        """The end of the conversation is in sight."""
        super().on_mount()
        self.query_one("#body", Pager).at_end = True

    def heading(self) -> str:
        """Who is talked to."""
        server = self.vtop.server_in(self.vtop.snapshot)
        return f"Chat with {server.status.name}" if server else "Chat"

    def pulse(self) -> object:
        """Changes with each piece."""
        return self._version

    def paint_body(self, snapshot: Snapshot) -> None:
        """All exchanges."""

        def rows(width: int) -> list[Line]:
            if not self._exchanges:
                text = (
                    "One prompt at a time, without memory of the ones before: a smoke test with its own TTFT and TPOT."
                )
                return [Line(" ").join(line) for line in wrap(text, width - 2, "dim")]
            return [row for exchange in self._exchanges for row in exchange.rows(width)]

        self.query_one("#body", Pager).fill(rows)

    def has_item(self) -> bool:
        """What is typed can be sent."""
        return True

    async def _submit(self) -> None:
        await self.query_one("#prompt", Input).action_submit()

    def do_open(self) -> None:
        """Sends, as `enter` does in the line itself."""
        self.call_later(self._submit)

    @on(Input.Submitted, "#prompt")
    def _send(self, event: Input.Submitted) -> None:
        prompt = event.value.strip()
        server = self.vtop.server_in(self.vtop.snapshot)
        if not prompt or server is None:
            return
        if self._exchanges and self._exchanges[-1].end is None and not self._exchanges[-1].error:
            self.vtop.notify("the answer before is still coming", severity="warning", markup=False, timeout=2)
            return
        event.input.value = ""
        name = server.status.name
        exchange = Exchange(name, prompt)
        self._exchanges = [*self._exchanges[-KEPT + 1 :], exchange]

        async def stream() -> None:
            try:
                async for piece in self.vtop.service.chat(name, prompt):
                    exchange.add(piece)
                    self._version += 1
            except Exception as error:
                exchange.error = str(error)
                self._version += 1
                raise
            if exchange.end is None and not exchange.error:
                exchange.error = "the stream ended without saying that it was complete"
            self._version += 1

        self.query_one("#body", Pager).at_end = True
        self.vtop.call(stream(), f"chat with {name}")
        self.vtop.paint_soon()

    def on_key(self, event: Key) -> None:
        """Escape leaves even while typing."""
        if event.key == "escape":
            event.stop()
            event.prevent_default()
            self.vtop.act("back")
