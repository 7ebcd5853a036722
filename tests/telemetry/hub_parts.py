"""Stand-ins for what the hub reads, and readings to compare with."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from vtop.servers.status import ServerState, ServerStatus
from vtop.telemetry.gpu.source import GpuFrame
from vtop.telemetry.snapshot import Bandwidth, Event, GpuReading, GpuStatus, HostReading, TreeReading


class Gpus:
    """A source whose frames a test sets; it notes the threads that call it."""

    def __init__(self, *gpus: GpuReading) -> None:
        self.frame = GpuFrame(GpuStatus(True, driver="570.1"), gpus)
        self.threads: set[str] = set()
        self.reads = 0
        self.closed = False
        self.raises: Exception | None = None
        self.blocked: threading.Event | None = None

    def open(self) -> None:
        self.threads.add(threading.current_thread().name)

    def read(self) -> GpuFrame:
        self.threads.add(threading.current_thread().name)
        self.reads += 1
        if self.blocked is not None:
            self.blocked.wait(30)
        if self.raises is not None:
            raise self.raises
        return self.frame

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.closed = True


class Host:
    """A machine that answers at once."""

    def __init__(self) -> None:
        self.raises: Exception | None = None

    def read_host(self) -> HostReading:
        if self.raises is not None:
            raise self.raises
        return HostReading("box", cpu_percent=12.5, cpu_count=2)

    def read_tree(self, pids: Sequence[int]) -> TreeReading | None:
        return TreeReading(len(pids), rss_bytes=1 << 30)


def gpu(energy_j: float | None = 1000.0, uuid: str = "GPU-1", **more: object) -> GpuReading:
    """An H100 with measured bandwidth."""
    values = {"gpu_util_percent": 100.0, **more}
    return GpuReading(
        uuid=uuid,
        index=0,
        name="NVIDIA H100",
        bandwidth=Bandwidth("gpm", 62.5, 2.0952e12, 3.3523e12, "nvml"),
        memory_used_bytes=60 << 30,
        memory_total_bytes=80 << 30,
        power_w=512.0,
        energy_j=energy_j,
        **values,  # type: ignore[arg-type]
    )


def gpu_event(text: str) -> Event:
    """Something a driver reports."""
    return Event(1.0, "xid", "GPU-1", text)


def server(name: str, url: str, state: ServerState = ServerState.READY, **more: object) -> ServerStatus:
    """A server as the supervisor would state it."""
    return ServerStatus(name, url, state, **more)  # type: ignore[arg-type]
