"""Adds vLLM's own byte counters, or vtop's arithmetic, to GPUs that cannot measure their DRAM traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from vtop.clock import Clock
from vtop.telemetry.gpu.estimate import SteadySource, from_counters, from_roofline
from vtop.telemetry.gpu.source import GpuFrame, GpuSource
from vtop.telemetry.snapshot import GpuReading


class EstimatingSource:
    """A `GpuSource` over another one.

    Args:
        source: the readings.
        counted: UUID -> (read, written) bytes a second by vLLM's counters, all servers on that GPU together; called in
            the worker thread, so it must only look at what is frozen.
        clock: when a line may change its source.
        modelled: UUID -> bytes a second by the roofline, for servers without such counters; as `counted`.
        peak_bytes_per_s: name of a card -> its peak and where that is from, for cards that do not say it themselves.
    """

    def __init__(
        self,
        source: GpuSource,
        counted: Callable[[], Mapping[str, tuple[float, float]]],
        modelled: Callable[[], Mapping[str, float]],
        clock: Clock,
        peak_bytes_per_s: Callable[[str], tuple[float, str] | None],
    ) -> None:
        self._source = source
        self._counted = counted
        self._modelled = modelled
        self._clock = clock
        self._peak = peak_bytes_per_s
        self._lines: dict[str, SteadySource] = {}

    def open(self) -> None:
        """See `GpuSource.open`."""
        self._source.open()

    def read(self) -> GpuFrame:
        """See `GpuSource.read`."""
        frame = self._source.read()
        counted, modelled = self._counted(), self._modelled()
        now = self._clock.monotonic()
        gpus = [self._reading(gpu, counted.get(gpu.uuid), modelled.get(gpu.uuid), now) for gpu in frame.gpus]
        return replace(frame, gpus=tuple(gpus))

    def close(self) -> None:
        """See `GpuSource.close`."""
        self._source.close()

    def _reading(
        self, gpu: GpuReading, counted: tuple[float, float] | None, modelled: float | None, now: float
    ) -> GpuReading:
        known = self._peak(gpu.name)
        own = gpu.bandwidth.peak_bytes_per_s if gpu.bandwidth else None
        peak, source = (own, gpu.bandwidth.peak_source) if own and gpu.bandwidth else known or (None, "")
        candidates = [gpu.bandwidth]
        if not gpu.lost:
            if counted is not None:
                candidates.append(from_counters(counted[0], counted[1], peak, source))
            candidates.append(from_roofline(modelled, peak, source))
        line = self._lines.setdefault(gpu.uuid, SteadySource())
        return replace(gpu, bandwidth=line.pick(now, candidates))
