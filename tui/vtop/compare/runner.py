"""Runs a comparison: for each step start, wait until ready, warm up, load, stop; everything kept on disk as it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vtop.clock import Clock, SystemClock
from vtop.compare.asked_load import kept_for_later, load_of
from vtop.compare.plan import configurations, plan_steps, remaining_s, settled_order
from vtop.compare.record import claim, load_record, new_record, save_record, with_rows
from vtop.errors import UsageError, VtopError
from vtop.load.progress import LoadProgress, LoadRequest, LoadResult
from vtop.results.comparison import (
    CompareProgress,
    CompareRequest,
    CompareStep,
    ComparisonRecord,
    ConfigurationFacts,
    Measured,
)
from vtop.results.pictures import Picture
from vtop.servers.status import StopReport

StartServer = Callable[[str, Mapping[str, str], str], Awaitable[str]]
"""(preset, overrides, wanted server name) -> the server's name; spawns and returns."""
WaitReady = Callable[[str], Awaitable[None]]
"""Returns when the server has really answered; raises `VtopError` with the diagnosis when it fails."""
StopServer = Callable[[str], Awaitable[StopReport]]
"""Stops and verifies. A name that no server has (any more) is a stop that succeeded, not an error."""
RunLoad = Callable[[LoadRequest, Callable[[LoadProgress], None]], Awaitable[LoadResult]]
"""Warms up and measures; ends the load when it is cancelled."""
Observe = Callable[[str, str, ConfigurationFacts | None], Picture | None]
"""(label, server name, facts) -> what the server does now; None: nothing to see."""
Describe = Callable[[str, str], Awaitable[ConfigurationFacts]]
"""(preset, server name) of a ready server -> what is known of it."""

_OVER = ("done", "failed")


class CompareRunner:
    """One comparison at a time. Its servers never outlive it: they are stopped when it ends, fails or is cancelled."""

    def __init__(
        self,
        *,
        start_server: StartServer,
        wait_ready: WaitReady,
        stop_server: StopServer,
        run_load: RunLoad,
        describe: Describe | None = None,
        observe: Observe | None = None,
        last_starts_s: Mapping[str, float] | None = None,
        last_loads_s: Mapping[str, float] | None = None,
        clock: Clock | None = None,
        runs_dir: Path | None = None,
        on_progress: Callable[[CompareProgress], None] | None = None,
    ) -> None:
        """Takes what it drives.

        Args:
            start_server: see the type.
            wait_ready: see the type.
            stop_server: see the type.
            run_load: see the type.
            describe: see the type; None: nothing is known beside the runs.
            observe: see the type; called while a load runs.
            last_starts_s: preset -> how long its last start took, for the estimate.
            last_loads_s: preset -> how long its last load of this workload took.
            clock: the source of time.
            runs_dir: where runs are kept; None: the usual place.
            on_progress: called with every change.
        """
        self._start_server, self._wait_ready, self._stop_server = start_server, wait_ready, stop_server
        self._run_load, self._describe, self._observe = run_load, describe, observe
        self._pictures: dict[str, Picture] = {}
        self._last_starts_s, self._last_loads_s = dict(last_starts_s or {}), dict(last_loads_s or {})
        self._clock = clock or SystemClock()
        self._runs_dir = runs_dir
        self._on_progress = on_progress
        self._record: ComparisonRecord | None = None
        self._task: asyncio.Task[None] | None = None
        self._began_s = 0.0
        self._before_s = 0.0
        self._stopping = False
        self._up: str | None = None
        """Label of the configuration whose server is up."""

    @property
    def running(self) -> bool:
        """Whether a comparison is on."""
        return self._task is not None and not self._task.done()

    def plan(self, request: CompareRequest) -> CompareProgress:
        """The steps and the time they will take; starts and writes nothing.

        Raises:
            UsageError: fewer than two presets, no round, an unknown order.
        """
        order = settled_order(request, self._last_starts_s, self._last_loads_s)
        labelled = configurations(request.presets)
        steps = plan_steps([label for label, _ in labelled], request.repeats, order)
        starts, loads = self._last_times(labelled)
        return CompareProgress(
            run_id="",
            request=replace(kept_for_later(request), order=order),
            state="planned",
            steps=steps,
            rows=(),
            elapsed_s=0.0,
            expected_s=remaining_s(steps, order, starts, loads),
            simulated=request.simulated,
        )

    def start(self, request: CompareRequest) -> str:
        """Begins a comparison in the background; returns its id.

        Raises:
            UsageError: one is running already, or the request makes no sense.
            VtopError: nothing can be saved.
        """
        self._must_be_idle()
        order = settled_order(request, self._last_starts_s, self._last_loads_s)
        return self._launch(new_record(request, order, self._clock.wall(), self._runs_dir))

    def resume(self, directory: Path) -> str:
        """Goes on with a comparison that was cut: steps that are done stay, a step that was cut is made again.

        Raises:
            UsageError: one is running already.
            VtopError: there is none, it is finished, or another vtop runs it.
        """
        self._must_be_idle()
        record = load_record(directory)
        if all(step.state in _OVER for step in record.steps):
            raise VtopError(f"the comparison {record.run_id} is finished", f"See it: vtop report {record.run_id}")
        steps = tuple(
            step if step.state in _OVER else replace(step, state="waiting", detail="") for step in record.steps
        )
        return self._launch(replace(record, steps=steps, message=""))

    def progress(self) -> CompareProgress | None:
        """The running (or last) comparison."""
        record = self._record
        if record is None:
            return None
        elapsed = self._elapsed_s()
        labelled = configurations(record.request.presets)
        starts, loads = self._last_times(labelled)
        left = remaining_s(
            record.steps, record.request.order, starts | dict(record.started_s), loads | dict(record.loaded_s)
        )
        return CompareProgress(
            run_id=record.run_id,
            request=record.request,
            state=record.state,
            steps=record.steps,
            rows=record.rows,
            elapsed_s=elapsed,
            expected_s=None if left is None else elapsed + left,
            message=record.message,
            warnings=record.warnings,
            simulated=record.simulated,
            directory=record.directory,
            pictures=tuple(self._pictures[label] for label, _ in labelled if label in self._pictures),
            repeat_command=record.repeat_command,
        )

    async def wait(self) -> CompareProgress | None:
        """Waits until the comparison has ended and its server is stopped."""
        if self._task is not None:
            await asyncio.wait([self._task])
        return self.progress()

    async def stop(self) -> None:
        """Ends it, keeps what was measured, and leaves no server of it behind."""
        if self._task is None or self._task.done():
            return
        self._stopping = True
        self._task.cancel()
        await asyncio.wait([self._task])

    def _must_be_idle(self) -> None:
        if self.running:
            raise UsageError("a comparison is running already", "Wait for its end, or stop it.")

    def _last_times(self, labelled: tuple[tuple[str, str], ...]) -> tuple[dict[str, float], dict[str, float]]:
        starts = {label: self._last_starts_s[preset] for label, preset in labelled if preset in self._last_starts_s}
        loads = {label: self._last_loads_s[preset] for label, preset in labelled if preset in self._last_loads_s}
        return starts, loads

    def _launch(self, record: ComparisonRecord) -> str:
        record = claim(record)
        self._record = replace(record, state="running")
        self._began_s, self._before_s = self._clock.monotonic(), record.elapsed_s
        self._stopping = False
        self._pictures = {}
        self._save()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"compare {record.run_id}")
        return record.run_id

    def _elapsed_s(self) -> float:
        assert self._record is not None
        if self._record.state != "running":
            return self._record.elapsed_s
        return self._before_s + self._clock.monotonic() - self._began_s

    def _change(self, **fields: Any) -> None:
        assert self._record is not None
        self._record = replace(self._record, **fields)

    def _save(self) -> None:
        assert self._record is not None
        self._record = replace(self._record, elapsed_s=self._elapsed_s())
        save_record(self._record)
        self._tell()

    def _tell(self) -> None:
        progress = self.progress()
        if self._on_progress is not None and progress is not None:
            self._on_progress(progress)

    def _set_step(self, index: int, **fields: Any) -> None:
        assert self._record is not None
        steps = list(self._record.steps)
        steps[index] = replace(steps[index], **fields)
        self._change(steps=tuple(steps))

    async def _run(self) -> None:
        state, message = "failed", "an error in vtop"
        try:
            await self._stop_current()
            assert self._record is not None
            for index, step in enumerate(self._record.steps):
                if step.state not in _OVER:
                    await self._step(index)
            if all(step.state == "failed" for step in self._record.steps):
                message = "no configuration could be measured"
            else:
                state, message = "finished", ""
        except asyncio.CancelledError:
            state, message = "cancelled", "stopped; what was measured is kept"
            if not self._stopping:
                raise
        except VtopError as error:
            state, message = "failed", str(error)
        finally:
            await self._end(state, message)

    async def _end(self, state: str, message: str) -> None:
        try:
            await _to_its_end(self._stop_current())
        except VtopError as error:
            state, message = "failed", str(error)
        assert self._record is not None
        waiting = [
            step if step.state in _OVER else replace(step, state="waiting", detail="") for step in self._record.steps
        ]
        self._change(steps=tuple(waiting), elapsed_s=self._elapsed_s(), owner_pid=None, owner_created_s=None)
        self._change(state=state, message=message)
        self._record = with_rows(self._record)
        try:
            save_record(self._record)
        except VtopError as error:
            self._change(state="failed", message=str(error))
        self._tell()

    async def _step(self, index: int) -> None:
        assert self._record is not None
        step = self._record.steps[index]
        if why := self._record.failures.get(step.preset):
            self._set_step(index, state="failed", detail=why)
            self._save()
            return
        try:
            server = await self._bring_up(index, step)
            result = await self._load(index, step, server)
        except VtopError as error:
            self._fail(index, step, error)
        else:
            self._keep(index, step, result)
        if self._record.server is not None and not self._goes_on_with(index, step.preset):
            self._say_stopping(index)
            await self._stop_current()
        self._save()

    async def _bring_up(self, index: int, step: CompareStep) -> str:
        """A ready server of this configuration: the one that is up (blocks), or a fresh one."""
        assert self._record is not None
        if self._up == step.preset and self._record.server is not None:
            return self._record.server
        name = f"{self._record.run_id}-{_slug(step.preset)}"
        preset = dict(configurations(self._record.request.presets))[step.preset]
        # On disk before the start: after a crash in the middle of it, the next run knows what to stop.
        self._change(server=name)
        self._set_step(index, state="starting", detail="")
        self._save()
        began_s = self._clock.monotonic()
        try:
            actual = await self._start_server(preset, self._record.request.overrides, name)
            if actual != name:
                self._change(server=actual)
                self._save()
            await self._wait_ready(actual)
        except VtopError as error:
            raise _StartFailed(f"did not start: {error.what}", error.remedy) from error
        self._change(started_s={**self._record.started_s, step.preset: self._clock.monotonic() - began_s})
        if self._describe is not None and step.preset not in self._record.facts:
            facts = await self._describe(preset, actual)
            self._change(facts={**self._record.facts, step.preset: facts})
        self._up = step.preset
        return actual

    async def _load(self, index: int, step: CompareStep, server: str) -> LoadResult:
        assert self._record is not None
        asked = self._record.request
        request = replace(
            load_of(asked),
            server=server,
            seed=self._record.seed + step.round,
            label=f"{self._record.run_id} · {step.preset} · round {step.round}",
            simulated=asked.simulated,
        )
        self._set_step(index, state="warming-up", detail="")
        self._save()
        began_s = self._clock.monotonic()

        def follow(progress: LoadProgress) -> None:
            self._set_step(
                index,
                state="warming-up" if progress.state in ("preparing", "warming-up") else "loading",
                detail=_how_far(progress),
                output_tokens_per_s=progress.output_tokens_per_s,
                ttft_p50_s=progress.ttft.p50,
                tpot_p50_s=progress.tpot.p50,
            )
            if progress.state == "running":
                self._look(step.preset, server)
            self._tell()

        result = await self._run_load(request, follow)
        self._change(loaded_s={**self._record.loaded_s, step.preset: self._clock.monotonic() - began_s})
        return result

    def _look(self, label: str, server: str) -> None:
        """The picture of what is loaded; one of a server that is idle again replaces none."""
        if self._observe is None or self._record is None:
            return
        picture = self._observe(label, server, self._record.facts.get(label))
        if picture is not None:
            self._pictures[label] = picture

    def _keep(self, index: int, step: CompareStep, result: LoadResult) -> None:
        assert self._record is not None
        self._set_step(
            index,
            state="done",
            detail="drift check" if step.drift_check else "",
            output_tokens_per_s=result.output_tokens_per_s,
            ttft_p50_s=result.ttft.p50,
            tpot_p50_s=result.tpot.p50,
        )
        run = Measured(step.round, step.preset, result, step.drift_check)
        self._change(measured=(*self._record.measured, run))
        self._record = with_rows(self._record)

    def _fail(self, index: int, step: CompareStep, error: VtopError) -> None:
        """A configuration that never came up is given up; a failure after a good run costs only that step."""
        assert self._record is not None
        self._set_step(index, state="failed", detail=error.what, output_tokens_per_s=None)
        has_run = any(run.preset == step.preset for run in self._record.measured)
        again = any(other.preset == step.preset and other.state == "failed" and other is not self._record.steps[index]
                    for other in self._record.steps)  # fmt: skip
        if (isinstance(error, _StartFailed) and not has_run) or again:
            self._change(failures={**self._record.failures, step.preset: error.what})
        words = f"{step.preset}, round {step.round}: {error.what}"
        self._change(warnings=(*self._record.warnings, f"{words} ({error.remedy})" if error.remedy else words))
        self._record = with_rows(self._record)

    def _goes_on_with(self, index: int, label: str) -> bool:
        """In blocks, whether the next step uses the server that is up."""
        assert self._record is not None
        if self._record.request.order != "blocks" or label in self._record.failures:
            return False
        if self._record.steps[index].state == "failed":
            return False
        following = [step for step in self._record.steps[index + 1 :] if step.state not in _OVER]
        return bool(following) and following[0].preset == label

    def _say_stopping(self, index: int) -> None:
        assert self._record is not None
        step = self._record.steps[index]
        self._set_step(index, state="stopping")
        self._tell()
        self._set_step(index, state=step.state)

    async def _stop_current(self) -> None:
        """Stops the server that is up, if any.

        Raises:
            VtopError: something of it is left, so nothing else may start on its GPUs.
        """
        assert self._record is not None
        name = self._record.server
        if name is None:
            return
        self._up = None
        report = await self._stop_server(name)
        if not report.stopped:
            left = ", ".join(report.left) or "something of it"
            raise VtopError(f"cannot stop {name}: {left} is still there", f"See it: vtop status; then vtop stop {name}")
        self._change(server=None)


class _StartFailed(VtopError):
    """The server of a configuration did not come up."""


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits work that must not be cut, however often this task is cancelled meanwhile; then passes the cancel on."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except VtopError:
            break
    task.result()
    if cancelled:
        raise asyncio.CancelledError


def _slug(label: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in label).strip("-")


def _how_far(progress: LoadProgress) -> str:
    """`41 of 64`: requests of the warm-up while that goes on, then those that count."""
    if progress.state == "warming-up" and progress.warmup_total:
        return f"{progress.warmup_done} of {progress.warmup_total}"
    return f"{progress.finished} of {progress.total}" if progress.total else ""
