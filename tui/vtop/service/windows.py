"""What server and GPU did during a load test: their own numbers over the test's clock, and the timeline beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vtop.clock import Clock
from vtop.load.progress import LoadProgress, LoadRequest
from vtop.servers.deployment import halves_of
from vtop.servers.status import ServerStatus
from vtop.telemetry.gpu.matching import gpus_of, gpus_there, process_label
from vtop.telemetry.scrape import Poller, ServerAccess
from vtop.telemetry.snapshot import GpuReading, ServerView, Snapshot
from vtop.vllm.reading import EngineReading, Latency

if TYPE_CHECKING:
    from vtop.load.runner import LoadRunner

THERMAL = "thermal"
"""Part of the words of every throttle reason that has to do with heat."""
_NEVER_TRIMMED_S = 1e9


def _mean(latency: Latency | None) -> float | None:
    return None if latency is None or latency.age_s else latency.mean_s


def _over_window(engine: EngineReading, per_s: float | None) -> float | None:
    # A counter's growth is whole; what the division by the window took from it comes back by rounding.
    return None if per_s is None else float(round(per_s * engine.window_s))


def server_numbers(engine: EngineReading) -> dict[str, float | None]:
    """The numbers of one window under the names that results use; unknown is None."""
    speculation = engine.speculation
    tokens = engine.generation_tokens_per_s
    return {
        "window_s": engine.window_s,
        "ttft_mean_s": _mean(engine.ttft),
        "tpot_mean_s": _mean(engine.tpot),
        "itl_mean_s": _mean(engine.itl),
        "e2e_mean_s": _mean(engine.e2e),
        "queue_mean_s": _mean(engine.queue),
        "prefill_mean_s": _mean(engine.prefill),
        "generation_tokens": _over_window(engine, tokens),
        "tokens_per_step": engine.tokens_per_step,
        "prefix_hit_rate": engine.prefix_hit_rate,
        "prompt_computed_share": engine.prompt_computed_share,
        "prompt_transferred_share": engine.prompt_transferred_share,
        "acceptance": None if speculation is None else speculation.acceptance,
        "acceptance_length": None if speculation is None else speculation.mean_length,
        "drafted_tokens": _over_window(engine, None if speculation is None else speculation.drafted_tokens_per_s),
        "preemptions": engine.preemptions,
        "kv_capacity_tokens": engine.kv_capacity_tokens,
    }


def timeline_row(view: ServerView | None, gpus: Sequence[GpuReading]) -> dict[str, Any]:
    """One row of the timeline: the server's live values and each GPU's."""
    row: dict[str, Any] = {}
    if view is not None and view.engine is not None:
        engine = view.engine
        row |= {
            "running": engine.running,
            "waiting": engine.waiting,
            "kv_usage": engine.kv_usage,
            "generation_tokens_per_s": engine.generation_tokens_per_s,
            "ttft_mean_s": _mean(engine.ttft),
            "tpot_mean_s": _mean(engine.tpot),
            "prefix_hit_rate": engine.prefix_hit_rate,
        }
    for gpu in gpus:
        prefix = f"gpu{gpu.index}_"
        row |= {
            f"{prefix}bandwidth_percent": gpu.bandwidth.percent if gpu.bandwidth else None,
            f"{prefix}bandwidth_source": gpu.bandwidth.source if gpu.bandwidth else None,
            f"{prefix}sm_percent": gpu.sm_percent,
            f"{prefix}gpu_util_percent": gpu.gpu_util_percent,
            f"{prefix}memory_used_bytes": gpu.memory_used_bytes,
            f"{prefix}power_w": gpu.power_w,
        }
    return row


class LoadWindows:
    """Two looks at the server's page of its own, one when the clock starts and one when it ends; GPUs in between."""

    def __init__(
        self, clock: Clock, access: Callable[[str], ServerAccess | None], joules: Callable[..., float | None]
    ) -> None:
        self._clock = clock
        self._access = access
        self._joules = joules
        self._request: LoadRequest | None = None
        self._poller: Poller | None = None
        self._first_look: asyncio.Task[bool] | None = None
        self._started_s: float | None = None
        self._seen: list[tuple[float, ServerView | None, tuple[GpuReading, ...]]] = []
        self._loads: LoadRunner | None = None
        self._driver: str | None = None
        self._pids: tuple[int, ...] = ()

    def record_into(self, loads: LoadRunner) -> None:
        """Follows the tests of this runner."""
        self._loads = loads
        loads.on_progress(self._progress)

    def aim(self, request: LoadRequest) -> None:
        """A test is about to start."""
        self._request = request
        self._seen = []
        self._started_s = None
        own = ServerAccess(request.api_key, request.ca_file)
        access = own if request.api_key or request.ca_file else self._access(request.url)
        old, self._poller = self._poller, Poller(request.url, self._clock, _NEVER_TRIMMED_S, access)
        if old is not None:
            self._first_look = asyncio.ensure_future(self._swap(old))
        elif request.warmup == 0:
            # Without a warm-up nothing may come between the first look and the first request.
            self._first_look = asyncio.ensure_future(self._poller.poll())

    async def _swap(self, old: Poller) -> bool:
        await old.close()
        assert self._poller is not None
        return await self._poller.poll() if self._request and self._request.warmup == 0 else False

    async def looked(self) -> None:
        """Waits for the look before a test without a warm-up."""
        if self._first_look is not None:
            await self._first_look

    def _progress(self, progress: LoadProgress) -> None:
        if progress.started_s is None or progress.started_s == self._started_s or self._poller is None:
            return
        self._started_s = progress.started_s
        if self._request is not None and self._request.warmup != 0:
            self._first_look = asyncio.ensure_future(self._poller.poll())

    def take(self, snapshot: Snapshot) -> None:
        """One snapshot of the hub: a row of the timeline while a test runs."""
        if self._loads is None or not self._loads.running or self._request is None:
            return
        url = self._request.url.rstrip("/")
        view = next((v for v in snapshot.servers if v.status.url.rstrip("/") == url), None)
        gpus = own_gpus(view, snapshot)
        self._driver = snapshot.gpu_status.driver
        self._pids = tuple(pid for status in working(view, snapshot) for pid in status.pids)
        self._seen.append((snapshot.at_s, view, gpus))
        self._loads.record_timeline(snapshot.at_s, timeline_row(view, gpus))

    async def read(self, start_s: float, end_s: float) -> Mapping[str, Any]:
        """The context of a finished test: `server`, `gpu`, `fingerprint`."""
        context: dict[str, Any] = {"server": await self._server(), "gpu": {}, "fingerprint": {}}
        seen = [(at, view, gpus) for at, view, gpus in self._seen if start_s <= at <= end_s + 1.0]
        views = [view for _, view, _ in seen if view is not None and view.engine is not None]
        if views:
            running = [v.engine.running for v in views if v.engine and v.engine.running is not None]
            usage = [v.engine.kv_usage_max for v in views if v.engine and v.engine.kv_usage_max is not None]
            context["server"] |= {
                "running_max": max(running, default=None),
                "kv_usage_max": max(usage, default=None),
            }
        # A test of two seconds may end before the first snapshot of its window.
        known = [view.status for _, view, _ in self._seen if view is not None]
        if known:
            context["fingerprint"]["preset"] = known[-1].preset
            if version := known[-1].version:
                # /version leaves the build out (`+cpu`); two runs of one server must not look like two versions.
                context["fingerprint"]["vllm_version"] = version.split("+")[0]
        frames = [(at, gpus) for at, _, gpus in seen if gpus]
        if frames:
            context["gpu"] = self._gpu(frames, start_s, end_s, context["server"])
        used = next((gpus for _, _, gpus in reversed(self._seen) if gpus), ())
        if used:
            context["fingerprint"]["gpu"] = sorted({gpu.name for gpu in used})
            context["fingerprint"]["gpu_uuid"] = sorted({gpu.uuid for gpu in used})
            context["fingerprint"]["driver"] = self._driver
        return context

    async def _server(self) -> dict[str, Any]:
        if self._poller is None:
            return {}
        await self.looked()
        await self._poller.poll()
        engines = self._poller.engines
        model = self._request.model if self._request else ""
        engine = next((e for e in engines if e.model_name == model), engines[0] if engines else None)
        return {} if engine is None else dict(server_numbers(engine))

    def _gpu(
        self,
        seen: Sequence[tuple[float, tuple[GpuReading, ...]]],
        start_s: float,
        end_s: float,
        server: Mapping[str, Any],
    ) -> dict[str, Any]:
        last = seen[-1][1]
        readings = [gpu for _, frame in seen for gpu in frame]
        sources = {gpu.bandwidth.source for gpu in readings if gpu.bandwidth is not None}
        percents = [gpu.bandwidth.percent for gpu in readings if gpu.bandwidth and gpu.bandwidth.percent is not None]
        numbers: dict[str, Any] = {
            "power_mean_w": _average([gpu.power_w for gpu in readings]),
            "gpu_util_percent": _average([gpu.gpu_util_percent for gpu in readings]),
            "thermal_throttled_s": throttled_s(seen, start_s, end_s),
        }
        numbers["other_processes"] = strangers(last, self._pids)
        if len(sources) == 1:
            numbers["bandwidth_source"] = sources.pop()
            numbers["bandwidth_percent"] = _average(percents)
        joules = self._joules(sorted({gpu.uuid for gpu in last}), start_s, end_s)
        tokens = server.get("generation_tokens")
        if joules is not None and tokens:
            numbers["joules_per_token"] = joules / tokens
        return numbers

    async def close(self) -> None:
        """Closes the connection."""
        if self._poller is not None:
            await self._poller.close()


def throttled_s(seen: Sequence[tuple[float, tuple[GpuReading, ...]]], start_s: float, end_s: float) -> float:
    """Seconds in which heat held a GPU back: each look speaks for the time since the one before."""
    total, before = 0.0, start_s
    for at_s, gpus in seen:
        until = min(at_s, end_s)
        if any(THERMAL in reason.lower() for gpu in gpus for reason in gpu.throttle):
            total += max(0.0, until - before)
        before = max(before, until)
    return total


def working(view: ServerView | None, snapshot: Snapshot) -> tuple[ServerStatus, ...]:
    """The servers that do the work of one: itself, or the prefill and decode servers behind a router."""
    if view is None:
        return ()
    return tuple(halves_of(view.status, [other.status for other in snapshot.servers])) or (view.status,)


def own_gpus(view: ServerView | None, snapshot: Snapshot) -> tuple[GpuReading, ...]:
    """The GPUs of one server; the only one of this machine where no server is known."""
    if view is None:
        here = gpus_there("", snapshot.gpus)
        return here if len(here) == 1 else ()
    used = {gpu.uuid for status in working(view, snapshot) for gpu in gpus_of(status, snapshot.gpus)}
    return tuple(gpu for gpu in snapshot.gpus if gpu.uuid in used)


def strangers(gpus: Sequence[GpuReading], own_pids: Sequence[int]) -> list[str]:
    """Other processes that hold memory on these GPUs, in words; those without a name cannot be told from our own."""
    return sorted(
        {
            process_label(process)
            for gpu in gpus
            for process in gpu.processes or ()
            if process.name is not None and process.pid not in own_pids
        }
    )


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
