"""Compare presets: pick them, see the plan, watch the runs, read the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from textual import on
from textual.app import ComposeResult

from vtop import units
from vtop.contract import LoadShapeInfo, WorkloadInfo
from vtop.errors import VtopError
from vtop.presets import Preset
from vtop.results.comparison import CompareProgress, CompareRequest
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.canvas import Canvas
from vtop.ui.form import Choice, number_or_own
from vtop.ui.ink import Line, cut, wrap
from vtop.ui.listing import Pager, Picker
from vtop.ui.page import Page
from vtop.ui.panels.comparison import comparison_rows
from vtop.ui.screens.start import grouped, has_gpu, sensible_preset

PLAN_AFTER_S = 0.15
"""A plan is asked for when the choice has stood still this long."""

REPEATS = (1, 2, 3, 5, 8, 10)
CONCURRENCY = (None, 1, 4, 8, 16, 32, 64)
REQUESTS = (None, 16, 32, 64, 128, 256)


class CompareScreen(Page):
    """The form until a comparison runs, then its progress and its table."""

    NAME = "compare"
    HEADING = "Compare"
    AUTO_FOCUS = "#list"

    def __init__(self, picked: Sequence[str] = ()) -> None:
        super().__init__()
        self._presets: list[Preset] = []
        self._picked: list[str] = list(picked)
        self._fields: list[Choice[Any]] = []
        self._plan: CompareProgress | VtopError | None = None
        self._planned: CompareRequest | None = None
        self._form = True

    def compose_body(self) -> ComposeResult:
        """The form and the table; one of them is shown."""
        yield Picker(id="list")
        yield Canvas(id="plan")
        yield Pager(id="body")

    def on_mount(self) -> None:
        """A running or finished comparison is shown first."""
        super().on_mount()
        presets, _ = self.vtop.service.presets()
        self._presets = list(presets)
        gpu = has_gpu(self.vtop.service, self.vtop.snapshot)
        self.query_one("#list", Picker).chosen = sensible_preset(presets, gpu)
        service = self.vtop.service
        loads: list[WorkloadInfo | LoadShapeInfo] = [*service.workloads(), *service.load_shapes()]
        names = [load.name for load in loads]
        self._fields = [
            Choice(
                "+workload", "workload", loads, names.index("chat") if "chat" in names else 0,
                write=lambda load: load.name, note=lambda load: load.title,
            ),
            Choice(
                "+repeats", "repeats", REPEATS, REPEATS.index(3), write=str,
                note=lambda count: "no verdict from one run" if count == 1 else "interleaved, so that drift cancels",
            ),
            Choice("+concurrency", "at a time", CONCURRENCY, write=number_or_own),
            Choice("+requests", "requests", REQUESTS, write=number_or_own),
        ]  # fmt: skip
        self._show_form(self.vtop.service.compare_progress() is None)

    def _show_form(self, form: bool) -> None:
        self._form = form
        self.query_one("#list", Picker).set_class(not form, "-gone")
        self.query_one("#plan", Canvas).set_class(not form, "-gone")
        self.query_one("#body", Pager).set_class(form, "-gone")
        self.query_one("#list" if form else "#body").focus()
        self.vtop.paint_soon()

    def action_name(self) -> str:
        """The form and the table have different keys."""
        return "compare" if self._form else "compared"

    def heading(self) -> str:
        """What is being compared."""
        progress = self.vtop.service.compare_progress()
        if self._form or progress is None:
            return "Compare presets"
        return f"Compare  {progress.request.workload or 'chat'}"

    def pulse(self) -> object:
        """The progress object changes while it runs; the plan once it has come."""
        return (id(self.vtop.service.compare_progress()), id(self._plan), self._form, tuple(self._picked))

    def has_item(self) -> bool:
        """Something to start, or something to export."""
        progress = self.vtop.service.compare_progress()
        return len(self._picked) >= 2 if self._form else progress is not None and bool(progress.rows)

    def paint_body(self, snapshot: Snapshot) -> None:
        """The form or the progress."""
        progress = self.vtop.service.compare_progress()
        if self._form:
            self._fill_form()
        elif progress is not None:
            self._fill_progress(progress)

    # The form.

    def _fill_form(self) -> None:
        glyphs = self.glyphs
        picker = self.query_one("#list", Picker)
        items: list[tuple[str, Callable[[int], Line]]] = [
            (
                "",
                lambda width: Line(
                    " Presets: space picks, the first picked is what the others are held against", "dim"
                ),
            )
        ]

        def preset_row(preset: Preset) -> Callable[[int], Line]:
            def draw(width: int) -> Line:
                chosen = picker.chosen == preset.name
                line = Line(f" {glyphs.cursor} " if chosen else "   ", "key")
                picked = preset.name in self._picked
                line.add((glyphs.checked if picked else glyphs.unchecked) + " ", "key")
                number = f"{self._picked.index(preset.name) + 1} " if picked else "  "
                line.add(number, "strong").add(f"{cut(preset.name, 18):<18} ", "strong")
                return line.add(cut(preset.title, max(0, width - line.width - 1), glyphs.ellipsis), "dim")

            return draw

        for title, members in grouped(self._presets):
            items.append(("", lambda width, title=title: Line(" " + title, "title")))  # type: ignore[misc]
            items += [(preset.name, preset_row(preset)) for preset in members]
        items.append(("", lambda width: Line(" The load", "title")))
        for choice in self._fields:
            items.append(
                (choice.key, lambda width, c=choice: c.row(picker.chosen == c.key, width, glyphs))  # type: ignore[misc]
            )
        picker.fill(items)
        self.query_one("#plan", Canvas).show(self._plan_rows)

    def _plan_rows(self, width: int, height: int) -> list[Line]:
        """Always in sight, however long the list above is."""
        role = "strong"
        warnings: list[str] = []
        if len(self._picked) < 2:
            missing = "two presets or more" if not self._picked else "one more preset at least"
            text, role = f"Pick {missing} with space; then enter starts the comparison.", "dim"
        elif isinstance(self._plan, VtopError):
            text, role = f"{self._plan.what}. {self._plan.remedy}", "bad"
        elif self._plan is None:
            text, role = "Working out how long it takes ...", "dim"
        else:
            runs = len(self._picked) * self._field("+repeats")
            time = f"about {units.elapsed(self._plan.expected_s)}" if self._plan.expected_s else "time not known yet"
            text = f"{runs} runs under the {self._field('+workload').name} load, {time}. enter starts."
            warnings = [*self._plan.warnings, *self._sharing()]
        rows = [Line(" ").join(line) for line in wrap(text, max(10, width - 2), role)]
        for warning in warnings:
            rows += [Line(" ").join(line) for line in wrap("! " + warning, max(10, width - 2), "warn", "  ")]
        return [Line(self.glyphs.horizontal * width, "frame"), *rows][:height]

    def _sharing(self) -> list[str]:
        """A server that runs meanwhile takes memory and time of the same GPU."""
        up = (ServerState.READY, ServerState.STARTING, ServerState.DEGRADED)
        names = [view.status.name for view in self.vtop.snapshot.servers if view.status.state in up]
        return [f"{', '.join(names)} would run beside it; x on the dashboard stops one"] if names else []

    def _field(self, key: str) -> Any:
        return next(choice.value for choice in self._fields if choice.key == key)

    def request(self) -> CompareRequest:
        """What is chosen."""
        load: WorkloadInfo | LoadShapeInfo = self._field("+workload")
        return CompareRequest(
            presets=tuple(self._picked),
            workload=load.name,
            load=load.request if isinstance(load, LoadShapeInfo) else None,
            repeats=self._field("+repeats"),
            simulated=self.vtop.service.simulated,
            requests=self._field("+requests"),
            concurrency=self._field("+concurrency"),
        )

    def _plan_later(self) -> None:
        self._plan = None
        self.set_timer(PLAN_AFTER_S, self._ask_plan)
        self.vtop.paint_soon()

    def _ask_plan(self) -> None:
        if len(self._picked) < 2:
            return
        request = self.request()
        if self._plan is not None and request == self._planned:
            return
        self._planned = request

        async def ask() -> CompareProgress | VtopError:
            try:
                return await self.vtop.service.plan_compare(request)
            except VtopError as error:
                return error

        def answered(plan: CompareProgress | VtopError) -> None:
            if request == self._planned:
                self._plan = plan

        self.vtop.call(ask(), "plan the comparison", answered)

    @on(Picker.Moved)
    def _moved(self) -> None:
        self._fill_form()

    @on(Picker.Opened)
    def _opened(self) -> None:
        self.do_mark()

    @on(Picker.Changed)
    def _changed(self, event: Picker.Changed) -> None:
        for choice in self._fields:
            if choice.key == event.picker.chosen:
                choice.change(event.by)
                self._plan_later()

    def do_mark(self) -> None:
        """Picks or unpicks the preset under the cursor; on a row with values, the next value."""
        if not self._form:
            self.query_one("#body", Pager).action_page(1)
            return
        chosen = self.query_one("#list", Picker).chosen
        if chosen.startswith("+"):
            for choice in self._fields:
                if choice.key == chosen:
                    choice.change(1)
        elif chosen in self._picked:
            self._picked.remove(chosen)
        elif chosen:
            self._picked.append(chosen)
        self._plan_later()

    # What the keys do.

    def do_open(self) -> None:
        """Starts what is picked."""
        if not self._form:
            return
        if self.vtop.compare_running():
            self._show_form(False)
            return
        request = self.request()
        self._planned = request
        self.vtop.call(
            self.vtop.service.start_compare(request), "start the comparison", lambda _: self._show_form(False)
        )

    def do_compare(self) -> None:
        """From the table to the form of another comparison, and back."""
        if self._form:
            if self.vtop.service.compare_progress() is not None:
                self._show_form(False)
        elif not self.vtop.compare_running():
            self._show_form(True)

    def do_stop(self) -> None:
        """Stops the comparison after a question."""
        if not self.vtop.compare_running():
            self.vtop.deeds.do_stop()
            return
        self.vtop.ask(
            "Stop the comparison?",
            "Finished runs are kept; the server of the running one is stopped.",
            "Stop it",
            "Go on",
            lambda: self.vtop.call(self.vtop.service.stop_compare(), "stop the comparison"),
        )

    def do_export(self) -> None:
        """Writes the table."""
        progress = self.vtop.service.compare_progress()
        if progress is not None:
            self.vtop.export_run(progress.run_id)

    def do_next_server(self) -> None:
        """Tab moves in the form."""
        if self._form:
            self.query_one("#list", Picker).action_move(1)

    def do_previous_server(self) -> None:
        """Back in the form."""
        if self._form:
            self.query_one("#list", Picker).action_move(-1)

    # The progress.

    def _fill_progress(self, progress: CompareProgress) -> None:
        glyphs = self.glyphs
        self.query_one("#body", Pager).fill(lambda width: comparison_rows(progress, width, glyphs))
