"""Starts the load worker, reads its lines, ends it: the light half that lives beside the screen."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from vtop import paths
from vtop.clock import Clock, SystemClock
from vtop.errors import VtopError
from vtop.load import outcome
from vtop.load.command import command_line
from vtop.load.floor import ClientFloor
from vtop.load.progress import LoadProgress, LoadRequest, LoadResult, LoadStep, RequestPoint
from vtop.load.stats import RunningPercentiles
from vtop.load.workload import resolve
from vtop.results import store

RATE_WINDOW_S = 3.0
"""Output tokens/s is shown over the last so many seconds."""
BIN_S = 0.5
"""Width of a point of the output chart."""
CLOSE_WITHIN_S = 0.2
_LINE_LIMIT = 64 * 2**20

ServerWindow = Callable[[float, float], "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"]
"""(start, end) on the monotonic clock -> `server`, `gpu`, `fingerprint`, `warnings` of that window, each optional."""


class _Result(msgspec.Struct):
    result: LoadResult


class _Step(msgspec.Struct):
    step: LoadStep


class LoadRunner:
    """One load test at a time, in a process of its own."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        runs_dir: Path | None = None,
        server_window: ServerWindow | None = None,
        python: str = sys.executable,
    ) -> None:
        self._clock = clock or SystemClock()
        self._runs_dir = runs_dir
        self._server_window = server_window
        self._python = python
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._progress: LoadProgress | None = None
        self._callbacks: list[Callable[[LoadProgress], None]] = []
        self._outcome: asyncio.Future[LoadResult] | None = None
        self._state: _LiveState | None = None
        self._timeline: list[tuple[float, Mapping[str, Any]]] = []

    def progress(self) -> LoadProgress | None:
        """The running (or last) test."""
        return self._progress

    @property
    def running(self) -> bool:
        """Whether a test is on."""
        return self._outcome is not None and not self._outcome.done()

    def on_progress(self, callback: Callable[[LoadProgress], None]) -> Callable[[], None]:
        """Calls back with each new state; returns the way to stop it."""
        self._callbacks.append(callback)

        def stop() -> None:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

        return stop

    async def start(self, request: LoadRequest) -> str:
        """Starts a test and returns its run id.

        Raises:
            VtopError: one is already running, or the worker cannot be started.
            UsageError: the request makes no test.
        """
        if self.running:
            raise VtopError("a load test is already running", "Stop it first, or wait for its end.")
        if not request.url:
            raise VtopError("the load test has no server", "Name one with --server, or give --url.")
        shape = resolve(request)
        base = self._runs_dir or paths.runs_dir()
        run_id = store.new_run_id(shape.workload, self._clock.wall(), base)
        directory = base / run_id
        try:
            directory.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise VtopError(
                f"cannot save the run in {directory}: {error.strerror}", "Free space, or set VTOP_RUNS_DIR."
            ) from error
        plan = {
            "run_id": run_id,
            "directory": str(directory),
            "request": _with_absolute_file(request),
            "repeat_command": command_line(request),
        }
        try:
            self._process = await asyncio.create_subprocess_exec(
                self._python,
                "-m",
                "vtop.load.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE_LIMIT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            directory.rmdir()
            raise VtopError(
                f"cannot start the load worker: {error.strerror}", "Check this Python installation."
            ) from error
        self._timeline = []
        self._state = _LiveState(run_id, request, shape.concurrency, shape.requests)
        self._outcome = asyncio.get_running_loop().create_future()
        # A failure that nobody waits for is shown by the progress; it must not be reported as lost.
        self._outcome.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._write(msgspec.json.encode(plan))
        self._publish()
        self._reading = asyncio.create_task(self._read(self._process, directory))
        return run_id

    async def stop(self) -> None:
        """Asks for an end within five seconds; what was measured is kept. Returns at once."""
        if self.running:
            self._write(b"stop")

    async def wait(self) -> LoadResult:
        """The result.

        Raises:
            VtopError: the test could not be run.
        """
        if self._outcome is None:
            raise VtopError("no load test was started", "Start one.")
        return await asyncio.shield(self._outcome)

    async def close(self) -> None:
        """Ends the worker within 0.3 s; a running test is saved as cut if that suffices."""
        process, reading = self._process, self._reading
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if reading is not None:
            # The pipe is at its end now; what is left in it is read in no time.
            await asyncio.wait({reading}, timeout=0.1)
            reading.cancel()
        if self.running:
            self._fail(VtopError("the load test was cut: vtop ended", ""))

    def record_timeline(self, at_s: float, row: Mapping[str, Any]) -> None:
        """Takes in readings of server and GPU for `timeline.jsonl`; they are written when the test ends.

        Args:
            at_s: when they were read, on the monotonic clock.
            row: what was read.
        """
        if self.running:
            self._timeline.append((at_s, row))

    # Lines of the worker

    def _write(self, line: bytes) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(line + b"\n")

    async def _read(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        assert process.stdout is not None and process.stderr is not None
        errors = asyncio.create_task(process.stderr.read())
        try:
            while line := await process.stdout.readline():
                try:
                    event = msgspec.json.decode(line)
                    await self._event(event, line, directory)
                except (msgspec.DecodeError, KeyError, TypeError) as error:
                    self._fail(VtopError(f"the load worker said something unreadable: {error}", "Please report this."))
            code = await process.wait()
            if self.running:
                words = (await errors).decode("utf-8", "replace").strip().splitlines()
                self._fail(
                    VtopError(f"the load worker ended with code {code}: {words[-1] if words else ''}".rstrip(": "), "")
                )
        finally:
            errors.cancel()
            self._remove_if_empty(directory)

    async def _event(self, event: Mapping[str, Any], line: bytes, directory: Path) -> None:
        state = self._state
        assert state is not None
        kind = event["event"]
        if kind == "measured":
            context = await self._context(event["start_s"], event["end_s"])
            self._write(b"context " + msgspec.json.encode(context))
            return
        if kind == "result":
            result = msgspec.json.decode(line, type=_Result).result
            self._write_timeline(directory, state.started_s)
            state.finish(result)
            self._publish()
            if self._outcome is not None and not self._outcome.done():
                self._outcome.set_result(result)
            return
        if kind == "error":
            self._fail(_error_of(event))
            return
        if kind == "step":
            state.steps.append(msgspec.json.decode(line, type=_Step).step)
        else:
            state.take(kind, event)
        self._publish()

    async def _context(self, start_s: float, end_s: float) -> Mapping[str, Any]:
        if self._server_window is None:
            return {}
        try:
            found = self._server_window(start_s, end_s)
            return await found if inspect.isawaitable(found) else found
        except VtopError as error:
            return {"warnings": [f"the server's own numbers are missing: {error.what}"]}

    def _write_timeline(self, directory: Path, started_s: float | None) -> None:
        if not self._timeline or started_s is None:
            return
        rows = [{"t_s": round(at - started_s, 6), **row} for at, row in self._timeline]
        with contextlib.suppress(OSError):
            store.append_timeline(directory, rows)

    def _fail(self, error: VtopError) -> None:
        if self._state is not None:
            self._state.state = "failed"
            self._state.message = error.what
            self._publish()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(error)

    def _remove_if_empty(self, directory: Path) -> None:
        with contextlib.suppress(OSError):
            directory.rmdir()

    def _publish(self) -> None:
        if self._state is None:
            return
        self._progress = self._state.read()
        for callback in tuple(self._callbacks):
            callback(self._progress)


def _with_absolute_file(request: LoadRequest) -> LoadRequest:
    return request if request.file is None else replace(request, file=str(Path(request.file).expanduser().resolve()))


def _error_of(event: Mapping[str, Any]) -> VtopError:
    error = VtopError(str(event["what"]), str(event.get("remedy") or ""))
    error.exit_code = int(event.get("exit_code") or 1)
    return error


class _LiveState:
    """What the worker's lines add up to."""

    def __init__(self, run_id: str, request: LoadRequest, concurrency: int | None, total: int | None) -> None:
        self.run_id = run_id
        self.request = request
        self.state = "preparing"
        self.message = ""
        self.phase = ""
        self.steps: list[LoadStep] = []
        self.started_s: float | None = None
        self._concurrency = concurrency
        self._total = total
        self._duration_s: float | None = None
        self._floor: ClientFloor | None = None
        self._steady: float | None = None
        self._warmed = 0
        self._warmups: int | None = None
        self._warmup_elapsed_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self._ttft = RunningPercentiles()
        self._tpot = RunningPercentiles()
        self._e2e = RunningPercentiles()
        self._points: list[RequestPoint] = []
        self._failures: Counter[str] = Counter()
        self._ok = 0
        self._in_flight = 0
        self._elapsed_s = 0.0
        self._lag: float | None = None
        self._totals: list[tuple[float, float]] = [(0.0, 0.0)]
        """(seconds since start, output tokens so far) at each tick."""
        self._bins: list[tuple[float, float]] = []

    def take(self, kind: str, event: Mapping[str, Any]) -> None:
        """One event."""
        if kind == "state":
            self.state = str(event["state"])
            self.message = str(event.get("message") or "")
            self.phase = str(event.get("phase") or self.phase)
        elif kind == "floor":
            capacity = float(event["capacity_tokens_per_s"])
            self._floor = ClientFloor(0, float(event["added_ttft_s"]), capacity, 1.0 / capacity)
        elif kind == "warming":
            self._warmed = int(event["done"])
            self._warmups = int(event["total"])
            self._warmup_elapsed_s = float(event["elapsed_s"])
        elif kind == "start":
            self._begin()
            self.started_s = float(event["started_s"])
            self._concurrency = event.get("concurrency")
            self._total = event.get("total")
            self._duration_s = event.get("duration_s")
            self.phase = str(event.get("phase") or "")
        elif kind == "tick":
            self._tick(event)

    def _tick(self, event: Mapping[str, Any]) -> None:
        self._elapsed_s = float(event["at_s"])
        self._in_flight = int(event["in_flight"])
        self._lag = event.get("lag_p99_s")
        for point in event["points"]:
            if point["ok"]:
                self._ok += 1
                self._ttft.add(point["ttft_s"])
                self._tpot.add(point["tpot_s"])
                self._e2e.add(point["e2e_s"])
            else:
                self._failures[point["failure"]] += 1
            self._points.append(
                RequestPoint(
                    point["at_s"], point["ok"], point["ttft_s"], point["tpot_s"], point["e2e_s"], point["output_tokens"]
                )
            )
        # An answer that ended is counted by its usage, which may be a little less than its chunks seemed to be.
        self._totals.append((self._elapsed_s, max(float(event["tokens"]), self._totals[-1][1])))
        self._fill_bins()

    def _fill_bins(self) -> None:
        while (len(self._bins) + 1) * BIN_S <= self._elapsed_s:
            start = len(self._bins) * BIN_S
            tokens = self._tokens_at(start + BIN_S) - self._tokens_at(start)
            self._bins.append((start + BIN_S, tokens / BIN_S))

    def _tokens_at(self, at_s: float) -> float:
        """Output tokens by then, linear between ticks."""
        later = self._totals[-1]
        if at_s >= later[0]:
            return later[1]
        for earlier in reversed(self._totals):
            if earlier[0] <= at_s:
                width = later[0] - earlier[0]
                return earlier[1] + (later[1] - earlier[1]) * ((at_s - earlier[0]) / width if width > 0 else 1.0)
            later = earlier
        return 0.0

    def _rate(self) -> float | None:
        since = max(0.0, self._elapsed_s - RATE_WINDOW_S)
        width = self._elapsed_s - since
        return (self._totals[-1][1] - self._tokens_at(since)) / width if width > 0 else None

    def _remaining(self) -> float | None:
        if self.state == "warming-up":
            if not self._warmups or not self._warmed:
                return None
            return self._warmup_elapsed_s / self._warmed * max(0, self._warmups - self._warmed)
        finished = self._ok + sum(self._failures.values())
        if self._total and finished:
            return self._elapsed_s / finished * max(0, self._total - finished)
        return None if self._duration_s is None else max(0.0, self._duration_s - self._elapsed_s)

    def finish(self, result: LoadResult) -> None:
        """The last state."""
        self.state = "finished" if result.complete else "cancelled"
        self.message = result.not_comparable_because
        self._steady = result.steady_tokens_per_s
        self._elapsed_s = max(self._elapsed_s, result.duration_s)
        self._in_flight = 0

    def read(self) -> LoadProgress:
        """As a frozen shape."""
        ttft, rate = self._ttft.read(), self._rate()
        return LoadProgress(
            run_id=self.run_id,
            request=self.request,
            state=self.state,
            concurrency=self._concurrency,
            total=self._total,
            finished=self._ok + sum(self._failures.values()),
            failed=sum(self._failures.values()),
            in_flight=self._in_flight,
            elapsed_s=self._elapsed_s,
            remaining_s=self._remaining() if self.state in ("warming-up", "running") else None,
            ttft=ttft,
            tpot=self._tpot.read(),
            e2e=self._e2e.read(),
            output_tokens_per_s=rate,
            steady_tokens_per_s=self._steady,
            output_points=tuple(self._bins),
            points=tuple(self._points),
            client_overhead_s=None if self._floor is None else self._floor.added_ttft_s,
            client_capacity_tokens_per_s=None if self._floor is None else self._floor.capacity_tokens_per_s,
            loop_lag_p99_s=self._lag,
            client_bound=outcome.is_client_bound(ttft.p50, self._lag, rate, self._floor),
            failures=tuple(self._failures.most_common()),
            message=self.message,
            phase=self.phase,
            steps=tuple(self.steps),
            started_s=self.started_s,
            warmup_done=self._warmed,
            warmup_total=self._warmups,
            warmup_elapsed_s=self._warmup_elapsed_s,
        )
