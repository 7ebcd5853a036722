"""Start a server: presets by what they optimize, and exactly what a start would run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Container

from vtop import units
from vtop.contract import LaunchPlan, PresetProblem, Service
from vtop.errors import VtopError
from vtop.presets import Preset
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.canvas import Canvas
from vtop.ui.editing import edit_preset
from vtop.ui.frame import framed
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line, cut, wrap
from vtop.ui.listing import Picker
from vtop.ui.page import Page

GROUPS: tuple[tuple[str, str], ...] = (
    ("continuous-batching", "Continuous batching"),
    ("prefix-caching", "Prefix caching"),
    ("speculative-decoding", "Speculative decoding"),
    ("quantization", "Quantization"),
    ("pd-disaggregation", "Prefill and decode apart"),
    ("tensor-parallel", "Several GPUs"),
    ("none", "Plain"),
)
"""Optimization -> heading, in the order in which a person would try them; what is there to be compared with, last."""

ON_GPU = "baseline"
WITHOUT_GPU = "cpu-small"

PLAN_AFTER_S = 0.12
"""A plan is asked for when the choice has stood still this long."""


def grouped(presets: Sequence[Preset]) -> list[tuple[str, list[Preset]]]:
    """Presets under the headings that have any."""
    found = [(title, [p for p in presets if p.optimization == key]) for key, title in GROUPS]
    return [(title, members) for title, members in found if members]


def sensible_preset(presets: Sequence[Preset], gpu: bool) -> str:
    """The preset that `s`, `enter` should start: the plain server of this machine; "" where it is not there.

    Args:
        presets: what can be chosen.
        gpu: whether new servers have a GPU, real or simulated.
    """
    wanted = ON_GPU if gpu else WITHOUT_GPU
    return wanted if any(preset.name == wanted for preset in presets) else ""


def has_gpu(service: Service, snapshot: Snapshot) -> bool:
    """Whether a server that is started now has a GPU, real or simulated."""
    return service.simulated or bool(snapshot.gpus)


def detail_rows(preset: Preset | None, plan: LaunchPlan | VtopError | None, width: int, glyphs: Glyphs) -> list[Line]:
    """What a start of the chosen preset would do."""
    if preset is None:
        return [Line(" There are no presets.", "warn")]
    rows = [Line(" " + preset.title, "strong")]
    rows += [Line(" ").join(line) for line in wrap(preset.summary, width - 2)] if preset.summary else []
    if preset.shows_off:
        text = f"Helps with the workload `{preset.shows_off}`"
        text += f", not with `{preset.and_does_not_help}`." if preset.and_does_not_help else "."
        rows += [Line(" ").join(line) for line in wrap(text, width - 2, "dim")]
    rows.append(Line())
    if plan is None:
        return [*rows, Line(" Working out what would run ...", "dim")]
    if isinstance(plan, VtopError):
        rows += [Line(" ").join(line) for line in wrap(plan.what, width - 2, "bad")]
        return rows + [Line(" ").join(line) for line in wrap(plan.remedy, width - 2)]
    if plan.refusal:
        rows += [Line(" ").join(line) for line in wrap("Cannot start: " + plan.refusal, width - 2, "bad")]
        rows.append(Line())
    for warning in plan.warnings:
        rows += [Line(" ").join(line) for line in wrap("! " + warning, width - 2, "warn", "  ")]
    label = max([10, *(len(name) for name, _ in plan.fit)])
    for name, value in plan.fit:
        lines = wrap(value, max(10, width - label - 4))
        rows.append(Line(f" {name:<{label}}  ", "dim").join(lines[0]))
        rows += [Line(" " * (label + 3)).join(line) for line in lines[1:]]
    version = f"vLLM {plan.version}" if plan.version else "vLLM, version unknown"
    where = "simulated" if plan.simulated else plan.installation
    rows.append(Line(f" {'runs':<{label}}  ", "dim").add(f"{version}  ").add(cut(where, width - label - 24), "dim"))
    if plan.expected_s:
        rows.append(Line(f" {'last time':<{label}}  ", "dim").add(f"ready after {units.elapsed(plan.expected_s)}"))
    for note in plan.notes:
        rows += [Line(" ").join(line) for line in wrap("· " + note, width - 2, "dim", "  ")]
    rows.append(Line())
    for key, value in plan.env.items():
        rows += [Line(" ").join(line) for line in wrap(f"{key}={value}", width - 2, "second", "    ")]
    for command in plan.commands:
        rows += [Line(" ").join(line) for line in wrap("$ " + shlex.join(command), width - 2, "", "    ")]
    return rows


class StartScreen(Page):
    """The list at the left (or above), the plan beside it."""

    NAME = "start"
    HEADING = "Start a server"
    AUTO_FOCUS = "#list"

    def __init__(self) -> None:
        super().__init__()
        self._presets: dict[str, Preset] = {}
        self._problems: Sequence[PresetProblem] = ()
        self._plans: dict[str, LaunchPlan | VtopError] = {}
        self._asked = ""
        self._editing = False

    def compose_body(self) -> ComposeResult:
        """List and detail."""
        with Container(id="columns"):
            yield Picker(id="list")
            yield Canvas(id="detail")

    def on_mount(self) -> None:
        """Reads the presets."""
        super().on_mount()
        self.reload()

    def reload(self) -> None:
        """Reads the presets again, after an edit for one."""
        presets, self._problems = self.vtop.service.presets()
        self._presets = {preset.name: preset for preset in presets}
        picker = self.query_one("#list", Picker)
        picker.chosen = picker.chosen or sensible_preset(presets, has_gpu(self.vtop.service, self.vtop.snapshot))
        self._plans.clear()
        self._asked = ""
        self._fill()
        self._plan_later()

    def _fill(self) -> None:
        items: list[tuple[str, Callable[[int], Line]]] = []
        glyphs = self.glyphs
        picker = self.query_one("#list", Picker)
        for title, members in grouped(list(self._presets.values())):
            items.append(("", lambda width, title=title: Line(" " + title, "title")))  # type: ignore[misc]
            for preset in members:
                items.append((preset.name, self._row(preset, glyphs)))
        if self._problems:
            items.append(("", lambda width: Line(" Cannot be used", "bad")))
        for problem in self._problems:
            items.append(("", lambda width, p=problem: Line("   ").add(cut(p.file, width - 4), "bad")))  # type: ignore[misc]
            items.append(("", lambda width, p=problem: Line("     ").add(cut(p.what, width - 6), "dim")))  # type: ignore[misc]
            items.append(("", lambda width, p=problem: Line("     ").add(cut(p.remedy, width - 6), "dim")))  # type: ignore[misc]
        picker.fill(items)

    def _row(self, preset: Preset, glyphs: Glyphs) -> Callable[[int], Line]:
        def draw(width: int) -> Line:
            chosen = self.query_one("#list", Picker).chosen == preset.name
            line = Line(f" {glyphs.cursor} " if chosen else "   ", "key").add(f"{cut(preset.name, 18):<18} ", "strong")
            return line.add(cut(preset.title, max(0, width - line.width - 1), glyphs.ellipsis), "dim")

        return draw

    def has_item(self) -> bool:
        """Whether a preset is chosen."""
        return bool(self._chosen())

    def _chosen(self) -> str:
        # None after the screen was left, while its plan is still being worked out.
        return next((picker.chosen for picker in self.query("#list").results(Picker)), "")

    def pulse(self) -> object:
        """Another preset, or its plan has come."""
        name = self._chosen()
        return (name, id(self._plans.get(name)))

    def paint_body(self, snapshot: Snapshot) -> None:
        """The chosen preset's plan."""
        name = self._chosen()
        preset = self._presets.get(name)
        plan = self._plans.get(name)
        glyphs = self.glyphs
        self.query_one("#list", Picker).redraw()

        def draw(width: int, height: int) -> list[Line]:
            rows = detail_rows(preset, plan, width - 2, glyphs)
            if len(rows) > height - 2:
                rows = [row for row in rows if row.spans]
            if len(rows) > height - 2:
                rest = f" {glyphs.ellipsis} the rest: vtop start {name} --dry-run"
                rows = [*rows[: height - 3], Line(rest, "dim")]
            return framed(rows, width, height, glyphs, Line(name or "Preset", "title"))

        self.query_one("#detail", Canvas).show(draw)

    @on(Picker.Moved)
    def _moved(self) -> None:
        self._plan_later()
        self.vtop.paint_soon()

    @on(Picker.Opened)
    def _opened(self) -> None:
        self.vtop.act("open")

    def _plan_later(self) -> None:
        self.set_timer(PLAN_AFTER_S, self._plan)

    def _plan(self) -> None:
        name = self._chosen()
        if not name or name in self._plans or name == self._asked:
            return
        self._asked = name

        async def ask() -> LaunchPlan | VtopError:
            try:
                return await self.vtop.service.plan_start(name)
            except VtopError as error:
                return error

        def answered(plan: LaunchPlan | VtopError) -> None:
            self._asked = ""
            self._plans[name] = plan
            self._plan()

        self.vtop.call(ask(), f"plan {name}", answered)

    def do_open(self) -> None:
        """Starts the chosen preset and goes back to where its progress is shown."""
        name = self._chosen()
        plan = self._plans.get(name)
        if isinstance(plan, LaunchPlan) and plan.refusal:
            self.vtop.notify(plan.refusal, title=f"{name} cannot start", severity="error", markup=False)
            return
        if not name:
            return
        up = (ServerState.READY, ServerState.STARTING, ServerState.DEGRADED, ServerState.STOPPING)
        if any(view.status.name == name and view.status.state in up for view in self.vtop.snapshot.servers):
            text = f"{name} is there already: x on the dashboard stops it"
            self.vtop.notify(text, severity="warning", markup=False, timeout=4)
            return
        if isinstance(plan, LaunchPlan) and plan.warnings:
            self.vtop.ask(f"Start {name}?", "\n".join(plan.warnings), "Start it", "Not now", lambda: self._go(name))
        else:
            self._go(name)

    def _go(self, name: str, overrides: Mapping[str, str] | None = None) -> None:
        self.vtop.deeds.start_preset(name, overrides)
        self.vtop.to_dashboard()

    def do_edit(self) -> None:
        """Edits the chosen preset; a shipped one is copied to the user's presets first."""
        preset = self._presets.get(self._chosen())
        if preset is None or self._editing:
            return
        self._editing = True

        async def edit() -> None:
            try:
                await edit_preset(self.vtop, preset)
            finally:
                self._editing = False

        self.vtop.calls.run(edit(), f"edit {preset.name}", lambda _: self.reload())

    def do_next_server(self) -> None:
        """Tab moves in the list here, as there is nothing else to choose."""
        self.query_one("#list", Picker).action_move(1)

    def do_previous_server(self) -> None:
        """Back in the list."""
        self.query_one("#list", Picker).action_move(-1)
