"""Adds vLLM's own byte counters to GPUs that cannot measure their DRAM traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from vtop.clock import Clock
from vtop.telemetry.gpu.estimate import SteadySource, from_counters
from vtop.telemetry.gpu.source import GpuFrame, GpuSource
from vtop.telemetry.snapshot import GpuReading


class EstimatingSource:
    """A `GpuSource` over another one.

    Args:
        source: the readings.
        counted: UUID -> (read, written) bytes a second by vLLM's counters, all servers on that GPU together; called in
            the worker thread, so it must only look at what is frozen.
        clock: when a line may change its source.
        peak_bytes_per_s: by the user's word, for cards whose peak is not known.
    """

    def __init__(
        self,
        source: GpuSource,
        counted: Callable[[], Mapping[str, tuple[float, float]]],
        clock: Clock,
        peak_bytes_per_s: Callable[[str], tuple[float, str] | None],
    ) -> None:
        self._source = source
        self._counted = counted
        self._clock = clock
        self._peak = peak_bytes_per_s
        self._lines: dict[str, SteadySource] = {}

    def open(self) -> None:
        """See `GpuSource.open`."""
        self._source.open()

    def read(self) -> GpuFrame:
        """See `GpuSource.read`."""
        frame = self._source.read()
        counted = self._counted()
        now = self._clock.monotonic()
        return replace(frame, gpus=tuple(self._reading(gpu, counted.get(gpu.uuid), now) for gpu in frame.gpus))

    def close(self) -> None:
        """See `GpuSource.close`."""
        self._source.close()

    def _reading(self, gpu: GpuReading, counted: tuple[float, float] | None, now: float) -> GpuReading:
        estimate = None
        if counted is not None and not gpu.lost:
            known = self._peak(gpu.name)
            own = gpu.bandwidth.peak_bytes_per_s if gpu.bandwidth else None
            peak, source = (own, gpu.bandwidth.peak_source) if own and gpu.bandwidth else known or (None, "")
            estimate = from_counters(counted[0], counted[1], peak, source)
        line = self._lines.setdefault(gpu.uuid, SteadySource())
        return replace(gpu, bandwidth=line.pick(now, (gpu.bandwidth, estimate)))
