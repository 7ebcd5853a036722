"""What a tick of GPU readings costs vtop itself: eight boards on the stand-in library, without the driver's own time.

Beside it the way of a tool that starts over each tick: initialise, look every handle up, ask everything, shut down. CPU
time, because other programs must not count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from telemetry_gpu.fake_nvml import H100, LoadedFakeNvml, board, build_fake_nvml, compiler, write_state
from vtop.clock import FakeClock
from vtop.telemetry.gpu.nvml import NvmlSource

Row = tuple[str, str, str, str]
BOARDS = 8
TICKS = 60


def _milliseconds(tick: Callable[[], object]) -> float:
    begun_s = time.process_time()
    for _ in range(TICKS):
        tick()
    return (time.process_time() - begun_s) / TICKS * 1000


def _starting_over(nvml: Any) -> None:
    """The same readings, from nothing each time."""
    nvml.nvmlInit()
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        for name in ("Name", "UUID", "PciInfo", "UtilizationRates", "PowerUsage", "EnforcedPowerLimit"):
            getattr(nvml, f"nvmlDeviceGet{name}")(handle)
        nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        nvml.nvmlDeviceGetTemperature(handle, 0)
        for clock in (1, 2):
            nvml.nvmlDeviceGetClockInfo(handle, clock)
        nvml.nvmlDeviceGetMaxClockInfo(handle, 2)
        nvml.nvmlDeviceGetMemoryBusWidth(handle)
        nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0)
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        for name in ("CurrPcieLinkGeneration", "MaxPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkWidth"):
            getattr(nvml, f"nvmlDeviceGet{name}")(handle)
        nvml.nvmlDeviceGetFieldValues(handle, [82, 186, 197, 198, (138, 0xFFFFFFFF), (139, 0xFFFFFFFF)])
        samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
        for sample in samples:
            nvml.nvmlGpmSampleGet(handle, sample)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 8
        request.sample1, request.sample2 = samples
        for place, metric in enumerate((2, 3, 5, 10, 20, 21, 60, 61)):
            request.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(request)
        for sample in samples:
            nvml.nvmlGpmSampleFree(sample)
    nvml.nvmlShutdown()


def run() -> list[Row]:
    """Rows of what, vtop, against, note."""
    what = f"one tick of {BOARDS} GPUs"
    if compiler() is None:
        return [(what, "–", "–", "no C compiler for the stand-in NVML library")]
    with tempfile.TemporaryDirectory() as directory:
        library = build_fake_nvml(Path(directory))
        state = write_state(Path(directory) / "gpus", [board(slot, H100) for slot in range(BOARDS)], gpm_min_ms=0)
        loaded = LoadedFakeNvml(library, state)
        clock = FakeClock()
        source = NvmlSource(clock)
        try:
            source.open()

            def tick() -> None:
                clock.advance(0.5)
                source.read()

            kept = _milliseconds(tick)
            source.close()
            over = _milliseconds(lambda: _starting_over(loaded.pynvml))
        finally:
            source.close()
            loaded.unload()
    share = kept * 2 / 1000 * 100
    note = f"at 2 Hz {share:.2f} % of a core, the driver's own time not counted; against: init and all calls each tick"
    return [(what, f"{kept:.2f} ms CPU", f"{over:.2f} ms CPU", note)]
