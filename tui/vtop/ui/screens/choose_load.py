"""Choose a load test: workload, how many at a time, how many in all, how long the answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from textual import on
from textual.app import ComposeResult

from vtop.contract import LoadShapeInfo, WorkloadInfo
from vtop.load.progress import LoadRequest
from vtop.load.shapes import changed
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.form import Choice, number_or_own
from vtop.ui.ink import Line, wrap
from vtop.ui.listing import Picker
from vtop.ui.page import Page

CONCURRENCY = (None, 1, 2, 4, 8, 16, 32, 64, 128, 256)
REQUESTS = (None, 16, 32, 64, 128, 200, 500, 1000)
MAX_TOKENS = (None, 16, 64, 150, 256, 512, 1024, 2048)
RATE = (None, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class ChooseLoadScreen(Page):
    """Rows with values; `enter` runs."""

    NAME = "choose-load"
    HEADING = "Choose a load test"
    AUTO_FOCUS = "#list"

    def __init__(self) -> None:
        super().__init__()
        self._fields: list[Choice[Any]] = []

    def compose_body(self) -> ComposeResult:
        """One list."""
        yield Picker(id="list")

    def on_mount(self) -> None:
        """Begins with the last choice."""
        super().on_mount()
        before = self.vtop.load_request or LoadRequest()
        service = self.vtop.service
        workloads: list[WorkloadInfo | LoadShapeInfo] = [*service.workloads(), *service.load_shapes()]
        names = [workload.name for workload in workloads]
        chosen = before.shape or before.workload

        def at(values: tuple[Any, ...], value: Any) -> int:
            return values.index(value) if value in values and not before.shape else 0

        self._fields = [
            Choice(
                "workload",
                "workload",
                workloads,
                names.index(chosen) if chosen in names else 0,
                write=lambda workload: workload.name,
                note=lambda workload: workload.title,
            ),
            Choice("concurrency", "at a time", CONCURRENCY, at(CONCURRENCY, before.concurrency), write=number_or_own),
            Choice("requests", "requests", REQUESTS, at(REQUESTS, before.requests), write=number_or_own),
            Choice("max_tokens", "answer tokens", MAX_TOKENS, at(MAX_TOKENS, before.max_tokens), write=number_or_own),
            Choice(
                "rate",
                "arrivals",
                RATE,
                at(RATE, before.rate),
                write=lambda rate: "next one when one ends" if rate is None else f"{rate:g} a second",
                note=lambda rate: "closed loop" if rate is None else "open loop: a slow server gets a queue",
            ),
        ]
        self._fill()

    def _fill(self) -> None:
        picker = self.query_one("#list", Picker)
        glyphs = self.glyphs

        def draw(choice: Choice[Any]) -> Any:
            return lambda width: choice.row(picker.chosen == choice.key, width, glyphs)

        workload: WorkloadInfo | LoadShapeInfo = self._fields[0].value
        server = self.vtop.server_in(self.vtop.snapshot)
        name = server.status.name if server else "no server"
        items: list[tuple[str, Any]] = [
            ("", lambda width: Line(f" Load test on {name}", "title")),
            ("", lambda width: Line()),
            *((choice.key, draw(choice)) for choice in self._fields),
            ("", lambda width: Line()),
        ]
        for index in range(3):
            items.append(("", lambda width, index=index: _sentence(workload.summary, width, index)))
        items.append(("", lambda width: Line(" up and down choose a row, left and right change it", "dim")))
        picker.fill(items)

    def paint_body(self, snapshot: Snapshot) -> None:
        """The rows."""
        if self._fields:
            self._fill()

    def has_item(self) -> bool:
        """There is always something to run."""
        return True

    @on(Picker.Moved)
    def _moved(self) -> None:
        self._fill()

    @on(Picker.Changed)
    def _changed(self, event: Picker.Changed) -> None:
        for choice in self._fields:
            if choice.key == event.picker.chosen:
                choice.change(event.by)
        self._fill()

    def request(self) -> LoadRequest:
        """What is chosen."""
        values = {choice.key: choice.value for choice in self._fields}
        workload = values.pop("workload")
        if isinstance(workload, LoadShapeInfo):
            return changed(workload.request, values)
        before = self.vtop.load_request
        # What a shape asked for beyond these rows (its time, its limits) goes with it.
        kept = before if before is not None and not before.shape else LoadRequest()
        return replace(kept, workload=workload.name, **values)

    def do_open(self) -> None:
        """Runs it, and keeps the choice for `l`."""
        self.vtop.load_request = self.request()
        server = self.vtop.server_in(self.vtop.snapshot)
        if server is None or self.vtop.load_running():
            self.vtop.deeds.do_load()
            return
        self.vtop.pop_screen()
        self.vtop.deeds.start_load(self.vtop.load_request, server)

    def do_next_server(self) -> None:
        """Tab moves in the form."""
        self.query_one("#list", Picker).action_move(1)

    def do_previous_server(self) -> None:
        """Back in the form."""
        self.query_one("#list", Picker).action_move(-1)


def _sentence(text: str, width: int, index: int) -> Line:
    rows = wrap(text, max(10, width - 4), "dim")
    return Line("   ").join(rows[index]) if index < len(rows) else Line()
