"""Saved runs: open one, mark two to lay them side by side, export, delete and bring back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult

from vtop.contract import RunSummary, playback_of
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.actions import BY_ID, keys_of
from vtop.ui.calls import aside
from vtop.ui.ink import Line, cut, cut_start
from vtop.ui.listing import Picker
from vtop.ui.page import Page
from vtop.ui.words import ago

TITLE_CELLS = 20
"""A headline gives way, from its end, until this much of the title can be read."""


class RunsScreen(Page):
    """The list, newest first."""

    NAME = "runs"
    HEADING = "Runs"
    AUTO_FOCUS = "#list"

    def __init__(self) -> None:
        super().__init__()
        self._runs: Sequence[RunSummary] | None = None
        self._marked: list[str] = []

    def compose_body(self) -> ComposeResult:
        """One list."""
        yield Picker(id="list")

    def on_mount(self) -> None:
        """Reads the list beside the event loop."""
        super().on_mount()
        self._read()

    def on_screen_resume(self) -> None:
        """A run may have ended meanwhile."""
        super().on_screen_resume()
        self._read()

    def _read(self) -> None:
        service = self.vtop.service

        def done(runs: Sequence[RunSummary]) -> None:
            self._runs = runs
            self._marked = [mark for mark in self._marked if any(run.run_id == mark for run in runs)]

        self.vtop.call(aside(service.runs), "list the runs", done)

    def pulse(self) -> object:
        """The list, the marks, the choice."""
        return (id(self._runs), tuple(self._marked), self._chosen(), len(self.vtop.deleted_runs))

    def _chosen(self) -> str:
        return self.query_one("#list", Picker).chosen

    def has_item(self) -> bool:
        """Whether a run is chosen."""
        return bool(self._chosen())

    def paint_body(self, snapshot: Snapshot) -> None:
        """One row a run."""
        picker = self.query_one("#list", Picker)
        if not self._runs:
            text = " Reading ..." if self._runs is None else self._none_words()
            picker.fill([("", lambda width: Line(text, "dim"))])
            return
        now = snapshot.at_wall_s
        heading = "space marks two, enter lays them side by side" if self._marked else "enter opens, space marks"
        items: list[tuple[str, Callable[[int], Line]]] = [("", lambda width: Line(f" {heading}", "dim"))]
        items += [(run.run_id, self._row(run, now)) for run in self._runs]
        picker.fill(items)

    def _none_words(self) -> str:
        if playback_of(self.vtop.service) is not None:
            return " A recording holds no runs."
        return " No runs yet." if self.vtop.view.readonly else " No runs yet: l on the dashboard runs a load test."

    def _row(self, run: RunSummary, now_wall_s: float) -> Callable[[int], Line]:
        glyphs = self.glyphs
        service = self.vtop.service
        under_way = [(service.load_progress(), self.vtop.load_running()),
                     (service.compare_progress(), self.vtop.compare_running())]  # fmt: skip
        going_on = [progress.run_id for progress, running in under_way if progress is not None and running]

        def draw(width: int) -> Line:
            line = Line(glyphs.cursor if self._chosen() == run.run_id else " ", "key")
            line.add((glyphs.checked if run.run_id in self._marked else glyphs.unchecked) + " ", "key")
            line.add(f"{ago(run.at_wall_s, now_wall_s):>10}  ", "dim").add(f"{run.kind:<8} ", "second")
            if run.simulated:
                line.add("SIM ", "badge").add(" ")
            if not run.complete:
                line.add("NOW " if run.run_id in going_on else "CUT ", "warn")
            room = width - line.width - 2
            parts = run.headline.split(" · ")
            while len(parts) > 1 and room - cell_len(" · ".join(parts)) - 2 < min(TITLE_CELLS, cell_len(run.title)):
                parts.pop()
            headline = Line(" · ".join(parts), "strong")
            title = max(0, room - headline.width - 2)
            if title >= 8:
                shorten = cut_start if run.kind == "load" else cut
                line.add(f"{shorten(run.title, title, glyphs.ellipsis):<{title}}  ")
            return line.join(headline)

        return draw

    def do_mark(self) -> None:
        """Marks the chosen run; a third mark drops the first."""
        chosen = self._chosen()
        if not chosen:
            return
        if chosen in self._marked:
            self._marked.remove(chosen)
        else:
            self._marked = [*self._marked, chosen][-2:]
        self.query_one("#list", Picker).action_move(1)

    def do_open(self) -> None:
        """Opens the chosen run, or the two that are marked."""
        from vtop.ui.screens.compare import CompareScreen
        from vtop.ui.screens.comparison import ComparisonScreen
        from vtop.ui.screens.result import ResultScreen
        from vtop.ui.screens.side_by_side import SideBySideScreen

        run = next((run for run in self._runs or () if run.run_id == self._chosen()), None)
        kinds = [item.kind for item in self._runs or () if item.run_id in self._marked]
        if len(self._marked) == 2 and "compare" in kinds:
            text = "a comparison is a table of its own: unmark it with space, enter opens it"
            self.vtop.notify(text, severity="warning", markup=False, timeout=4)
        elif len(self._marked) == 2:
            self.vtop.push_screen(SideBySideScreen(self._marked[0], self._marked[1]))
        elif run is not None and run.kind == "compare":
            progress = self.vtop.service.compare_progress()
            if progress is not None and progress.run_id == run.run_id:
                self.vtop.open_page(CompareScreen())
            else:
                self.vtop.open_page(ComparisonScreen(run.run_id))
        elif run is not None:
            self.vtop.open_page(ResultScreen(run.run_id))

    @on(Picker.Opened)
    def _opened(self) -> None:
        self.vtop.act("open")

    @on(Picker.Moved)
    def _moved(self) -> None:
        self.vtop.paint_soon()

    def do_export(self) -> None:
        """Writes the reports of the chosen run."""
        self.vtop.export_run(self._chosen())

    def do_delete(self) -> None:
        """Deletes the chosen run at once: it can be brought back."""
        chosen = self._chosen()
        if not chosen:
            return

        def done(_: None) -> None:
            self.vtop.deleted_runs.append(chosen)
            self._read()
            keys = keys_of(BY_ID["undo"], self.vtop.settings.keys)
            self.vtop.notify(
                f"deleted {chosen}; {keys[0]} brings it back" if keys else f"deleted {chosen}", markup=False
            )

        self.vtop.call(aside(lambda: self.vtop.service.delete_run(chosen)), f"delete {chosen}", done)

    def has_undo(self) -> bool:
        """Whether a run was deleted since vtop was started."""
        return bool(self.vtop.deleted_runs)

    def do_undo(self) -> None:
        """Brings the run back that was deleted last."""
        if not self.vtop.deleted_runs:
            return
        run_id = self.vtop.deleted_runs.pop()
        self.vtop.call(
            aside(lambda: self.vtop.service.restore_run(run_id)), f"bring back {run_id}", lambda _: self._read()
        )

    def do_next_server(self) -> None:
        """Tab moves in the list."""
        self.query_one("#list", Picker).action_move(1)

    def do_previous_server(self) -> None:
        """Back in the list."""
        self.query_one("#list", Picker).action_move(-1)
