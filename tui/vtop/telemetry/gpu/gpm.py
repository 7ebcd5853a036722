"""GPU Performance Monitoring (Hopper and newer, GeForce from the 50 series): real DRAM traffic, SM and tensor activity.

A value is the average between two samples, which NVML wants more than 100 ms apart. Support is not what the driver
claims but what a live sample shows: fractional virtual GPUs claim it and then fail. Samples have no finaliser, so two
are allocated once for each device and freed before NVML is shut down.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from vtop.clock import Clock
from vtop.telemetry.gpu.nvml_calls import LIBRARY_DOWN, LOST, DeviceLostError, LibraryDownError, plausible

SM_UTIL, SM_OCCUPANCY, ANY_TENSOR, DRAM_BW_UTIL = 2, 3, 5, 10
"""Percent; DRAM bandwidth in use against the theoretical maximum."""
PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX = 20, 21, 60, 61
"""MiB/s; of NVLink the even number is RX."""
METRICS = (SM_UTIL, SM_OCCUPANCY, ANY_TENSOR, DRAM_BW_UTIL, PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX)
MIN_SPACING_S = 0.1
FAILURES_UNTIL_DEAD = 10
_MAX_PERCENT = 400.0
"""Shares above 100 happen (MIG) and are shown; far above it is garbage."""
_MIB = 2**20


class Gpm:
    """Two samples of one device, or of one GPU instance through its parent. For one worker thread.

    Args:
        nvml: the `pynvml` module, initialised.
        clock: spacing of samples.
        device: the handle; of a MIG instance its parent's, since MIG handles in these calls break later memory queries.
        gpu_instance_id: which GPU instance of the parent, or None for the whole GPU.
    """

    def __init__(self, nvml: ModuleType, clock: Clock, device: Any, gpu_instance_id: int | None = None) -> None:
        self.live = False
        """Whether sampling works here."""
        self._nvml = nvml
        self._clock = clock
        self._device = device
        self._gpu_instance_id = gpu_instance_id
        self._samples: list[Any] = []
        self._taken_s = -math.inf
        self._last: dict[int, float] = {}
        self._failures = 0
        self._request: Any = None
        self._probe()

    def _probe(self) -> None:
        try:
            if not self._nvml.nvmlGpmQueryDeviceSupport(self._device).isSupportedDevice:
                return
            for _ in range(2):
                self._samples.append(self._nvml.nvmlGpmSampleAlloc())
            self._take(self._samples[0])
        except self._nvml.NVMLError as error:
            self.close()
            self._raise_if_gone(error.value)
            return
        except AttributeError:
            self.close()
            return
        self._taken_s = self._clock.monotonic()
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(METRICS)
        for place, metric in enumerate(METRICS):
            request.metrics[place].metricId = metric
        self._request = request  # 19 KB: made once, filled again each time
        self.live = True

    def _take(self, sample: Any) -> None:
        if self._gpu_instance_id is None:
            self._nvml.nvmlGpmSampleGet(self._device, sample)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._device, self._gpu_instance_id, sample)

    def _raise_if_gone(self, code: int) -> None:
        if code in LOST:
            raise DeviceLostError(LOST[code])
        if code in LIBRARY_DOWN:
            raise LibraryDownError(code)

    def read(self) -> dict[int, float]:
        """Metric number -> value since the sample before, only those that succeeded and are finite.

        Returns:
            Empty on the first call and where sampling fails; the values before when called within 100 ms.

        Raises:
            DeviceLostError: the device is gone.
            LibraryDownError: NVML is gone.
        """
        now_s = self._clock.monotonic()
        if not self.live:
            return {}
        if now_s - self._taken_s <= MIN_SPACING_S:
            return dict(self._last)
        older, newer = self._samples
        self._last = {}
        try:
            self._take(newer)
            # Swapped before the question, so that a failing one cannot keep the older sample for ever.
            self._samples, self._taken_s = [newer, older], now_s
            self._request.sample1, self._request.sample2 = older, newer
            self._nvml.nvmlGpmMetricsGet(self._request)
        except self._nvml.NVMLError as error:
            self._raise_if_gone(error.value)
            self._failures += 1
            if self._failures >= FAILURES_UNTIL_DEAD:
                self.close()
            return {}
        self._failures = 0
        for place, metric in enumerate(METRICS):
            answer = self._request.metrics[place]
            if answer.nvmlReturn == 0 and math.isfinite(answer.value):
                self._last[metric] = float(answer.value)
        return dict(self._last)

    def close(self) -> None:
        """Frees the samples; before NVML is shut down, and also after the device was lost."""
        self.live = False
        for sample in self._samples:
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError:
                continue
        self._samples = []


def gpm_percent(values: dict[int, float], metric: int) -> float | None:
    """A GPM share of 100."""
    return plausible(values.get(metric), 0, _MAX_PERCENT)


def mib_per_s(values: dict[int, float], metric: int, most: float) -> float | None:
    """A GPM rate, which NVML states in MiB/s, in bytes per second."""
    value = values.get(metric)
    return None if value is None else plausible(value * _MIB, 0, most)
