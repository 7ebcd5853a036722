"""Guided experiments: what each optimization is, the load that shows it off and one that does not; enter runs one."""

from __future__ import annotations

from collections.abc import Callable

from textual import on
from textual.app import ComposeResult
from textual.containers import Container

from vtop.experiments import EXPERIMENTS, LEAST, Experiment, Trial
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.canvas import Canvas
from vtop.ui.frame import framed
from vtop.ui.ink import Line, cut, wrap
from vtop.ui.listing import Picker
from vtop.ui.page import Page

REPEATS = 3
"""Runs of each preset: the fewest with a useful interval."""


def detail_rows(experiment: Experiment, trial: Trial, width: int) -> list[Line]:
    """What the experiment is, what it runs, what to watch."""
    rows = [Line(" " + experiment.title, "strong")]
    rows += _indented(experiment.what, width)
    rows.append(Line())
    without, with_it = experiment.presets
    rows += _indented(f"Presets: {without}, then {with_it}; {REPEATS} runs of each, interleaved.", width)
    for one in experiment.trials:
        text = f"{one.heading}: {_load(one)}, {one.why}."
        rows += _indented(text, width, "strong" if one is trial else "dim")
    rows.append(Line())
    return rows + _indented(f"Watch: {experiment.watch}", width)


def _word(trial: Trial) -> str:
    return {"Shows it off": "helps", LEAST: "does not"}.get(trial.heading, "least")


def _load(trial: Trial) -> str:
    many = "" if trial.concurrency is None else f" at {trial.concurrency} at once"
    return f"workload `{trial.workload}`{many}"


def _indented(text: str, width: int, role: str = "") -> list[Line]:
    return [Line(" ").join(line) for line in wrap(text, max(10, width - 2), role)]


class ExperimentsScreen(Page):
    """Two rows an experiment, one for each load, and beside them what it is about."""

    NAME = "experiments"
    HEADING = "Guided experiments"
    AUTO_FOCUS = "#list"

    def compose_body(self) -> ComposeResult:
        """List and detail."""
        with Container(id="columns"):
            yield Picker(id="list")
            yield Canvas(id="detail")

    def on_mount(self) -> None:
        """Fills the list."""
        super().on_mount()
        items: list[tuple[str, Callable[[int], Line]]] = []
        for experiment in EXPERIMENTS:
            items.append(("", lambda width, title=experiment.title: Line(" " + title, "title")))  # type: ignore[misc]
            items += [(f"{experiment.name}/{index}", self._row(experiment, index)) for index in range(2)]
        self.query_one("#list", Picker).fill(items)

    def _row(self, experiment: Experiment, index: int) -> Callable[[int], Line]:
        def draw(width: int) -> Line:
            trial = experiment.trials[index]
            chosen = self.query_one("#list", Picker).chosen == f"{experiment.name}/{index}"
            line = Line(f" {self.glyphs.cursor} " if chosen else "   ", "key").add(f"{_word(trial):<9}", "strong")
            said = trial.workload if trial.concurrency is None else f"{trial.workload}, {trial.concurrency} at once"
            return line.add(cut(said, max(0, width - line.width - 1), self.glyphs.ellipsis), "dim")

        return draw

    def chosen(self) -> tuple[Experiment, Trial]:
        """The row under the cursor."""
        name, _, index = self.query_one("#list", Picker).chosen.partition("/")
        experiment = next(one for one in EXPERIMENTS if one.name == name)
        return experiment, experiment.trials[int(index)]

    def has_item(self) -> bool:
        """There is always one to run."""
        return True

    def pulse(self) -> object:
        """Another row is chosen."""
        return self.query_one("#list", Picker).chosen

    def paint_body(self, snapshot: Snapshot) -> None:
        """What the chosen one is about."""
        experiment, trial = self.chosen()
        glyphs = self.glyphs
        self.query_one("#list", Picker).redraw()

        def draw(width: int, height: int) -> list[Line]:
            rows = detail_rows(experiment, trial, width - 2)
            if len(rows) > height - 2:
                # The frame's title says the first row already.
                rows = [row for row in rows[1:] if row.spans]
            if len(rows) > height - 2 > 0:
                rows[height - 3] = rows[height - 3].fit(width - 4).add(glyphs.ellipsis, "dim")
            return framed(rows, width, height, glyphs, Line(experiment.name, "title"))

        self.query_one("#detail", Canvas).show(draw)

    @on(Picker.Moved)
    def _moved(self) -> None:
        self.vtop.paint_soon()

    @on(Picker.Opened)
    def _opened(self) -> None:
        self.vtop.act("open")

    def do_open(self) -> None:
        """Starts the comparison of the two presets under that load and shows it; a running one is shown instead."""
        if self.vtop.compare_running():
            self._show_comparison()
            return
        experiment, trial = self.chosen()
        request = experiment.request(trial, repeats=REPEATS, simulated=self.vtop.service.simulated)
        self.vtop.call(
            self.vtop.service.start_compare(request), f"start {experiment.name}", lambda _: self._show_comparison()
        )

    def _show_comparison(self) -> None:
        from vtop.ui.screens.compare import CompareScreen

        self.vtop.open_page(CompareScreen())

    def do_next_server(self) -> None:
        """Tab moves in the list here."""
        self.query_one("#list", Picker).action_move(1)

    def do_previous_server(self) -> None:
        """Back in the list."""
        self.query_one("#list", Picker).action_move(-1)
