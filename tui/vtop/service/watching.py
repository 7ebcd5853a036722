"""What is watched: vtop's own servers, those of others, the GPUs; and the hub that reads them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import psutil

from vtop import secrets
from vtop.clock import Clock
from vtop.errors import UsageError
from vtop.hardware import find_card
from vtop.late_httpx import httpx
from vtop.servers.discovery import SCAN_EVERY_S, Discovery
from vtop.servers.status import ServerState, ServerStatus
from vtop.servers.supervisor import Supervisor
from vtop.service.judging import Judge
from vtop.service.options import ServiceOptions
from vtop.telemetry.gpu.estimating import EstimatingSource
from vtop.telemetry.gpu.matching import NOT_VERIFIED, gpus_there, is_here, match_gpus
from vtop.telemetry.gpu.nvml import NvmlSource
from vtop.telemetry.gpu.simulated import SimulatedGpuSource
from vtop.telemetry.gpu.source import GpuFrame, GpuSource
from vtop.telemetry.host import HostSource
from vtop.telemetry.hub import Hub
from vtop.telemetry.scrape import ServerAccess
from vtop.telemetry.snapshot import Snapshot

_log = logging.getLogger(__name__)
ON_CPU = "it runs on the CPU, whose memory traffic nobody counts here"
_LIVE = {ServerState.STARTING, ServerState.READY, ServerState.DEGRADED}


class Watch:
    """Who is watched. Foreign servers are looked for every ten seconds, in the background."""

    def __init__(
        self, options: ServiceOptions, supervisor: Supervisor, snapshot: Callable[[], Snapshot | None]
    ) -> None:
        self._options = options
        self._supervisor = supervisor
        self._snapshot = snapshot
        self._foreign: tuple[ServerStatus, ...] = ()
        self._discovery: Discovery | None = None
        self._client: httpx.AsyncClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._matched: dict[tuple[str, int | None], tuple[tuple[str, ...] | None, str]] = {}

    async def open(self) -> None:
        """Looks once for servers of others, then keeps looking."""
        if not (self._options.urls or self._options.discover):
            return
        self._client = httpx.AsyncClient(verify=client_certificates(self._options.urls, self._options.ca_file))
        self._discovery = Discovery(
            self._client,
            self._options.urls,
            processes=self._options.discover,
            keys={url: _key_or_none(reference) for url, reference in self._options.api_keys.items()},
        )
        await self._look()
        self._task = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        """Stops looking."""
        if self._task is not None:
            self._task.cancel()
        if self._client is not None:
            await self._client.aclose()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(SCAN_EVERY_S)
            await self._look()

    async def _look(self) -> None:
        assert self._discovery is not None
        try:
            self._foreign = await self._discovery.scan(self._supervisor.statuses())
        except Exception:
            _log.exception("looking for servers failed")

    def statuses(self) -> tuple[ServerStatus, ...]:
        """All servers: vtop's own first."""
        own = self._supervisor.statuses()
        taken = {status.name for status in own}
        ports = {(s.host, s.port) for s in own if s.state in _LIVE}
        foreign = [s for s in self._foreign if s.name not in taken and (s.host, s.port) not in ports]
        return tuple(self._with_gpus(status) for status in (*own, *foreign))

    def gpu_frame(self) -> GpuFrame | None:
        """The newest GPU readings of this machine, or None where there are none yet."""
        snapshot = self._snapshot()
        if snapshot is None or snapshot.gpu_status.simulated:
            return None
        gpus = gpus_there("", snapshot.gpus)
        return GpuFrame(snapshot.gpu_status, gpus) if gpus else None

    def _with_gpus(self, status: ServerStatus) -> ServerStatus:
        """The GPUs of a server whose start did not say: by the driver's process list, or its own environment."""
        if status.gpu_uuids is None and "+cpu" in (status.version or ""):
            return replace(status, gpu_reason=ON_CPU)
        if status.gpu_uuids is None and not is_here(status.host):
            return self._with_gpus_elsewhere(status)
        frame = self.gpu_frame()
        if status.gpu_uuids is not None or status.simulated or frame is None or not status.pids:
            return status
        key = (status.name, status.pid)
        known = self._matched.get(key)
        if known is None or known[0] is None:
            visible, order = _cuda_environment(status.pid)
            match = match_gpus(visible, order, frame.gpus, status.pids)
            known = (match.uuids, match.reason)
            self._matched[key] = known
        return replace(status, gpu_uuids=known[0], gpu_reason=known[1])

    def _with_gpus_elsewhere(self, status: ServerStatus) -> ServerStatus:
        snapshot = self._snapshot()
        there = gpus_there(status.host, snapshot.gpus if snapshot is not None else ())
        if not there:
            return replace(
                status, gpu_reason="they are in another machine; --dcgm-url reads them from an exporter there"
            )
        if len(there) > 1:
            reason = f"{NOT_VERIFIED}: it may use any of {len(there)} GPUs of {status.host}"
            return replace(status, gpu_reason=reason)
        return replace(status, gpu_uuids=(there[0].uuid,), gpu_reason="the only GPU there")


def _key_or_none(reference: str) -> str | None:
    """A key that is not here keeps nobody from watching the rest: that server itself says that it needs one."""
    try:
        return secrets.resolve(reference)
    except UsageError:
        return None


def client_certificates(urls: Sequence[str], ca_file: str | None) -> ssl.SSLContext | bool:
    """What https servers are checked against.

    Raises:
        UsageError: the file holds no certificates.
    """
    if ca_file is None:
        if any(url.lower().startswith("https:") for url in urls):
            return True
        # One that trusts nobody: reading all authorities takes 3 MiB and 30 ms, for no address that needs them.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use {ca_file} as certificate authority: {error}", "Give a PEM file.") from error


def _cuda_environment(pid: int | None) -> tuple[str | None, str | None]:
    try:
        environ = psutil.Process(pid).environ() if pid is not None else {}
    except (psutil.Error, OSError):
        environ = {}
    return environ.get("CUDA_VISIBLE_DEVICES"), environ.get("CUDA_DEVICE_ORDER")


class SwitchingSource:
    """The machine's own GPUs; the simulated one while only simulated servers run and the machine has none."""

    def __init__(self, real: GpuSource, simulated: GpuSource, any_simulated: Callable[[], bool]) -> None:
        self._real = real
        self._simulated = simulated
        self._any_simulated = any_simulated

    def open(self) -> None:
        """See `GpuSource.open`."""
        self._real.open()
        self._simulated.open()

    def read(self) -> GpuFrame:
        """See `GpuSource.read`."""
        frame = self._real.read()
        return frame if frame.gpus or not self._any_simulated() else self._simulated.read()

    def close(self) -> None:
        """See `GpuSource.close`."""
        self._real.close()
        self._simulated.close()


def make_source(
    options: ServiceOptions,
    clock: Clock,
    watch: Watch,
    snapshot: Callable[[], Snapshot | None],
    judge: Judge,
) -> GpuSource:
    """The GPU readings that these options ask for."""

    def simulated_urls() -> list[str]:
        return [s.url for s in watch.statuses() if s.simulated and s.role != "router" and s.state in _LIVE]

    simulated = SimulatedGpuSource(simulated_urls, options.gpu)
    if options.simulated:
        return simulated
    override = options.peak_bytes_per_s
    real: GpuSource = NvmlSource(clock, {"*": override} if override else None)
    if options.dcgm_url:
        from vtop.telemetry.gpu.dcgm import DcgmExporter, DcgmOverlay

        peaks = {"*": override} if override else None
        real = DcgmOverlay(real, DcgmExporter(options.dcgm_url, clock), clock, peaks)

    def peak(name: str) -> tuple[float, str] | None:
        if override:
            return override, "user"
        card = find_card(name)
        return None if card is None else (card.bandwidth_bytes_per_s, "datasheet")

    real = EstimatingSource(
        real, lambda: counted_bytes(snapshot()), lambda: modelled_bytes(snapshot(), judge), clock, peak
    )
    return SwitchingSource(real, simulated, lambda: bool(simulated_urls()))


def counted_bytes(snapshot: Snapshot | None) -> Mapping[str, tuple[float, float]]:
    """UUID -> (read, written) bytes a second by vLLM's counters, of all servers on that GPU together."""
    sums: dict[str, tuple[float, float]] = {}
    for view in snapshot.servers if snapshot is not None else ():
        engine = view.engine
        if engine is None or engine.read_bytes_per_s is None or engine.write_bytes_per_s is None:
            continue
        for uuid in view.status.gpu_uuids or ():
            read, written = sums.get(uuid, (0.0, 0.0))
            sums[uuid] = (read + engine.read_bytes_per_s, written + engine.write_bytes_per_s)
    return sums


def modelled_bytes(snapshot: Snapshot | None, judge: Judge) -> Mapping[str, float]:
    """UUID -> bytes a second by arithmetic, of all servers on that GPU together."""
    sums: dict[str, float] = {}
    for view in snapshot.servers if snapshot is not None else ():
        traffic = judge.bytes_per_s(view, snapshot.gpus if snapshot is not None else ())
        for uuid in view.status.gpu_uuids or () if traffic is not None else ():
            sums[uuid] = sums.get(uuid, 0.0) + (traffic or 0.0)
    return sums


def access_to(options: ServiceOptions, supervisor: Supervisor) -> Callable[[ServerStatus], ServerAccess | None]:
    """Key and certificates of each server, by reference."""

    def access(status: ServerStatus) -> ServerAccess | None:
        if status.owned:
            reference = None
            with contextlib.suppress(Exception):
                reference = supervisor.api_key_reference(status.name)
            return ServerAccess(reference) if reference else None
        # The key goes only where the user sent it, never to a server that was merely found.
        if any(status.url.rstrip("/") == url.rstrip("/") for url in options.urls):
            return ServerAccess(options.api_keys.get(status.url.rstrip("/")), options.ca_file)
        return None

    return access


def make_hub(options: ServiceOptions, clock: Clock, watch: Watch, supervisor: Supervisor, judge: Judge) -> Hub:
    """The hub over everything that is watched."""
    hubs: list[Hub] = []

    def newest() -> Snapshot | None:
        return hubs[0].snapshot() if hubs else None

    hub = Hub(
        clock=clock,
        gpu_source=make_source(options, clock, watch, newest, judge),
        host_source=HostSource(),
        server_statuses=watch.statuses,
        verdict=judge,
        interval_s=options.interval_s,
        window_s=options.window_s,
        access=access_to(options, supervisor),
    )
    hubs.append(hub)
    return hub
