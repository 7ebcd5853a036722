"""A saved comparison: the same table as while it ran, and the way to go on with one that was cut."""

from __future__ import annotations

from textual.app import ComposeResult

from vtop.results.comparison import CompareProgress
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.calls import aside
from vtop.ui.ink import Line
from vtop.ui.listing import Pager
from vtop.ui.page import Page
from vtop.ui.panels.comparison import comparison_rows


class ComparisonScreen(Page):
    """One saved comparison."""

    NAME = "comparison"
    HEADING = "Comparison"
    AUTO_FOCUS = "#body"

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._saved: CompareProgress | None = None

    def compose_body(self) -> ComposeResult:
        """One text."""
        yield Pager(id="body")

    def on_mount(self) -> None:
        """Reads it beside the event loop."""
        super().on_mount()
        service, run_id = self.vtop.service, self.run_id

        def done(saved: CompareProgress) -> None:
            self._saved = saved

        self.read(aside(lambda: service.compare_result(run_id)), f"open {run_id}", done)

    def action_name(self) -> str:
        """One that was cut can be gone on with."""
        cut = self._saved is not None and self._saved.state not in ("finished", "running")
        return "cut-comparison" if cut else self.NAME

    def heading(self) -> str:
        """The load that was compared under."""
        return f"Comparison  {self._saved.request.workload or 'chat'}" if self._saved else self.HEADING

    def pulse(self) -> object:
        """It has been read."""
        return (id(self._saved), self._unread)

    def has_item(self) -> bool:
        """Whether it can be exported, or gone on with."""
        return self._saved is not None

    def paint_body(self, snapshot: Snapshot) -> None:
        """The table and the runs."""
        saved, glyphs = self._saved, self.glyphs

        def rows(width: int) -> list[Line]:
            return self.not_read_rows(width) if saved is None else comparison_rows(saved, width, glyphs)

        self.query_one("#body", Pager).fill(rows)

    def do_open(self) -> None:
        """Goes on with a comparison that was cut: its finished runs stay."""
        from vtop.ui.screens.compare import CompareScreen

        saved = self._saved
        if saved is None or self.action_name() == self.NAME:
            return
        service = self.vtop.service
        self.vtop.call(
            service.resume_compare(saved.run_id),
            "go on with the comparison",
            lambda _: self.vtop.open_page(CompareScreen()),
        )

    def do_export(self) -> None:
        """Writes Markdown, CSV and HTML beside it."""
        self.vtop.export_run(self.run_id)
