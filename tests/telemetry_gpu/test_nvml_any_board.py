"""Whatever a driver says or refuses: each figure is plausible or absent with a reason, and no board harms another."""

from __future__ import annotations

import math
import random

import pytest

from telemetry_gpu.fake_nvml import H100, RTX_4090, LoadedFakeNvml, board, uuid_of
from vtop.clock import FakeClock
from vtop.telemetry.gpu.nvml import NvmlSource
from vtop.telemetry.snapshot import GpuReading

NUMBERS = [key for key, value in H100.items() if not isinstance(value, str) and key not in ("mig", "gpm")]
ODD = [
    0,
    1,
    -1,
    7,
    99,
    101,
    250,
    65535,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**64 - 1,
    "nan",
    "inf",
    "-inf",
    "-nan",
    None,
]
CALLS = [
    f"nvmlDeviceGet{name}"
    for name in (
        *("MemoryInfo_v2", "MemoryInfo", "UtilizationRates", "PowerUsage", "EnforcedPowerLimit", "Temperature"),
        *("TotalEnergyConsumption", "ClockInfo", "MaxClockInfo", "MemoryBusWidth", "FanSpeed", "TotalEccErrors"),
        *("CurrentClocksEventReasons", "ComputeRunningProcesses_v3", "FieldValues", "MigMode", "CurrPcieLinkWidth"),
    )
] + ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmQueryDeviceSupport"]
CODES = [2, 3, 4, 6, 7, 10, 13, 19, 20, 21, 25, 26, 27, 999]
DEADLY = [11, 15, 16]
FIGURES = (
    *("gpu_util_percent", "mem_busy_percent", "sm_percent", "sm_occupancy_percent", "tensor_percent"),
    *("memory_used_bytes", "memory_total_bytes", "power_w", "power_limit_w", "energy_j", "temperature_c"),
    *("memory_temperature_c", "sm_clock_mhz", "memory_clock_mhz", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"),
    *("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "ecc_uncorrected", "fan_percent"),
)
MOST = {
    **dict.fromkeys(("gpu_util_percent", "mem_busy_percent", "fan_percent"), 100.0),
    **dict.fromkeys(("sm_percent", "sm_occupancy_percent", "tensor_percent"), 400.0),
    **dict.fromkeys(("power_w", "power_limit_w"), 20_000.0),
    **dict.fromkeys(("temperature_c", "memory_temperature_c"), 200.0),
    **dict.fromkeys(("sm_clock_mhz", "memory_clock_mhz"), 100_000.0),
    **dict.fromkeys(("memory_used_bytes", "memory_total_bytes"), 2.0**44),
}


def spoiled(chance: random.Random, slot: int) -> dict[str, object]:
    """A board with some odd numbers and some calls that fail."""
    keys = board(slot, chance.choice([H100, RTX_4090]))
    for key in chance.sample(NUMBERS, chance.randint(0, 8)):
        value = chance.choice(ODD)
        if value is None:
            keys.pop(key, None)
        else:
            keys[key] = value
    for call in chance.sample(CALLS, chance.randint(0, 4)):
        keys[f"err.{call}"] = chance.choice(CODES)
    if chance.random() < 0.15:
        keys["err.*"] = chance.choice([*DEADLY, 999])
    return keys


def plausible(gpu: GpuReading) -> None:
    for name in FIGURES:
        value = getattr(gpu, name)
        if value is None:
            assert gpu.lost or gpu.missing.get(name), f"{name} is absent without a reason"
        else:
            assert math.isfinite(value), name
            assert 0 <= value <= MOST.get(name, math.inf), f"{name} = {value}"
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes is not None:
        assert gpu.memory_used_bytes <= gpu.memory_total_bytes
    bandwidth = gpu.bandwidth
    if bandwidth is not None:
        assert bandwidth.source in ("gpm", "busy")
        for value in (bandwidth.percent, bandwidth.bytes_per_s, bandwidth.peak_bytes_per_s):
            assert value is None or (math.isfinite(value) and value >= 0)
        assert bandwidth.source == "gpm" or bandwidth.bytes_per_s is None, "busy time is never bytes"


@pytest.mark.parametrize("seed", range(40))
def test_no_driver_makes_a_reading_implausible_or_another_board_silent(
    nvml: LoadedFakeNvml, clock: FakeClock, seed: int
) -> None:
    """Three boards change at random over twelve readings; a fourth is sound and must stay so all the time."""
    chance = random.Random(seed)
    source = NvmlSource(clock, host_pids=True)
    sound = board(3, H100)
    nvml.say([*(board(slot, H100) for slot in range(3)), sound], gpm_min_ms=0)
    source.open()
    fresh = 0
    try:
        for tick in range(12):
            frame = source.read()
            assert frame.status.available
            for gpu in frame.gpus:
                plausible(gpu)
            good = next(gpu for gpu in frame.gpus if gpu.uuid == uuid_of(3))
            assert not good.lost
            assert (good.gpu_util_percent, good.power_w, good.temperature_c) == (98, 512.0, 61)
            assert good.bandwidth is not None
            # A board that stays lost has NVML start again in the end, and then two samples are needed again.
            started = tick == 0 or good.missing.get("bandwidth") == "needs two samples"
            assert good.bandwidth.percent == (None if started else 63.75)
            fresh += started
            assert len({gpu.uuid for gpu in frame.gpus}) == len(frame.gpus), "one row a board"
            nvml.say([*(spoiled(chance, slot) for slot in range(3)), sound], gpm_min_ms=0)
            clock.advance(chance.choice([0.5, 0.5, 1.0, 11.0, 31.0, 301.0]))
        assert fresh <= 4
    finally:
        source.close()
