"""Owns the pollers and the history, and publishes one frozen picture a second: the latest one wins."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from vtop.clock import Clock, SystemClock
from vtop.servers.ports import is_answered_by_another
from vtop.servers.status import ServerState, ServerStatus
from vtop.telemetry.energy import EnergyMeter
from vtop.telemetry.gpu.matching import is_here
from vtop.telemetry.gpu.source import GpuFrame, GpuSource
from vtop.telemetry.history import HistoryStore
from vtop.telemetry.points import gpu_point, server_point
from vtop.telemetry.sampler import PERIOD_S, GpuSampler
from vtop.telemetry.scrape import Poller, ServerAccess
from vtop.telemetry.snapshot import (
    Event,
    GpuReading,
    GpuStatus,
    HostReading,
    ServerView,
    Snapshot,
    TreeReading,
    Verdict,
)
from vtop.vllm.reading import ScrapeStatus

_log = logging.getLogger(__name__)

_ANSWERS = frozenset({ServerState.STARTING, ServerState.READY, ServerState.DEGRADED, ServerState.FOREIGN})
"""States in which there may be a page. A server that is being stopped is left alone: a request would hold it up."""
_MOST_EVENTS = 200
_STALE_GPU_S = 2.0
_CLOSE_S = 0.2


class HostSource(Protocol):
    """Reads the machine; called in a worker thread."""

    def read_host(self) -> HostReading:
        """The machine now."""
        ...

    def read_tree(self, pids: Sequence[int]) -> TreeReading | None:
        """A server's processes together, or None where none can be seen."""
        ...


Judge = Callable[[ServerView, Sequence[GpuReading]], Verdict | None]


@dataclass(slots=True)
class _Watched:
    """A server that is polled, and what was last seen of it."""

    url: str
    access: ServerAccess | None
    poller: Poller
    task: asyncio.Task[bool] | None = None
    recorded_s: float | None = None
    restarted: bool = False
    scrape_state: str = "pending"
    broken: ScrapeStatus | None = None
    """Set where the poller itself failed."""


class Hub:
    """Reads everything and publishes snapshots.

    Args:
        clock: stamps everything.
        gpu_source: read twice a second in a thread of its own; None: no GPU readings.
        host_source: `telemetry.host` or its like; None: no host readings.
        server_statuses: the servers to watch, asked once a tick.
        verdict: says what bounds a server; must be cheap.
        interval_s: between two snapshots and two scrapes.
        window_s: of rates and latencies.
        access: key and certificates for a server; None: none needed.
        gpu_period_s: between two readings of the GPUs.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        gpu_source: GpuSource | None = None,
        host_source: HostSource | None = None,
        server_statuses: Callable[[], Sequence[ServerStatus]] = tuple,
        verdict: Judge | None = None,
        interval_s: float = 1.0,
        window_s: float = 10.0,
        access: Callable[[ServerStatus], ServerAccess | None] | None = None,
        gpu_period_s: float = PERIOD_S,
    ) -> None:
        self.history = HistoryStore()
        self.interval_s = interval_s
        self._clock = clock or SystemClock()
        self._gpu_source = gpu_source
        self._gpu_period_s = gpu_period_s
        self._host_source = host_source
        self._server_statuses = server_statuses
        self._verdict = verdict
        self._access = access
        self._window_s = window_s
        self._watched: dict[str, _Watched] = {}
        self._statuses: tuple[ServerStatus, ...] = ()
        self._subscribers: dict[object, Callable[[Snapshot], None]] = {}
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._states: dict[str, ServerState] = {}
        self._energy = EnergyMeter()
        self._sampler: GpuSampler | None = None
        self._frame: tuple[float, GpuFrame] | None = None
        self._host = HostReading(platform.node())
        self._trees: dict[str, TreeReading] = {}
        self._executor: ThreadPoolExecutor | None = None
        self._host_task: asyncio.Future[None] | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None
        self._sequence = 0
        self._snapshot = self._picture()

    async def open(self) -> None:
        """Starts reading; the first snapshot follows within a third of an interval."""
        self._start_workers()
        self._loop_task = asyncio.create_task(self._run(), name="vtop-hub")

    async def close(self) -> None:
        """Stops within 0.3 s, whatever hangs; harmless when called twice."""
        loop_task, self._loop_task = self._loop_task, None
        tasks: list[asyncio.Future[object]] = []
        if loop_task is not None:
            loop_task.cancel()
            tasks.append(loop_task)  # type: ignore[arg-type]
        for watched in self._watched.values():
            if watched.task is not None:
                watched.task.cancel()
                tasks.append(watched.task)  # type: ignore[arg-type]
        pollers = [watched.poller for watched in self._watched.values()]
        self._watched.clear()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S / 2)
        if pollers:
            closing = [asyncio.ensure_future(poller.close()) for poller in pollers]
            _, late = await asyncio.wait(closing, timeout=_CLOSE_S / 4)
            for task in late:
                task.cancel()
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            await asyncio.to_thread(sampler.close, _CLOSE_S / 2)
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Calls back at once with the newest snapshot, then with each new one, in the event loop.

        Returns:
            A function that ends it.
        """
        token = object()
        self._subscribers[token] = callback
        self._call(callback)

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self._snapshot

    @property
    def window_s(self) -> float:
        """The window asked for."""
        return self._window_s

    def set_window(self, seconds: float) -> None:
        """Changes the window of every live rate and latency, from the next snapshot on."""
        self._window_s = seconds
        for watched in self._watched.values():
            watched.poller.set_window(seconds)

    def note(self, event: Event) -> None:
        """Adds an event that another part of vtop knows of (a load test began)."""
        self._events.append(event)

    def joules(self, uuids: Sequence[str], start_s: float, end_s: float) -> float | None:
        """Energy of these GPUs between two moments (monotonic); None where a reading is missing."""
        return self._energy.joules(uuids, start_s, end_s)

    async def once(self, window_s: float) -> Snapshot:
        """One snapshot over a window, without `open`: two looks, the window apart; then everything is closed.

        Where no server answers there is nothing to wait for, beyond the second that GPU counters need.
        """
        self.set_window(window_s)
        self._start_workers()
        try:
            await self._look(timeout_s=None)
            answering = any(watched.poller.engines for watched in self._watched.values())
            await asyncio.sleep(window_s if answering else min(window_s, 1.2))
            await self._look(timeout_s=None, again=True)
            self._publish()
            return self._snapshot
        finally:
            await self.close()

    async def tick(self, patience_s: float | None = None) -> None:
        """One look at everything and one snapshot; late servers are in the next one.

        Args:
            patience_s: how long to wait for late ones; None: a third of the interval.
        """
        await self._look(0.3 * min(1.0, self.interval_s) if patience_s is None else patience_s)
        self._publish()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                await self.tick()
            except Exception:
                _log.exception("a tick failed")
            due += self.interval_s
            now = loop.time()
            if due < now:
                # Skipped, not caught up with: a burst of scrapes would say nothing.
                due = now + self.interval_s - (now - due) % self.interval_s
            await asyncio.sleep(due - now)

    def _start_workers(self) -> None:
        if self._gpu_source is not None and self._sampler is None:
            self._sampler = GpuSampler(self._gpu_source, self._clock, self._gpu_period_s)
            self._sampler.start()
        if self._host_source is not None and self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="vtop-host")

    async def _look(self, timeout_s: float | None, again: bool = False) -> None:
        try:
            self._statuses = tuple(self._server_statuses())
        except Exception:
            _log.exception("the list of servers cannot be read")
        self._follow_servers()
        waiting: list[asyncio.Future[object]] = []
        for status in self._statuses:
            watched = self._watched.get(status.name)
            if watched is None or (again and watched.poller.status().state == "timeout"):
                continue
            if watched.task is None or watched.task.done():
                watched.task = asyncio.create_task(self._poll(watched, status.state is ServerState.STARTING))
            waiting.append(watched.task)  # type: ignore[arg-type]
        host = self._start_host()
        if host is not None:
            waiting.append(host)  # type: ignore[arg-type]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)

    async def _poll(self, watched: _Watched, starting: bool) -> bool:
        try:
            looked = await watched.poller.poll(starting)
        except Exception as error:
            # A poller promises not to raise for what a server does; a fault of ours must not take the rest along.
            _log.exception("a poller failed")
            watched.broken = ScrapeStatus("malformed", f"reading the page failed: {type(error).__name__}")
            watched.poller.engines = ()
            return True
        watched.broken = None
        return looked

    def _follow_servers(self) -> None:
        wanted = {status.name: status for status in self._statuses if _is_read(status)}
        for name in list(self._watched):
            status = wanted.get(name)
            watched = self._watched[name]
            if status is None or status.url != watched.url or self._access_of(status) != watched.access:
                del self._watched[name]
                self._drop(watched)
        for name, status in wanted.items():
            if name not in self._watched:
                access = self._access_of(status)
                poller = Poller(status.url, self._clock, self._window_s, access)
                self._watched[name] = _Watched(status.url, access, poller)

    def _access_of(self, status: ServerStatus) -> ServerAccess | None:
        return self._access(status) if self._access is not None else None

    def _drop(self, watched: _Watched) -> None:
        if watched.task is not None:
            watched.task.cancel()
        closing = asyncio.ensure_future(watched.poller.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _start_host(self) -> asyncio.Future[None] | None:
        if self._host_source is None or self._executor is None:
            return None
        if self._host_task is None or self._host_task.done():
            pids = {status.name: status.pids for status in self._statuses if status.pids}
            loop = asyncio.get_running_loop()
            self._host_task = loop.run_in_executor(self._executor, self._read_host, self._host_source, pids)
        return self._host_task

    def _read_host(self, source: HostSource, pids: dict[str, tuple[int, ...]]) -> None:
        try:
            self._host = source.read_host()
            trees = {name: source.read_tree(found) for name, found in pids.items()}
            self._trees = {name: tree for name, tree in trees.items() if tree is not None}
        except Exception:
            _log.exception("the host cannot be read")

    def _publish(self) -> None:
        self._take_frames()
        self._sequence += 1
        self._snapshot = self._picture()
        for callback in tuple(self._subscribers.values()):
            self._call(callback)

    def _call(self, callback: Callable[[Snapshot], None]) -> None:
        try:
            callback(self._snapshot)
        except Exception:
            _log.exception("a subscriber failed")

    def _take_frames(self) -> None:
        if self._sampler is None:
            return
        for at_s, frame in self._sampler.drain():
            self._frame = (at_s, frame)
            self._events.extend(frame.events)
            for gpu in frame.gpus:
                self._energy.add(gpu.uuid, at_s, None if gpu.lost else gpu.energy_j)
                self.history.add_gpu(gpu.uuid, at_s, gpu_point(gpu))

    def _picture(self) -> Snapshot:
        now = self._clock.monotonic()
        gpu_status, gpus = self._gpus(now)
        servers = tuple(self._view(status, gpus, now) for status in self._statuses)
        self._states = {status.name: status.state for status in self._statuses}
        return Snapshot(
            sequence=self._sequence,
            at_s=now,
            at_wall_s=self._clock.wall(),
            window_s=self._window_s,
            host=self._host,
            gpu_status=gpu_status,
            gpus=gpus,
            servers=servers,
            history=self.history,
            events=tuple(self._events),
            simulated=gpu_status.simulated or any(view.status.simulated for view in servers),
        )

    def _gpus(self, now: float) -> tuple[GpuStatus, tuple[GpuReading, ...]]:
        if self._gpu_source is None:
            return GpuStatus(False, "GPU readings are off"), ()
        if self._frame is None:
            return GpuStatus(False, "looking for GPUs"), ()
        at_s, frame = self._frame
        age_s = now - at_s
        if age_s <= _STALE_GPU_S:
            return frame.status, frame.gpus
        message = f"the GPU driver has not answered for {age_s:.0f} s"
        aged = tuple(replace(gpu, age_s=max(gpu.age_s, age_s)) for gpu in frame.gpus)
        return replace(frame.status, message=message), aged

    def _view(self, status: ServerStatus, gpus: Sequence[GpuReading], now: float) -> ServerView:
        before = self._states.get(status.name)
        if before is not None and before is not status.state:
            self._event(now, "state", status.name, f"{before.value} → {status.state.value}")
        watched = self._watched.get(status.name)
        tree = self._trees.get(status.name)
        if watched is None:
            taken = is_answered_by_another(status.message)
            scrape = ScrapeStatus("other-server", status.message) if taken else ScrapeStatus("pending", "not running")
            return ServerView(status, scrape, tree=tree)
        poller = watched.poller
        scrape = watched.broken or poller.status()
        engines = poller.engines
        if status.version is None and poller.version is not None:
            status = replace(status, version=poller.version)
        if poller.simulated and not status.simulated:
            status = replace(status, simulated=True)
        if status.model is not None and len(engines) > 1:
            engines = tuple(sorted(engines, key=lambda engine: engine.model_name != status.model))
        view = ServerView(status, scrape, engines, tree, joules_per_token=self._joules_per_token(status, poller))
        view = replace(view, verdict=self._judged(view, gpus))
        self._note_changes(watched, view, now)
        self._record(watched, view, now)
        return view

    def _judged(self, view: ServerView, gpus: Sequence[GpuReading]) -> Verdict | None:
        if self._verdict is None:
            return None
        try:
            return self._verdict(view, gpus)
        except Exception as error:
            _log.exception("no verdict")
            return Verdict("unknown", f"cannot tell: {type(error).__name__} in the arithmetic")

    def _note_changes(self, watched: _Watched, view: ServerView, now: float) -> None:
        restarted = any(engine.restarted for engine in view.engines)
        if restarted and not watched.restarted:
            self._event(now, "restart", view.status.name, "the server began again: its counters started from zero")
        watched.restarted = restarted
        if view.scrape.state != watched.scrape_state:
            if watched.scrape_state != "pending" and view.scrape.state != "pending":
                text = view.scrape.message or "the metrics page is back"
                self._event(now, "state", view.status.name, text)
            watched.scrape_state = view.scrape.state

    def _record(self, watched: _Watched, view: ServerView, now: float) -> None:
        name = view.status.name
        if view.scrape.state not in ("ok", "other-server"):
            self.history.add_server(name, now, {})
        elif watched.poller.read_at_s != watched.recorded_s:
            watched.recorded_s = watched.poller.read_at_s
            self.history.add_server(name, now, server_point(view))

    def _event(self, at_s: float, kind: str, subject: str, text: str) -> None:
        self._events.append(Event(at_s, kind, subject, text))

    def _joules_per_token(self, status: ServerStatus, poller: Poller) -> float | None:
        """GPU energy over the tokens generated in the same window; None where the GPUs are shared or not known."""
        if not status.gpu_uuids or poller.read_at_s is None or not poller.engines:
            return None
        if any(_may_share(status, other) for other in self._statuses):
            return None
        tokens = 0.0
        for engine in poller.engines:
            if engine.generation_tokens_per_s is None:
                return None
            tokens += engine.generation_tokens_per_s * engine.window_s
        span_s = max(engine.window_s for engine in poller.engines)
        joules = self._energy.joules(status.gpu_uuids, poller.read_at_s - span_s, poller.read_at_s)
        return joules / tokens if joules is not None and tokens > 0 else None


def _is_read(status: ServerStatus) -> bool:
    """Whether a server answers at its address; a stranger's numbers must not stand under its name."""
    return status.state in _ANSWERS and bool(status.url) and not is_answered_by_another(status.message)


def _may_share(status: ServerStatus, other: ServerStatus) -> bool:
    """Whether another live server uses one of a server's GPUs, or may, for all that is known of it."""
    if other.name == status.name or other.state not in _ANSWERS or other.role == "router":
        return False
    if other.gpu_uuids is not None:
        return not set(other.gpu_uuids).isdisjoint(status.gpu_uuids or ())
    on_cpu = "+cpu" in (other.version or "")
    return not on_cpu and is_here(other.host) and is_here(status.host)
