"""The child process that sends the load: `python -m vtop.load.worker`.

Standard input: the plan as one JSON line, then `stop`, `cancel` or `context {...}` lines. Standard output: one JSON
event a line, at most ten a second while it runs. When standard input closes, the parent is gone: what was measured is
saved and the process ends. Ctrl-C and `stop` end the test within five seconds and keep what was measured.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from vtop.errors import VtopError
from vtop.load import files, outcome, preflight
from vtop.load.channel import Channel
from vtop.load.client import Target, monotonic
from vtop.load.course import Course
from vtop.load.floor import ClientFloor, LoopbackProcess
from vtop.load.looplag import LoopLag
from vtop.load.outcome import Measured
from vtop.load.progress import LoadRequest, LoadStep
from vtop.load.shard import ShardedDriver, ShardPlan, processes_for
from vtop.load.stage import Driver, LocalDriver, PromptSource
from vtop.load.stats import RequestRecord
from vtop.load.undisturbed import undisturbed
from vtop.load.words import WordSource
from vtop.load.workload import Prompt, Shape, find_workload, resolve, settled
from vtop.results import store
from vtop.secrets import resolve as resolve_key

TICK_S = 0.1
CONTEXT_WITHIN_S = 3.0
"""How long the end waits for the server's and the GPU's readings."""


class Plan(msgspec.Struct, kw_only=True):
    """What the parent asks for."""

    run_id: str
    directory: str
    request: LoadRequest
    repeat_command: str = ""


@dataclass(slots=True)
class _Point:
    """A finished request on its way to the screen."""

    at_s: float
    ok: bool
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    output_tokens: int | None
    failure: str


class Worker:
    """One load test from plan to saved result."""

    def __init__(self, channel: Channel, plan: Plan) -> None:
        self._channel = channel
        self._plan = plan
        self._request = plan.request
        self._driver: Driver | None = None
        self._course: Course | None = None
        self._stopped = False
        self._orphaned = False
        self._context: asyncio.Future[Mapping[str, Any]] | None = None
        self._lag = LoopLag()
        self._floor: ClientFloor | None = None
        self._points: list[_Point] = []
        self._steps: list[LoadStep] = []
        self._phase = ""
        self._file_digest = ""
        self._notes: list[str] = []

    # Commands

    async def obey(self) -> None:
        """Reads the parent's lines until it goes away."""
        while True:
            line = await self._channel.line()
            if not line and self._channel.ended:
                self._orphaned = True
                self.cancel()
                return
            word, _, rest = line.partition(b" ")
            if word == b"stop":
                self.stop()
            elif word == b"cancel":
                self.cancel()
            elif word == b"context" and self._context is not None and not self._context.done():
                self._context.set_result(msgspec.json.decode(rest))

    def stop(self) -> None:
        """Ends the test within five seconds."""
        if not self._stopped:
            self._stopped = True
            self._state("stopping")
        self._end_course()
        if self._driver is not None:
            self._driver.stop()

    def cancel(self) -> None:
        """Ends it now."""
        self._stopped = True
        self._end_course()
        if self._driver is not None:
            self._driver.cancel()

    def _end_course(self) -> None:
        if self._course is not None:
            self._course.stopped = True

    def _state(self, state: str, message: str = "") -> None:
        self._channel.send("state", state=state, message=message, phase=self._phase)

    # The test

    async def run(self) -> None:
        """Runs it.

        Raises:
            VtopError: it cannot be run at all.
        """
        self._state("preparing", "asking the server")
        request = self._request
        shape = resolve(request)
        file_prompts: list[Prompt] | None = None
        if request.file:
            shape, file_prompts = files.open_file(shape)
            self._file_digest = files.digest_of(request.file)
            if request.requests is not None and request.requests > shape.file_prompts and not _goes_round(shape):
                self._notes.append(
                    f"the file holds {shape.file_prompts:,} of the {request.requests:,} requests asked for"
                )
        course = self._course = Course(request, shape, self._stage, self._add_step)
        course.check()
        preflight.ensure_files(shape.streams)
        api_key = resolve_key(request.api_key)
        target = Target.from_url(request.url, request.ca_file)
        floor_server = await LoopbackProcess.start() if request.measure_client else None
        try:
            facts = await preflight.ask_server(target, request.model, api_key)
            preflight.check_lengths(shape, facts)
            words = await preflight.words_of(target, shape, facts, api_key)
            if shape.made_to_length and not words.exact:
                self._notes.append(
                    "prompt lengths are approximate (~): no /tokenize here, or its words are not one token each"
                )
            if floor_server is not None:
                self._state("preparing", "measuring this client")
                with undisturbed():
                    self._floor = await floor_server.measure(shape.streams)
                self._send_floor()
        finally:
            if floor_server is not None:
                await floor_server.close()
        driver = self._driver = await self._make_driver(target, shape, facts, words, api_key, file_prompts)
        course.stopped = self._stopped
        try:
            measured = await course.run()
        finally:
            await driver.close()
        self._notes += course.notes
        await self._finish(measured, course.kind, facts)

    async def _make_driver(
        self,
        target: Target,
        shape: Shape,
        facts: preflight.ServerFacts,
        words: WordSource,
        api_key: str | None,
        file_prompts: list[Prompt] | None,
    ) -> Driver:
        request = self._request
        processes = min(request.processes or processes_for(shape.streams, self._floor), shape.streams)
        if processes == 1:
            return LocalDriver(
                target=target,
                model=facts.model,
                api_key=api_key,
                running_usage=facts.is_vllm,
                prompts=PromptSource(shape, words, file_prompts),
            )
        plan = ShardPlan(
            shard=0,
            shards=processes,
            url=request.url,
            ca_file=request.ca_file,
            api_key=request.api_key,
            model=facts.model,
            running_usage=facts.is_vllm,
            words=words,
            shape=shape,
        )
        driver = ShardedDriver(plan)
        await driver.open()
        return driver

    def _send_floor(self) -> None:
        if self._floor is not None:
            self._channel.send(
                "floor", added_ttft_s=self._floor.added_ttft_s, capacity_tokens_per_s=self._floor.capacity_tokens_per_s
            )

    def _add_step(self, step: LoadStep) -> None:
        self._steps.append(step)
        self._channel.send("step", step=step)

    async def _stage(self, shape: Shape, phase: str) -> Measured:
        """One stretch of load, watched."""
        driver = self._driver
        assert driver is not None
        self._phase = phase
        self._points.clear()
        await driver.prepare(shape, self._record)
        self._state("warming-up" if shape.warmup else "running")
        with undisturbed() as realtime:
            self._lag.start()
            ticker = asyncio.ensure_future(self._tick(driver, shape))
            if self._stopped:
                driver.cancel()
            try:
                await driver.run()
            finally:
                ticker.cancel()
                self._lag.stop()
        self._send_tick(driver)
        lags = [lag for lag in (self._lag.p99(), driver.shard_lag_p99_s) if lag is not None]
        return Measured(
            records=driver.records,
            warmup_records=driver.warmup_records,
            started_s=driver.started_s if driver.started_s is not None else monotonic(),
            shape=shape,
            complete=not self._stopped,
            floor=self._floor,
            loop_lag_p99_s=max(lags, default=None),
            realtime=realtime,
            processes=driver.processes,
            reconnects=driver.reconnects,
        )

    def _record(self, record: RequestRecord) -> None:
        if record.failure == "cancelled":
            return
        started = self._driver.started_s if self._driver is not None else None
        self._points.append(
            _Point(
                record.ended_s - (started or record.ended_s),
                record.ok,
                record.ttft_s,
                record.tpot_s,
                record.e2e_s,
                record.output_tokens,
                record.failure,
            )
        )

    async def _tick(self, driver: Driver, shape: Shape) -> None:
        announced = False
        began_s = monotonic()
        # With thousands of streams a look at each costs more than it tells.
        period = TICK_S if shape.streams <= 512 else 0.25
        while True:
            await asyncio.sleep(period)
            if not announced and driver.started_s is not None:
                announced = True
                self._channel.send(
                    "start",
                    started_s=driver.started_s,
                    concurrency=shape.concurrency,
                    total=shape.requests,
                    duration_s=shape.duration_s,
                    rate=shape.rate,
                    phase=self._phase,
                )
                if not self._stopped:
                    self._state("running")
            if announced:
                self._send_tick(driver)
            elif shape.warmup:
                self._channel.send("warming", done=driver.warmed, total=shape.warmup, elapsed_s=monotonic() - began_s)

    def _send_tick(self, driver: Driver) -> None:
        points, self._points = self._points, []
        self._channel.send(
            "tick",
            at_s=monotonic() - driver.started_s if driver.started_s is not None else 0.0,
            in_flight=driver.in_flight,
            tokens=driver.live_tokens(),
            lag_p99_s=self._lag.p99(),
            points=points,
        )

    async def _finish(self, measured: Measured, kind: str, facts: preflight.ServerFacts) -> None:
        measured.notes = self._notes
        shape = measured.shape
        end = measured.started_s + outcome.duration_s(measured)
        context = await self._ask_context(measured.started_s, end)
        fingerprint = {
            "model": facts.model,
            "vllm_version": facts.version,
            "max_model_len": facts.max_model_len,
            "seed": shape.seed,
            "workload_hash": _shape_hash(shape, facts.model, self._file_digest),
            **({"file_digest": self._file_digest} if self._file_digest else {}),
            **(context.get("fingerprint") or {}),
        }
        result = outcome.result_of(
            measured,
            settled(self._request, shape, facts.model),
            run_id=self._plan.run_id,
            directory=self._plan.directory,
            at_wall_s=time.time() - (monotonic() - measured.started_s),
            repeat_command=self._plan.repeat_command,
            server=context.get("server") or {},
            gpu=context.get("gpu") or {},
            fingerprint=fingerprint,
        )
        extra = tuple(str(words) for words in context.get("warnings") or ())
        result = replace(result, kind=kind, steps=tuple(self._steps), warnings=result.warnings + extra)
        store.save_result(result, measured.records, measured.started_s)
        self._channel.send("result", result=result)

    async def _ask_context(self, start_s: float, end_s: float) -> Mapping[str, Any]:
        """The server's and the GPU's readings of the same window, from the parent."""
        if self._orphaned:
            return {}
        self._context = asyncio.get_running_loop().create_future()
        self._channel.send("measured", start_s=start_s, end_s=end_s)
        try:
            async with asyncio.timeout(CONTEXT_WITHIN_S):
                return await self._context
        except TimeoutError:
            return {}


def _goes_round(shape: Shape) -> bool:
    """Whether the steps of this load begin the file again at its end, and say so themselves."""
    return find_workload(shape.workload).ladder


def _shape_hash(shape: Shape, model: str, file_digest: str) -> str:
    """Equal for tests that ask the same of a server: one shape, and of a file the same content, wherever it lies."""
    import hashlib

    fields = msgspec.to_builtins(replace(shape, seed=0, skip=0, file=file_digest))
    return hashlib.sha256(msgspec.json.encode([model, sorted(fields.items())])).hexdigest()[:16]


async def serve() -> int:
    """Reads the plan and runs it; 0 when a result was saved."""
    channel = await Channel.open()
    line = await channel.line()
    if not line:
        return 2
    try:
        worker = Worker(channel, msgspec.json.decode(line, type=Plan))
    except msgspec.DecodeError as error:
        channel.send("error", what=f"the plan cannot be read: {error}", remedy="", exit_code=2)
        await channel.flush()
        return 2
    loop = asyncio.get_running_loop()
    handlers: dict[int, Callable[[], None]] = {signal.SIGINT: worker.stop, signal.SIGTERM: worker.cancel}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    obeying = asyncio.ensure_future(worker.obey())
    code = 0
    try:
        await worker.run()
    except VtopError as error:
        channel.send("error", what=error.what, remedy=error.remedy, exit_code=error.exit_code)
        code = error.exit_code
    finally:
        obeying.cancel()
    await channel.flush()
    return code


def main() -> int:
    """Runs on uvloop where it is installed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve())
    return uvloop.run(serve())


if __name__ == "__main__":
    # Standard output is already flushed, and its pipe may be gone: no interpreter shutdown may complain about that.
    os._exit(main())
