"""What the keys do: questions before what destroys, calls of the service, and the screens that show the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual.app import SuspendNotSupported

from vtop import units
from vtop.contract import playback_of
from vtop.secrets import without_user
from vtop.servers.status import ServerState, StopReport
from vtop.telemetry.snapshot import ServerView
from vtop.ui.actions import Situation
from vtop.ui.display import WINDOWS_S
from vtop.ui.words import step_through

if TYPE_CHECKING:
    from vtop.load.progress import LoadRequest
    from vtop.ui.app import VtopApp


SEEK_S = 10.0
"""One step in a recording."""

STOP_PATIENCE_S = 20.0
"""How long a comparison may take to stop its server before the screen is left anyway."""


NEWS_PATIENCE_S = 1.5
"""How long the exit waits for a snapshot without the stopped server, to say truly what keeps running."""


class Deeds:
    """One method an action of the table, named `do_` and its id; a screen may have its own, which goes first."""

    def __init__(self, app: VtopApp) -> None:
        self.app = app
        self._leaving = False

    # Servers.

    def do_start(self) -> None:
        """The start screen."""
        from vtop.ui.screens.start import StartScreen

        self.app.open_page(StartScreen())

    def start_preset(self, preset: str, overrides: Mapping[str, str] | None = None) -> None:
        """Starts a preset and selects its server; progress comes with the snapshots."""

        def started(name: str) -> None:
            self.app.view.server = name

        self.app.call(self.app.service.start_server(preset, overrides), f"start {preset}", started)

    def do_stop(self) -> None:
        """Asks, then stops the selected server."""
        server = self._server()
        if server is not None:
            self.ask_stop(server.status.name)

    def ask_stop(self, name: str) -> None:
        """Asks before a server is stopped."""
        view = next((v for v in self.app.snapshot.servers if v.status.name == name), None)
        lines = []
        if view is not None and view.status.state is ServerState.STARTING:
            lines.append("It is still starting; the start is cancelled.")
        engine = view.engine if view else None
        if engine is not None and (engine.running or engine.waiting):
            lines.append(f"{units.count((engine.running or 0) + (engine.waiting or 0))} requests are under way.")
        progress = self.app.service.load_progress()
        if self.app.load_running() and progress is not None and progress.request.server == name:
            lines.append("A load test runs on it; what it measured is kept.")
        lines.append("Its processes are ended and the GPU memory is checked to be free again.")
        self.app.ask(f"Stop {name}?", "\n".join(lines), "Stop it", "Keep it", lambda: self.stop(name))

    def stop(self, name: str) -> None:
        """Stops a server and says what the stop really did."""

        def stopped(report: StopReport) -> None:
            if report.stopped and not report.left:
                self.app.notify(f"stopped after {units.duration(report.seconds)}", title=name, markup=False)
            else:
                text = "\n".join(report.left) or "it did not stop"
                self.app.notify(text, title=f"{name}: not everything ended", severity="error", timeout=15, markup=False)

        self.app.call(self.app.service.stop_server(name), f"stop {name}", stopped)

    def do_forget(self) -> None:
        """Drops a dead server from the list."""
        server = self._server()
        if server is not None:
            name = server.status.name
            self.app.ask(
                f"Forget {name}?",
                "It leaves the list and its log is deleted.",
                "Forget it",
                "Keep it",
                lambda: self.app.call(self.app.service.forget_server(name), f"forget {name}"),
            )

    def do_remedy(self) -> None:
        """Applies the first remedy that is a change of settings, after showing it."""
        server = self._server()
        if server is None or server.status.diagnosis is None or server.status.preset is None:
            return
        name = server.status.name
        remedy = next((item for item in server.status.diagnosis.remedies if item.overrides), None)
        if remedy is None:
            return
        changes = "\n".join(f"{key} = {value}" for key, value in remedy.overrides)
        self.app.ask(
            f"Start {name} again with this change?",
            f"{server.status.diagnosis.headline}\n{changes}",
            "Start",
            "Not now",
            lambda: self.app.call(self.app.service.start_again(name, dict(remedy.overrides)), f"start {name}"),
        )

    def do_logs(self) -> None:
        """The log of the selected server."""
        from vtop.ui.screens.logs import LogsScreen

        self.app.open_page(LogsScreen())

    def do_chat(self) -> None:
        """One prompt to the selected server."""
        from vtop.ui.screens.chat import ChatScreen

        self.app.open_page(ChatScreen())

    # Measuring.

    def do_load(self) -> None:
        """Runs the default (or last chosen) load test at once, or shows the one that runs."""
        from vtop.ui.screens.load import LoadScreen

        if self.app.load_running():
            self.app.open_page(LoadScreen())
            return
        server = self._server()
        if server is not None:
            self.start_load(self.app.load_request or self._usual_load(), server)

    def _usual_load(self) -> LoadRequest:
        from vtop.load.progress import LoadRequest

        return LoadRequest()

    def start_load(self, request: LoadRequest, server: ServerView) -> None:
        """Starts a load test on a server; somebody else's server is only loaded after a question."""
        from vtop.ui.screens.load import LoadScreen

        status = server.status
        engine = server.engine
        aimed = replace(
            request,
            url=status.url,
            model=status.model or (engine.model_name if engine else ""),
            server=status.name if status.owned else None,
            simulated=status.simulated,
        )

        def go() -> None:
            self.app.call(self.app.service.start_load(aimed), "load test", lambda _: self.app.open_page(LoadScreen()))

        if status.owned:
            go()
        else:
            self.app.ask(
                f"Send load to {without_user(status.url)}?",
                "vtop did not start this server; others may be using it.",
                "Load it",
                "Leave it",
                go,
            )

    def do_choose_load(self) -> None:
        """The choice of workload and its size."""
        from vtop.ui.screens.choose_load import ChooseLoadScreen

        self.app.open_page(ChooseLoadScreen())

    def do_compare(self) -> None:
        """The comparison: the plan, or the one that runs."""
        from vtop.ui.screens.compare import CompareScreen

        self.app.open_page(CompareScreen())

    def do_experiments(self) -> None:
        """The guided experiments."""
        from vtop.ui.screens.experiments import ExperimentsScreen

        self.app.open_page(ExperimentsScreen())

    def do_runs(self) -> None:
        """Saved runs."""
        from vtop.ui.screens.runs import RunsScreen

        self.app.open_page(RunsScreen())

    # Looking.

    def do_explain(self) -> None:
        """The verdict's arithmetic and every reading."""
        from vtop.ui.screens.explain import ExplainScreen

        self.app.open_page(ExplainScreen())

    def do_help(self) -> None:
        """Keys, and what the numbers mean."""
        from vtop.ui.screens.help import HelpScreen

        self.app.open_page(HelpScreen())

    def do_window(self) -> None:
        """The next window for rates and percentiles."""
        if playback_of(self.app.service) is not None:
            text = f"a recording keeps the window that it was made with: {self.app.snapshot.window_s:.0f} s"
            self.app.notify(text, severity="warning", markup=False, timeout=3)
            return
        view = self.app.view
        view.window_s = step_through(WINDOWS_S, view.window_s)
        self.app.service.set_window(view.window_s)
        self.app.notify(f"rates and percentiles over {view.window_s:.0f} s", markup=False, timeout=2)

    def do_pause(self) -> None:
        """Freezes the picture, or goes on."""
        self.app.view.paused = not self.app.view.paused
        recording = playback_of(self.app.service)
        if recording is not None:
            if self.app.view.paused:
                recording.pause()
            else:
                recording.resume()

    def do_rewind(self) -> None:
        """Back in a recording."""
        self._seek(-SEEK_S)

    def do_forward(self) -> None:
        """On in a recording."""
        self._seek(SEEK_S)

    def _seek(self, seconds: float) -> None:
        recording = playback_of(self.app.service)
        if recording is None:
            return
        recording.seek(recording.position_s + seconds)
        where = f"{units.elapsed(recording.position_s)} of {units.elapsed(recording.duration_s)}"
        self.app.notify(where, markup=False, timeout=2)

    def do_recording(self) -> None:
        """The recording, and back."""
        self.app.to_dashboard()
        if self.app.recording_shown:
            self.app.leave_recording()
        else:
            self.app.play_recording()

    def do_faster(self) -> None:
        """More paints a second."""
        self.app.set_paint_rate(1)

    def do_slower(self) -> None:
        """Fewer paints a second."""
        self.app.set_paint_rate(-1)

    def do_large(self) -> None:
        """Large numbers on and off."""
        self.app.to_dashboard()
        self.app.view.large = not self.app.view.large

    def do_chart_1(self) -> None:
        """TTFT."""
        self._chart(0)

    def do_chart_2(self) -> None:
        """TPOT."""
        self._chart(1)

    def do_chart_3(self) -> None:
        """Output."""
        self._chart(2)

    def _chart(self, index: int) -> None:
        view = self.app.view
        self.app.to_dashboard()
        if view.maximised == "chart":
            if view.chart == index:
                view.maximised = ""
        elif view.chart == index or not self.app.one_chart():
            view.maximised = "chart"
        view.chart = index

    def do_panel_gpus(self) -> None:
        """The GPU panel on the full screen."""
        self._maximise("gpus")

    def do_panel_servers(self) -> None:
        """The server list on the full screen."""
        self._maximise("servers")

    def do_panel_engine(self) -> None:
        """The engine on the full screen."""
        self._maximise("engine")

    def _maximise(self, panel: str) -> None:
        self.app.to_dashboard()
        self.app.view.maximised = "" if self.app.view.maximised == panel else panel

    def do_gpus_down(self) -> None:
        """Further down the list of GPUs."""
        self.app.view.gpu_scroll = min(max(0, len(self.app.snapshot.gpus) - 1), self.app.view.gpu_scroll + 4)

    def do_gpus_up(self) -> None:
        """Back up the list of GPUs."""
        self.app.view.gpu_scroll = max(0, self.app.view.gpu_scroll - 4)

    # Moving.

    def do_next_server(self) -> None:
        """The next server."""
        self.app.select(1)

    def do_previous_server(self) -> None:
        """The server before."""
        self.app.select(-1)

    def choose_server(self, name: str) -> None:
        """Selects a server by name."""
        self.app.view.server = name
        self.app.paint_soon()

    def do_open(self) -> None:
        """Opens the selected server: its log where that says more, else the explanation."""
        server = self._server()
        if server is None:
            return
        if server.status.state in (ServerState.STARTING, ServerState.FAILED) and server.status.log_path:
            self.do_logs()
        else:
            self.do_explain()

    def do_back(self) -> None:
        """One screen back; on the dashboard, out of a maximised panel."""
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()
        else:
            self.app.view.maximised = ""

    # The program itself.

    def do_picture(self) -> None:
        """Saves the screen as it is."""
        from vtop.ui.screenshot import save_picture

        self.app.notify(f"saved {save_picture(self.app)}", markup=False)

    def do_suspend(self) -> None:
        """Puts vtop in the background."""
        try:
            self.app.action_suspend_process()
        except SuspendNotSupported:
            self.app.notify("this terminal cannot suspend a program", severity="warning", markup=False)

    def do_quit(self) -> None:
        """Leaves; asks first where a load test or a comparison would be cut, and lets it save what it has."""
        app = self.app
        if self._leaving:
            app.leave()
        elif app.compare_running():
            # First: the load test that runs then is the comparison's own.
            app.ask(
                "Leave while a comparison runs?",
                "It is stopped and its servers end; finished runs are kept.",
                "Leave",
                "Stay",
                lambda: self._stop_and_leave(app.service.stop_compare(), NEWS_PATIENCE_S),
            )
        elif app.load_running():
            app.ask(
                "Leave while a load test runs?",
                "The test is stopped; what was measured is kept. Servers keep running.",
                "Leave",
                "Stay",
                lambda: self._stop_and_leave(app.service.stop_load()),
            )
        else:
            app.leave()

    def _stop_and_leave(self, stop: Coroutine[Any, Any, None], news_s: float = 0.0) -> None:
        """Leaves after the work has stopped; a second `q` does not wait for it."""
        app = self.app
        app.notify("stopping and saving; q once more leaves at once", markup=False)

        async def stopped() -> None:
            try:
                await asyncio.wait_for(stop, STOP_PATIENCE_S)
                if news_s:
                    await app.pump.newer(news_s)
            finally:
                app.leave()

        app.calls.run(stopped(), "stop before leaving")
        self._leaving = True

    # Help for keys that cannot act.

    def explain_refusal(self, name: str, now: Situation) -> None:
        """Says in a few words why a key does nothing here."""
        reason = REFUSALS.get(name)
        if reason is None:
            return
        if now.server is None and name in ("stop", "load", "choose-load", "logs", "chat", "explain"):
            reason = "there is no server yet: s starts one"
        elif name == "open" and now.screen == "compare":
            reason = "pick two presets or more with space"
        elif name == "open" and now.screen == "cut-comparison":
            reason = "it cannot be gone on with: not possible with --readonly"
        elif name == "stop" and now.state is ServerState.FOREIGN:
            reason = "vtop did not start this server, so it will not stop it"
        elif name in ("load", "choose-load") and now.compare_running:
            reason = "a comparison runs; c shows it"
        self.app.notify(reason, severity="warning", markup=False, timeout=3)

    def _server(self) -> ServerView | None:
        return self.app.server_in(self.app.snapshot)


REFUSALS = {
    "recording": "only `vtop demo` has a recording; `vtop replay demo` plays it",
    "stop": "this server does not run",
    "load": "a load test needs a server that is ready",
    "choose-load": "a load test needs a server that is ready",
    "logs": "vtop has no log of this server",
    "chat": "a chat needs a server that is ready",
    "explain": "there is no server to explain",
    "remedy": "there is no remedy that vtop can apply here",
    "forget": "a server that runs cannot be forgotten: x stops it",
    "open": "nothing is chosen here",
    "export": "there is nothing to export here",
    "edit": "choose a preset on the start screen (s) first",
}
"""Action -> why it cannot be done, where a person may wonder."""
