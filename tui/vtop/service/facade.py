"""The facade behind `contract.Service`: puts servers, telemetry, load and comparisons together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vtop import secrets
from vtop.clock import Clock, SystemClock
from vtop.contract import ChatEvent, LaunchPlan, LoadShapeInfo, PresetProblem, RunSummary, WorkloadInfo
from vtop.errors import UsageError, VtopError
from vtop.load.progress import LoadProgress, LoadRequest, LoadResult
from vtop.presets import Preset
from vtop.results import store
from vtop.results.comparison import CompareProgress, CompareRequest
from vtop.servers.durations import last_start
from vtop.servers.logs import last_lines
from vtop.servers.status import ServerState, ServerStatus, StopReport
from vtop.servers.supervisor import Supervisor
from vtop.service.aiming import Aim
from vtop.service.gpu_memory import memory_left, users_of
from vtop.service.judging import Judge
from vtop.service.launching import Launch, Launcher
from vtop.service.measuring import Claim, Measurements
from vtop.service.options import ServiceOptions
from vtop.service.remains import Remains, find_remains
from vtop.service.remembering import (
    StartWords,
    recall_start,
    remember_preset,
    remember_scratch,
    remember_start,
    remove_scratch,
)
from vtop.service.watching import Watch, access_to, make_hub
from vtop.service.windows import LoadWindows
from vtop.telemetry.snapshot import Snapshot
from vtop.vllm.launch import LaunchCommand

if TYPE_CHECKING:
    from vtop.load.runner import LoadRunner
    from vtop.service.comparing import Comparisons
    from vtop.telemetry.recording import Recorder

CLOSE_WITHIN_S = 0.3
"""Quitting never waits longer, whatever hangs."""


class VtopService:
    """See `contract.Service`."""

    def __init__(self, options: ServiceOptions | None = None, *, clock: Clock | None = None) -> None:
        self.options = options or ServiceOptions()
        self._clock = clock or SystemClock()
        self.supervisor = Supervisor(
            clock=self._clock,
            gpu_check=lambda pids: memory_left(self._watch, pids),
            gpu_users=lambda uuids, without: users_of(self._watch.gpu_frame(), uuids, without),
        )
        self._watch = Watch(self.options, self.supervisor, lambda: self.hub.snapshot())
        self.launcher = Launcher(self.options, self._watch.gpu_frame)
        judge = Judge(self.load_progress)
        self.hub = make_hub(self.options, self._clock, self._watch, self.supervisor, judge)
        self.measurements = Measurements(clock=self._clock)
        self._aim = Aim(self._watch.statuses, access_to(self.options, self.supervisor), self.measurements)
        self._windows = LoadWindows(self._clock, self._aim.access, self.hub.joules)
        self._runner: LoadRunner | None = None
        self._comparisons: Comparisons | None = None
        self._claim_of_load: asyncio.Task[None] | None = None
        self.supervisor.before_stop.append(self._release)
        self._unsubscribe: Callable[[], None] | None = None
        self._recorder: Recorder | None = None
        self._commands: dict[str, tuple[LaunchCommand, ...]] = {}

    @property
    def readonly(self) -> bool:
        """See `contract.Service`."""
        return self.options.readonly

    @property
    def simulated(self) -> bool:
        """See `contract.Service`."""
        return self.options.simulated

    # Life

    async def open(self) -> None:
        """See `contract.Service`."""
        await self.supervisor.open()
        await self._watch.open()
        await self.hub.open()
        self._unsubscribe = self.hub.subscribe(self._windows.take)
        if self.options.record:
            from vtop.telemetry.recording import Recorder

            self._recorder = Recorder(self.options.record, self._clock)
            self.hub.subscribe(self._recorder.write)

    async def close(self) -> None:
        """See `contract.Service`."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        parts = (
            *([self._comparisons.close()] if self._comparisons is not None else []),
            *([self._runner.close()] if self._runner is not None else []),
            self._windows.close(),
            self.hub.close(),
            self._watch.close(),
        )
        tasks = [asyncio.ensure_future(part) for part in (*parts, self.supervisor.close())]
        _, late = await asyncio.wait(tasks, timeout=CLOSE_WITHIN_S)
        for task in late:
            task.cancel()
        if self._claim_of_load is not None:
            self._claim_of_load.cancel()
            await asyncio.wait({self._claim_of_load}, timeout=0.05)
        if self._recorder is not None:
            self._recorder.close()

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """See `contract.Service`."""
        return self.hub.subscribe(callback)

    def snapshot(self) -> Snapshot:
        """See `contract.Service`."""
        return self.hub.snapshot()

    def set_window(self, seconds: float) -> None:
        """See `contract.Service`."""
        self.hub.set_window(seconds)

    # Servers

    def presets(self) -> tuple[Sequence[Preset], Sequence[PresetProblem]]:
        """See `contract.Service`."""
        catalog = self.launcher.catalog()
        problems = [PresetProblem(file=p.file, what=p.what, remedy=p.remedy) for p in catalog.problems]
        return tuple(catalog.presets.values()), problems

    def statuses(self) -> tuple[ServerStatus, ...]:
        """All servers now: vtop's own, then those of others."""
        return self._watch.statuses()

    def known(self, name: str) -> ServerStatus:
        """A server by its name.

        Raises:
            UsageError: nobody knows it.
        """
        statuses = self._watch.statuses()
        for status in statuses:
            if status.name == name:
                return status
        names = ", ".join(status.name for status in statuses) or "none"
        raise UsageError(f"no server is called {name}", f"Known: {names}.")

    def _prepare(self, preset: str, overrides: Mapping[str, str] | None, name: str, **choices: Any) -> Launch:
        chosen = self.launcher.preset(preset, overrides)
        taken = [s.port for s in self.supervisor.statuses() if s.port and s.state is not ServerState.STOPPED]
        return self.launcher.launch(chosen, name, taken_ports=taken, **choices)

    async def plan_start(
        self, preset: str, overrides: Mapping[str, str] | None = None, name: str | None = None, **choices: Any
    ) -> LaunchPlan:
        """See `contract.Service`; `choices` are those of `Launcher.launch`."""
        name = name or preset
        try:
            launch = await asyncio.to_thread(self._prepare, preset, overrides, name, **choices)
        except VtopError as error:
            return LaunchPlan(preset=preset, name=name, commands=(), refusal=str(error), simulated=self.simulated)
        from vtop.service.fitting import fit_lines

        command = launch.commands[0]
        last = last_start(preset, command.version, command.simulated)
        fit = fit_lines(launch, self.launcher.card())
        plan = await asyncio.to_thread(self.launcher.plan, launch, name, last.total_s if last else None, fit)
        own = [f"{left.text}. {left.remedy}" for left in await self.remains() if left.name]
        return replace(plan, warnings=(*plan.warnings, *own))

    async def remains(self) -> tuple[Remains, ...]:
        """Processes that outlived their server, with what they hold."""
        return await asyncio.to_thread(find_remains, self._watch.statuses(), self._watch.gpu_frame())

    def _may_change(self) -> None:
        if self.readonly:
            raise VtopError("vtop was started with --readonly", "Start it without, to change anything.")

    async def start_server(
        self, preset: str, overrides: Mapping[str, str] | None = None, name: str | None = None, **choices: Any
    ) -> str:
        """See `contract.Service`; `choices` are those of `Launcher.launch`."""
        self._may_change()
        name = name or preset
        launch = await asyncio.to_thread(self._prepare, preset, overrides, name, **choices)
        await self.supervisor.start(name, preset, launch.commands)
        remember_preset(name, launch.preset)
        remember_scratch(name, tuple(folder for command in launch.commands for folder in command.scratch_folders))
        words = StartWords(
            preset=preset,
            overrides=dict(overrides or {}),
            simulated=launch.commands[0].simulated,
            gpu=choices.get("gpu") or (self.options.gpu if launch.commands[0].simulated else None),
            vllm=choices.get("vllm") or self.options.vllm,
        )
        remember_start(name, words)
        self._commands[name] = launch.commands
        return name

    async def start_again(self, name: str, changes: Mapping[str, str]) -> str:
        """See `contract.Service`."""
        self._may_change()
        status = self.known(name)
        whole = status.deployment or name
        words = recall_start(whole)
        if words is None:
            raise VtopError(f"how {whole} was started is not known", "Start it from its preset.")
        return await self.start_server(
            words.preset,
            {**words.overrides, **changes},
            whole,
            simulated=words.simulated,
            gpu=words.gpu,
            vllm=words.vllm,
        )

    def command_of(self, name: str) -> tuple[str, ...]:
        """How a server of this vtop was started, in words; empty where that is not known."""
        return _displayed(self._commands.get(name, ()))

    def command_lines(
        self, preset: str, overrides: Mapping[str, str] | None = None, name: str | None = None, **choices: Any
    ) -> tuple[str, ...]:
        """What a start would run, as a shell would take it.

        Raises:
            VtopError: it cannot be started.
        """
        launch = self._prepare(preset, overrides, name or preset, **choices)
        return _displayed(launch.commands)

    async def stop_server(self, name: str) -> StopReport:
        """See `contract.Service`."""
        self._may_change()
        status = self.known(name)
        if not status.owned:
            raise VtopError(f"{name} was started by somebody else: vtop watches it and never stops it")
        report = await self.supervisor.stop(name)
        if report.stopped:
            await asyncio.to_thread(remove_scratch, name)
        return report

    async def forget_server(self, name: str) -> None:
        """See `contract.Service`."""
        self._may_change()
        await self.supervisor.forget(name)

    def log_lines(self, name: str, last: int = 2000) -> Sequence[str]:
        """See `contract.Service`."""
        if not self.known(name).owned:
            return ("The log of a server that vtop did not start is not known here.",)
        return last_lines(self.supervisor.log_path(name), last)

    async def _release(self, name: str) -> None:
        """Before a server is stopped vtop's own streams to it end: an open stream makes vLLM's stop hang."""
        progress = self.load_progress()
        if progress is not None and self.load_running and progress.request.server == name:
            await self._loads.stop()
            with contextlib.suppress(VtopError, TimeoutError):
                async with asyncio.timeout(6.0):
                    await self._loads.wait()

    # Load tests

    @property
    def _loads(self) -> LoadRunner:
        if self._runner is None:
            # As with comparisons: a session that only watches carries no load generator.
            from vtop.load.runner import LoadRunner

            self._runner = LoadRunner(clock=self._clock, server_window=self._windows.read)
            self._windows.record_into(self._runner)
        return self._runner

    def workloads(self) -> Sequence[WorkloadInfo]:
        """See `contract.Service`."""
        from vtop.load.workload import WORKLOADS

        return [WorkloadInfo(name, w.title, w.summary) for name, w in WORKLOADS.items()]

    def load_shapes(self) -> Sequence[LoadShapeInfo]:
        """See `contract.Service`."""
        from vtop.load.shapes import load_shapes

        return [LoadShapeInfo(s.name, s.title, s.summary, s.request()) for s in load_shapes().shapes.values()]

    def aim(self, request: LoadRequest) -> LoadRequest:
        """Fills address, model and mark in from the server that is named.

        Raises:
            VtopError: the server is not ready, or nobody knows it.
        """
        if request.server is None:
            return self._aim.by_url(request)
        return self._aim.at_server(request, self.known(request.server))

    async def start_load(self, request: LoadRequest) -> str:
        """See `contract.Service`."""
        self._may_change()
        if self._comparisons is not None and self._comparisons.running:
            raise VtopError("a comparison is running", "Wait for its end, or stop it: both would measure each other.")
        aimed = self.aim(request)
        claim = None if self.load_running else await asyncio.to_thread(self._aim.claim, aimed)
        try:
            run_id = await self.start_aimed_load(aimed)
        except BaseException:
            if claim is not None:
                claim.release()
            raise
        if claim is not None:
            self._claim_of_load = asyncio.create_task(self._release_after_load(claim))
        return run_id

    async def start_aimed_load(self, request: LoadRequest) -> str:
        """Starts a load test that has been aimed, for a caller that has claimed what it loads.

        Raises:
            VtopError: it cannot be started.
        """
        self._windows.aim(request)
        await self._windows.looked()
        return await self._loads.start(request)

    async def _release_after_load(self, claim: Claim) -> None:
        try:
            with contextlib.suppress(VtopError):
                await self._loads.wait()
        finally:
            claim.release()

    def follow_load(self, callback: Callable[[LoadProgress], None]) -> Callable[[], None]:
        """Calls back with each new state of load tests; returns the way to stop it."""
        return self._loads.on_progress(callback)

    def load_progress(self) -> LoadProgress | None:
        """See `contract.Service`."""
        return self._runner.progress() if self._runner is not None else None

    @property
    def load_running(self) -> bool:
        """Whether a load test is running now."""
        return self._runner is not None and self._runner.running

    async def stop_load(self) -> None:
        """See `contract.Service`."""
        if self._runner is not None:
            await self._runner.stop()

    async def wait_load(self) -> LoadResult:
        """The result of the running load test.

        Raises:
            VtopError: it could not be run.
        """
        return await self._loads.wait()

    def load_result(self, run_id: str) -> LoadResult:
        """See `contract.Service`."""
        return store.load_result(run_id)

    def runs(self) -> Sequence[RunSummary]:
        """See `contract.Service`."""
        return [
            RunSummary(e.run_id, e.kind, e.title, e.at_wall_s, e.simulated, e.complete, e.headline)
            for e in store.list_runs()
        ]

    def delete_run(self, run_id: str) -> None:
        """See `contract.Service`."""
        self._may_change()
        store.delete_run(run_id)

    def restore_run(self, run_id: str) -> None:
        """See `contract.Service`."""
        self._may_change()
        store.restore_run(run_id)

    def run_timeline(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """See `contract.Service`."""
        return store.load_timeline(run_id)

    # Comparisons

    def _compare(self) -> Comparisons:
        if self._comparisons is None:
            # What only some sessions do is imported when it is done: the first paint does not wait for it.
            from vtop.service.comparing import Comparisons

            self._comparisons = Comparisons(self)
        return self._comparisons

    async def plan_compare(self, request: CompareRequest) -> CompareProgress:
        """See `contract.Service`."""
        return await self._compare().plan(request)

    async def start_compare(self, request: CompareRequest) -> str:
        """See `contract.Service`."""
        self._may_change()
        return await self._compare().start(request)

    def compare_result(self, run_id: str) -> CompareProgress:
        """See `contract.Service`."""
        from vtop.compare.saved import saved_comparison

        return saved_comparison(store.run_directory(run_id))

    async def resume_compare(self, run_id: str) -> str:
        """See `contract.Service`."""
        self._may_change()
        return await self._compare().resume(run_id)

    def compare_progress(self) -> CompareProgress | None:
        """See `contract.Service`."""
        return self._comparisons.progress() if self._comparisons is not None else None

    async def wait_compare(self) -> CompareProgress:
        """The end of the running comparison."""
        return await self._compare().wait()

    async def stop_compare(self) -> None:
        """See `contract.Service`."""
        if self._comparisons is not None:
            await self._comparisons.stop()

    def export(self, run_id: str, kind: str, path: str | None = None) -> str:
        """See `contract.Service`."""
        from vtop.service.exporting import export_run

        return export_run(run_id, kind, path)

    # Chat

    async def chat(self, name: str, prompt: str) -> AsyncIterator[ChatEvent]:
        """See `contract.Service`."""
        status = self.known(name)
        from vtop.service.chatting import stream_chat

        access = self._aim.access(status.url)
        key = secrets.resolve(access.api_key) if access is not None else None
        ca_file = access.ca_file if access is not None else None
        stream = stream_chat(status.url, status.model or "", prompt, api_key=key, ca_file=ca_file)
        async for event in stream:
            yield event


def _displayed(commands: Sequence[LaunchCommand]) -> tuple[str, ...]:
    from vtop.vllm.dialect import display

    return tuple(display(command) for command in commands)
