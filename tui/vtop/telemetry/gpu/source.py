"""What every source of GPU readings offers: NVML, dcgm-exporter, the simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vtop.telemetry.snapshot import Event, GpuReading, GpuStatus


@dataclass(frozen=True, slots=True, eq=False)
class GpuFrame:
    """All GPUs at one tick."""

    status: GpuStatus
    gpus: tuple[GpuReading, ...] = ()
    """MIG instances follow the GPU that they are part of."""
    events: tuple[Event, ...] = ()
    """What happened since the last frame."""


class GpuSource(Protocol):
    """Reads GPUs. All three calls come from one worker thread, `read` about twice a second; none of them raises.

    A source that cannot work says so in `GpuFrame.status` and goes on trying by itself.
    """

    def open(self) -> None:
        """Gets ready; may take seconds (a driver without persistence mode wakes up)."""
        ...

    def read(self) -> GpuFrame:
        """The readings now. Costly calls are spread over ticks; what is unknown is None."""
        ...

    def close(self) -> None:
        """Gives everything back; harmless when called twice or without `open`."""
        ...
