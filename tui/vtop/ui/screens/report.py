"""The report of a saved run as text, the same that an export writes."""

from __future__ import annotations

from pathlib import Path

from textual.app import ComposeResult

from vtop.telemetry.snapshot import Snapshot
from vtop.ui.calls import aside
from vtop.ui.ink import Line
from vtop.ui.listing import Pager
from vtop.ui.page import Page


class ReportScreen(Page):
    """A text that scrolls."""

    NAME = "result"
    HEADING = "Report"
    AUTO_FOCUS = "#body"

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._text: str | None = None

    def compose_body(self) -> ComposeResult:
        """One text."""
        yield Pager(id="body")

    def on_mount(self) -> None:
        """Has it written and reads it, beside the event loop."""
        super().on_mount()
        service, run_id = self.vtop.service, self.run_id

        def done(text: str) -> None:
            self._text = text

        read = aside(lambda: Path(service.export(run_id, "md")).read_text(encoding="utf-8"))
        self.vtop.call(read, f"open {run_id}", done)

    def pulse(self) -> object:
        """It has been read."""
        return self._text is not None

    def has_item(self) -> bool:
        """There is something to export."""
        return self._text is not None

    def paint_body(self, snapshot: Snapshot) -> None:
        """The text as it is; tables are not wrapped."""
        text = self._text
        lines = [Line(" Reading ...", "dim")] if text is None else [Line(" " + row) for row in text.splitlines()]
        self.query_one("#body", Pager).fill(lambda width: lines)

    def do_export(self) -> None:
        """Every form of it."""
        self.vtop.export_run(self.run_id)
