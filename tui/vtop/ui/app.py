"""The application: owns the pump and the choices of the viewer, knows nothing of how anything is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.events import Event, Key, Resize
from textual.geometry import Size
from textual.screen import Screen
from textual.timer import Timer

from vtop.clock import Clock, SystemClock
from vtop.contract import Service, playback_of
from vtop.errors import VtopError
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import ServerView, Snapshot
from vtop.ui.actions import ACTIONS, BY_ID, Situation, can_act, keymap_problems
from vtop.ui.calls import Calls, aside
from vtop.ui.deeds import Deeds
from vtop.ui.display import PAINT_RATES_HZ, DisplaySettings
from vtop.ui.glyphs import ASCII, UNICODE
from vtop.ui.layout import FRAMED_HEIGHT, FRAMED_WIDTH
from vtop.ui.page import Page
from vtop.ui.palette import Palette, VtopCommands
from vtop.ui.pump import Pump
from vtop.ui.screens.confirm import ConfirmScreen
from vtop.ui.screens.dashboard import Dashboard
from vtop.ui.theme import DARK, LIGHT
from vtop.ui.transitions import RUNNING_LOAD, Ending, WorkWatch, endings
from vtop.ui.view import View
from vtop.ui.words import selected, step_through

if TYPE_CHECKING:
    from vtop.load.progress import LoadRequest
    from vtop.ui.act import Act

CLOSE_AHEAD_S = 0.01
"""How long the service may close while the screen still stands."""

CLOSE_WITHIN_S = 0.05
"""How long it may go on closing once the terminal is given back; then it is left, and its servers live on."""

EXPORTS = ("md", "csv", "html")
"""Forms that `o` writes."""

Result = TypeVar("Result")


class VtopApp(App[int]):
    """The dashboard and control panel.

    Args:
        service: everything below the screen.
        settings: how to draw.
        clock: for ages of data.
        demo: play the demonstration until a key is pressed.
        recording: makes the facade of a recording that can be shown in place of `service`, and left again.
    """

    CSS_PATH = "app.tcss"
    TITLE = "vtop"
    COMMANDS: ClassVar[set[type[Any] | Callable[[], type[Any]]]] = {VtopCommands}
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            action.keys,
            f"act('{action.id}')",
            action.label,
            id=action.id,
            tooltip=action.help,
            show=False,
            priority=action.id in ("quit", "suspend"),
        )
        for action in ACTIONS
    ]

    def __init__(
        self,
        service: Service,
        settings: DisplaySettings | None = None,
        *,
        clock: Clock | None = None,
        demo: bool = False,
        recording: Callable[[], Service] | None = None,
    ) -> None:
        super().__init__()
        self.settings = (settings or DisplaySettings()).resolved()
        self.service = service
        self.clock: Clock = clock or SystemClock()
        self.glyphs = ASCII if self.settings.ascii else UNICODE
        self.pump = Pump()
        self.view = View(
            readonly=service.readonly,
            large=self.settings.large,
            paint_hz=self.settings.paint_hz or PAINT_RATES_HZ[2],
            window_s=self.settings.window_s,
        )
        self.load_request: LoadRequest | None = None
        """What `l` runs; the last choice made with `L`."""
        self.deleted_runs: list[str] = []
        """Runs that were deleted from the screen, the last at the end: `u` brings them back."""
        self._terminal_size: Size | None = None
        self.calls = Calls(self.report)
        self.deeds = Deeds(self)
        self.left_running: tuple[tuple[str, str], ...] = ()
        """Name and address of the servers that live on after the exit."""
        self.demo: Act | None = self._first_act() if demo else None
        self._recording = recording
        self._live: Service | None = None
        """What is measured here and now, while a recording is shown in its place."""
        self._painter: Timer | None = None
        self._before: Snapshot | None = None
        self._work = WorkWatch()
        self._close_task: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._paint_failed = ""
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        # Here, not when mounted: a change of theme styles and paints everything once more.
        self.theme = self.settings.theme if self.settings.theme in self.available_themes else DARK.name

    # Lifecycle.

    def _first_act(self) -> Act:
        from vtop.ui.demo import Demo

        return Demo(self)

    def get_default_screen(self) -> Screen[Any]:
        """The dashboard is the ground floor."""
        return Dashboard()

    async def on_mount(self) -> None:
        """Opens the service behind the first paint, never before it."""
        self.set_keymap({name: keys for name, keys in self.settings.keys.items() if name in BY_ID})
        for problem in keymap_problems(self.settings.keys):
            self.notify(problem, severity="warning", markup=False)
        if self.theme != self.settings.theme:
            self.notify(f"there is no theme {self.settings.theme}", severity="warning", markup=False)
        self.pump.connect(self.service.subscribe)
        self._painter = self.set_interval(1 / self.view.paint_hz, self.tick)
        if self.view.window_s != self.settings.__class__().window_s:
            self.service.set_window(self.view.window_s)
        # Behind the first frame: what it starts would share the processor with it.
        self.call_after_refresh(self._open_service)

    def _open_service(self) -> None:
        # Returns nothing: Textual would wait for a task that it is given, and answer no key meanwhile.
        self.calls.run(self.service.open(), "start measuring", lambda _: self._opened())

    def _opened(self) -> None:
        self.paint_soon()
        if self.demo is not None:
            self.calls.run(self._play_acts(self.demo), "demonstration")

    async def _play_acts(self, first: Act) -> None:
        await first.play()
        if not first.taken_over and self._recording is not None:
            from vtop.ui.recorded_act import RecordedAct

            self.demo = RecordedAct(self, first.pace_s)
            await self.demo.play()

    async def on_event(self, event: Event) -> None:
        """Any key takes a demonstration over, and does what it always does."""
        if isinstance(event, Key):
            if self._leaving is not None:
                return
            if self.demo is not None:
                self.demo.take_over()
        await super().on_event(event)
        if isinstance(event, Resize):
            if self._painter is not None and event.size == self._terminal_size:
                # `fg` brings the same size and a terminal without a picture; Textual paints only for another size.
                self.screen.refresh()
            self._terminal_size = event.size

    async def on_unmount(self) -> None:
        """Lets go of the service; a hung one is left behind, its servers live on either way."""
        newest = self.pump.newest if self._live is None else self._live.snapshot()
        if newest is not None and not newest.replayed:
            self.left_running = tuple(
                (view.status.name, view.status.url)
                for view in newest.servers
                if view.status.owned and view.status.state in (ServerState.READY, ServerState.STARTING)
            )
        await asyncio.wait({self._begin_close()}, timeout=CLOSE_WITHIN_S)

    def leave(self, code: int = 0) -> None:
        """Leaves: the service closes while Textual waits for its input thread, so that neither waits for the other."""

        async def ahead() -> None:
            await asyncio.wait({self._begin_close()}, timeout=CLOSE_AHEAD_S)
            self.exit(code)

        self._leaving = asyncio.get_running_loop().create_task(ahead())

    def _begin_close(self) -> asyncio.Task[None]:
        if self._close_task is None:
            self.pump.disconnect()
            self.calls.cancel()
            self._close_task = asyncio.get_running_loop().create_task(self._close_service())
        return self._close_task

    async def _close_service(self) -> None:
        services = [self.service] if self._live is None else [self.service, self._live]
        await asyncio.gather(*(service.close() for service in services), return_exceptions=True)

    # A recording in the place of what is measured here.

    @property
    def recording_offered(self) -> bool:
        """Whether there is a recording to show, or to come back from."""
        return self._recording is not None

    @property
    def recording_shown(self) -> bool:
        """Whether the recording stands in the place of what is measured here."""
        return self._live is not None

    def play_recording(self) -> bool:
        """Shows the recording from its beginning; what runs here goes on unseen. False: not now."""
        if self._recording is None or self.recording_shown:
            return False
        if self.load_running() or self.compare_running():
            self.notify("a load test or a comparison runs: wait for its end, or stop it", markup=False)
            return False
        self.to_dashboard()
        self._show_service(self._recording(), self.service)
        self.calls.run(self.service.open(), "play the recording")
        return True

    def leave_recording(self) -> None:
        """Back to what is measured here."""
        if self._live is not None:
            self.calls.run(self.service.close(), "close the recording")
            self._show_service(self._live, None)

    def _show_service(self, service: Service, live: Service | None) -> None:
        self.pump.disconnect()
        self.service, self._live = service, live
        self._before = None
        self.view.server, self.view.maximised, self.view.paused = None, "", False
        self.view.readonly = service.readonly
        self.pump.connect(service.subscribe)
        self.paint_soon()

    # Painting.

    def tick(self) -> None:
        """Paints what is new, at the chosen rate."""
        newest = self.pump.newest
        if newest is not None:
            # The clock of a recording is that of another day, or of another machine.
            age_s = 0.0 if newest.replayed else self.clock.monotonic() - newest.at_s
            self.view.data_age_s = max(0.0, age_s)
            self._tell_endings(newest)
        for ending in self._work.endings(self.service.load_progress(), self.service.compare_progress()):
            self._tell_unless_captioned(ending)
        if not self.view.paused:
            self.paint_now()

    def paint_now(self) -> None:
        """Paints the screen on top from the newest snapshot, if anything changed."""
        page = self.screen
        if not isinstance(page, Page) or not page.complete:
            return
        aged = int(self.view.data_age_s) if self.view.data_age_s >= 3 else 0
        try:
            snapshot = self.pump.take((id(page), page.size, aged, page.pulse()))
            if snapshot is None:
                return
            with self.batch_update():
                page.paint(snapshot)
        except NoMatches:
            # The tick came while vtop is being left and the screen's widgets are taken away one by one.
            return
        except Exception as error:  # A fault in one panel must not take the whole screen away.
            text = f"{type(error).__name__}: {error}"
            if text != self._paint_failed:
                self._paint_failed = text
                self.notify(text, title="This screen could not be drawn", severity="error", markup=False)

    def paint_soon(self) -> None:
        """Paints after the current message, also while paused: a key that was pressed must show its effect."""
        self.pump.again()
        self.call_later(self.paint_now)

    def _tell_endings(self, newest: Snapshot) -> None:
        if newest is self._before:
            return
        for ending in endings(self._before, newest):
            # The comparison shows each of its servers start; notices would lie over its table.
            if ending.failed or not self.compare_running():
                self._tell_unless_captioned(ending)
        self._before = newest

    def _tell_unless_captioned(self, ending: Ending) -> None:
        """While an act plays its captions tell what ends, and a notice would lie on top of them."""
        if ending.failed or not self.view.demo_caption:
            self.tell(ending)

    def tell(self, ending: Ending) -> None:
        """Says that something long has ended, with a bell if asked for."""
        self.notify(ending.text, title=ending.title, severity="error" if ending.failed else "information", markup=False)
        if self.settings.bell:
            self.bell()

    def set_paint_rate(self, by: int) -> None:
        """The next paint rate above (1) or below (-1); beyond the last one it stays as it is."""
        now = self.view.paint_hz
        further = [rate for rate in PAINT_RATES_HZ[::by] if (rate - now) * by > 0]
        self.view.paint_hz = further[0] if further else now
        if self._painter is not None:
            self._painter.stop()
        self._painter = self.set_interval(1 / self.view.paint_hz, self.tick)
        self.notify(f"painting {self.view.paint_hz:g} times a second", markup=False, timeout=2)

    # What is selected, and what can be done.

    @property
    def snapshot(self) -> Snapshot:
        """The newest one that reached the screen."""
        return self.pump.newest or self.service.snapshot()

    def server_in(self, snapshot: Snapshot) -> ServerView | None:
        """The selected server of a snapshot."""
        return selected(snapshot, self.view.server)

    def select(self, by: int) -> None:
        """Selects the next server; every screen follows."""
        snapshot = self.snapshot
        names = [view.status.name for view in snapshot.servers]
        now = self.server_in(snapshot)
        if names and now is not None:
            self.view.server = step_through(names, now.status.name, by)
            self.paint_soon()

    def load_running(self) -> bool:
        """Whether a load test goes on."""
        progress = self.service.load_progress()
        return progress is not None and progress.state in RUNNING_LOAD

    def compare_running(self) -> bool:
        """Whether a comparison goes on."""
        progress = self.service.compare_progress()
        return progress is not None and progress.state == "running"

    def situation(self, page: Screen[Any] | None = None) -> Situation:
        """What decides which actions are possible."""
        page = page or self.screen
        snapshot = self.pump.newest
        return Situation(
            screen=page.action_name() if isinstance(page, Page) else "",
            server=self.server_in(snapshot) if snapshot else None,
            servers=len(snapshot.servers) if snapshot else 0,
            load_running=self.load_running(),
            compare_running=self.compare_running(),
            readonly=self.view.readonly,
            replayed=playback_of(self.service) is not None,
            recording=self.recording_offered,
            recording_shown=self.recording_shown,
            typing=page.focused is not None and page.focused.check_consume_key("q", "q"),
            item=page.has_item() if isinstance(page, Page) and page.complete else False,
            undo=page.has_undo() if isinstance(page, Page) and page.complete else False,
        )

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of what cannot be done now fall through."""
        if action == "act" and parameters:
            found = BY_ID.get(str(parameters[0]))
            if found is not None and found.mutates and self.view.readonly:
                return True
            if isinstance(self.screen, ConfirmScreen):
                return found is not None and found.id == "quit"
        return True

    def action_act(self, name: str) -> None:
        """A key of the table was pressed."""
        self.act(name)

    def act(self, name: str) -> None:
        """Does an action of the table: on the current screen if it knows how, else here."""
        if self._leaving is not None:
            # Typed after `q`: a screen that opens now would find its widgets taken away.
            return
        page = self.screen
        if isinstance(page, Page) and not page.complete:
            # Typed ahead of a screen that is just opening: it gets the key as soon as it is there.
            self.call_later(self.act, name)
            return
        action = BY_ID[name]
        now = self.situation()
        if action.mutates and now.readonly:
            where = "in a recording" if now.replayed else "with --readonly"
            self.notify(f"{action.label}: not possible {where}", severity="warning", markup=False, timeout=3)
            return
        if not can_act(action, now):
            self.deeds.explain_refusal(name, now)
            return
        method = "do_" + name.replace("-", "_")
        handler = getattr(self.screen, method, None) or getattr(self.deeds, method)
        try:
            handler()
        except Exception as error:  # Shown to the person: a key that fails must not end the screen.
            self.report(error, action.label)
        self.paint_soon()

    def call(self, call: Coroutine[Any, Any, Result], what: str, then: Callable[[Result], None] | None = None) -> None:
        """Calls the service without waiting; see `Calls.run`."""

        def done(result: Result) -> None:
            if then is not None:
                then(result)
            self.paint_soon()

        self.calls.run(call, what, done)

    def report(self, error: BaseException, what: str) -> None:
        """Shows an error: its cause and its remedy, literally."""
        if isinstance(error, NoMatches):
            # An answer came for a screen that has been left meanwhile.
            return
        if isinstance(error, VtopError):
            text = f"{error.what}\n{error.remedy}" if error.remedy else error.what
        else:
            text = f"{type(error).__name__}: {error}"
        self.notify(text, title=what, severity="error", timeout=12, markup=False)

    def one_chart(self) -> bool:
        """Whether the terminal has room for one of the three charts only."""
        width, height = self.size
        return not (width >= FRAMED_WIDTH and height >= FRAMED_HEIGHT)

    def open_page(self, page: Page) -> None:
        """Shows a screen above the dashboard; one that is open already is come back to, never stacked twice."""
        for index, open_page in enumerate(self.screen_stack):
            if type(open_page) is type(page) and index > 0:
                while self.screen is not open_page:
                    self.pop_screen()
                break
        if type(self.screen) is type(page):
            self.switch_screen(page)
        else:
            self.push_screen(page)

    def to_dashboard(self) -> None:
        """Closes every screen above the dashboard."""
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def ask(self, question: str, detail: str, yes: str, no: str, then: Callable[[], None]) -> None:
        """Asks before something is destroyed; `then` runs only on a yes."""

        def answered(answer: bool | None) -> None:
            if answer:
                then()

        self.push_screen(ConfirmScreen(question, detail, yes, no), answered)

    def export_run(self, run_id: str) -> None:
        """Writes every form of a report and says where."""
        service = self.service
        self.notify("writing Markdown, CSV and HTML ...", markup=False, timeout=1.5)

        async def write() -> list[str]:
            return [await aside(lambda kind=kind: service.export(run_id, kind)) for kind in EXPORTS]  # type: ignore[misc]

        self.call(
            write(), "export", lambda paths: self.notify("\n".join(paths), title="Exported", timeout=12, markup=False)
        )

    async def push_screen_wait_here(self, screen: ConfirmScreen) -> bool:
        """Asks and waits for the answer, from a call of `Calls`, which is no worker of Textual."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.push_screen(screen, lambda yes: answer.set_result(bool(yes)) if not answer.done() else None)
        return await answer

    def action_command_palette(self) -> None:
        """Every action by name."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())
