"""Readings through the real pynvml against the stand-in library."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

import pytest

from telemetry_gpu.fake_nvml import H100, RTX_4090, LoadedFakeNvml, board, uuid_of
from vtop.clock import FakeClock, SystemClock
from vtop.telemetry.gpu.nvml import NvmlSource
from vtop.telemetry.gpu.source import GpuFrame
from vtop.telemetry.snapshot import GpuReading

GIB = 2**30


def frames(clock: FakeClock, count: int = 2, step_s: float = 0.5, **options: Any) -> list[GpuFrame]:
    """Opens a source, reads it some times, and closes it."""
    source = NvmlSource(clock, host_pids=True, **options)
    source.open()
    found = []
    for _ in range(count):
        found.append(source.read())
        clock.advance(step_s)
    source.close()
    return found


def reading(clock: FakeClock, slot: int = 0, **options: Any) -> GpuReading:
    return frames(clock, **options)[-1].gpus[slot]


def test_a_board_with_gpm_and_one_without(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    first, second = frames(clock)
    assert second.status.available and second.status.driver == "570.00"
    with_gpm, without = second.gpus
    assert first.gpus[0].bandwidth is not None and first.gpus[0].bandwidth.percent is None, "needs two samples"
    assert first.gpus[0].missing["bandwidth"] == "needs two samples"
    bandwidth = with_gpm.bandwidth
    assert bandwidth is not None
    assert (bandwidth.source, bandwidth.percent, bandwidth.peak_source) == ("gpm", 63.75, "nvml")
    assert bandwidth.peak_bytes_per_s == pytest.approx(3352.32e9)
    assert bandwidth.bytes_per_s == pytest.approx(2137.1e9, rel=1e-4)
    assert (with_gpm.sm_percent, with_gpm.sm_occupancy_percent, with_gpm.tensor_percent) == (91.5, 48.0, 22.0)
    assert without.bandwidth is not None
    assert (without.bandwidth.source, without.bandwidth.percent) == ("busy", 41)
    assert without.bandwidth.bytes_per_s is None, "a share of time is never turned into bytes"
    assert without.sm_percent is None and "GPM" in without.missing["sm_percent"]


def test_plain_readings_have_the_right_units(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    gpu = reading(clock)
    assert (gpu.power_w, gpu.power_limit_w, gpu.energy_j) == (512.0, 700.0, 1_000_000.0)
    assert (gpu.temperature_c, gpu.memory_temperature_c) == (61, 72)
    assert gpu.memory_used_bytes == 61203283968, "without what the driver reserves"
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz, gpu.memory_clock_max_mhz) == (1980, 2619, 2619)
    assert gpu.throttle == ("software power cap",)
    assert (gpu.pcie_generation, gpu.pcie_width) == (5, 16)
    assert gpu.pcie_rx_bytes_per_s == 250 * 2**20, "GPM counts MiB"
    assert gpu.nvlink_rx_bytes_per_s is None, "the metric's own return code failed while the call succeeded"


def test_gpm_values_that_are_no_numbers_are_absent(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, H100, gpm__10="nan", gpm__2="inf", gpm__5__ret=6)], gpm_min_ms=0)
    gpu = reading(clock)
    assert gpu.bandwidth is not None and gpu.bandwidth.source == "gpm" and gpu.bandwidth.percent is None
    assert gpu.sm_percent is None and gpu.tensor_percent is None
    assert gpu.sm_occupancy_percent == 48.0, "one failing metric does not take the others with it"


def test_samples_are_more_than_100_ms_apart(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    clock.advance(0.5)
    source.read()
    taken = nvml.calls("nvmlGpmSampleGet")
    for _ in range(3):
        clock.advance(0.03)
        frame = source.read()
        assert frame.gpus[0].bandwidth is not None and frame.gpus[0].bandwidth.percent == 63.75, "the value before"
    assert nvml.calls("nvmlGpmSampleGet") == taken
    clock.advance(0.1)
    source.read()
    assert nvml.calls("nvmlGpmSampleGet") == taken + 1
    source.close()


def test_spacing_on_the_real_clock(nvml: LoadedFakeNvml) -> None:
    """The library itself answers NaN for samples that are too close; at the hub's pace none is."""
    nvml.say(gpm_min_ms=100)
    source = NvmlSource(SystemClock())
    source.open()
    percents = []
    for _ in range(4):
        time.sleep(0.13)
        bandwidth = source.read().gpus[0].bandwidth
        percents.append(bandwidth.percent if bandwidth is not None else None)
    source.close()
    assert percents == [63.75] * 4


def test_samples_are_allocated_once_and_freed(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    for _ in range(50):
        clock.advance(0.5)
        source.read()
    assert nvml.live_samples == 2, "two for the one board with GPM, for life"
    source.close()
    source.close()
    assert nvml.live_samples == 0


def test_support_that_is_only_claimed_is_no_support(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    """Fractional virtual GPUs say yes and then fail at every sample."""
    nvml.say([board(0, H100, err__nvmlGpmSampleGet=3)], gpm_min_ms=0)
    source = NvmlSource(clock)
    source.open()
    for _ in range(10):
        clock.advance(0.5)
        gpu = source.read().gpus[0]
    assert gpu.bandwidth is not None and gpu.bandwidth.source == "busy" and gpu.bandwidth.percent == 88
    assert nvml.calls("nvmlGpmSampleGet") > 0
    before = nvml.calls("nvmlGpmSampleGet")
    clock.advance(30)
    source.read()
    assert nvml.calls("nvmlGpmSampleGet") == before, "probed, then silence"
    source.close()


def test_a_dram_metric_that_never_answers_gives_way_to_busy_time(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, H100, gpm__10__ret=3)], gpm_min_ms=0)
    sources = [frame.gpus[0].bandwidth.source for frame in frames(clock, count=15) if frame.gpus[0].bandwidth]
    assert sources[1] == "gpm" and sources[-1] == "busy"
    assert reading(clock).sm_percent == 91.5, "the other metrics stay"


def test_bytes_only_at_full_memory_clock(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, H100, clock_mem=1300)], gpm_min_ms=0)
    gpu = reading(clock)
    assert gpu.bandwidth is not None and gpu.bandwidth.percent == 63.75 and gpu.bandwidth.bytes_per_s is None
    assert gpu.missing["bandwidth_bytes_per_s"] == "the memory runs at 1300 of 2619 MHz"


def test_percent_above_100_is_shown_and_garbage_is_not(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, H100, gpm__10=104.5, gpm__2=1e9)], gpm_min_ms=0)
    gpu = reading(clock)
    assert gpu.bandwidth is not None and gpu.bandwidth.percent == 104.5
    assert gpu.sm_percent is None


def test_sentinels_and_impossible_values_are_absent(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    all_ones, all_ones_64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
    garbage = board(
        0,
        RTX_4090,
        power_mw=all_ones,
        power_limit_mw=all_ones,
        temp=all_ones,
        clock_sm=all_ones,
        clock_mem=0,
        fan=all_ones,
        energy_mj=all_ones_64,
        reasons=all_ones_64,
        util_gpu=250,
        mem_used=10**15,
    )
    nvml.say([garbage])
    gpu = reading(clock)
    for name in ("power_w", "power_limit_w", "temperature_c", "sm_clock_mhz", "memory_clock_mhz", "fan_percent"):
        assert getattr(gpu, name) is None, name
        assert gpu.missing[name], name
    assert gpu.energy_j is None and gpu.throttle == () and gpu.gpu_util_percent is None
    assert gpu.memory_used_bytes is None and "more used" in gpu.missing["memory_used_bytes"]
    assert gpu.memory_temperature_c is None, "GDDR boards answer 0"


def test_process_list_without_impossible_pids(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, H100, procs="0:5,4294967295:7,4242:-,17:1024")], gpm_min_ms=0)
    gpu = reading(clock)
    assert gpu.processes is not None
    assert [(process.pid, process.memory_used_bytes) for process in gpu.processes] == [(4242, None), (17, 1024)]


def test_old_driver_without_newer_calls(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    old = board(
        0, H100, no_mem_v2=1, err__nvmlDeviceGetTemperatureV=13, err__nvmlDeviceGetComputeRunningProcesses_v3=13
    )
    nvml.say([board(0, old, err__nvmlDeviceGetCurrentClocksEventReasons=13)], gpm_min_ms=0)
    gpu = reading(clock)
    assert gpu.memory_used_bytes == 61203283968 + 571211776, "the older call counts what is reserved as used"
    assert gpu.temperature_c == 61 and gpu.throttle == ("software power cap",)
    assert gpu.processes is None and gpu.missing["processes"] == "not offered by this driver"


def test_what_is_not_supported_is_not_asked_again_for_five_minutes(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    source.read()
    asked = nvml.calls("nvmlDeviceGetFanSpeed")
    for _ in range(20):
        clock.advance(0.5)
        gpus = source.read().gpus
    # Only the 4090 has a fan; the H100 board was asked once and never again.
    assert nvml.calls("nvmlDeviceGetFanSpeed") == asked + 20
    assert gpus[0].missing["fan_percent"] == "not supported by this GPU"
    nvml.say([board(0, H100, fan=55), board(1, RTX_4090)], gpm_min_ms=0)
    clock.advance(300)
    assert source.read().gpus[0].fan_percent == 55
    source.close()


def test_no_permission_is_said_and_not_fatal(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, H100, err__nvmlDeviceGetPowerUsage=4, field__186=None)], gpm_min_ms=0)
    gpu = reading(clock)
    assert gpu.power_w is None and gpu.missing["power_w"] == "no permission"
    assert gpu.temperature_c == 61


def test_a_passing_error_costs_one_reading(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    nvml.say([board(0, H100, err__nvmlDeviceGetUtilizationRates=999)], gpm_min_ms=0)
    clock.advance(0.5)
    bad = source.read().gpus[0]
    assert bad.gpu_util_percent is None and not bad.lost
    nvml.say([board(0, H100)], gpm_min_ms=0)
    clock.advance(0.5)
    assert source.read().gpus[0].gpu_util_percent == 98
    source.close()


def test_costly_calls_are_made_less_often(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    source.read()
    names = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMaxClockInfo")
    before = [nvml.calls(name) for name in names]
    for _ in range(20):  # ten seconds at 2 Hz
        clock.advance(0.5)
        source.read()
    each_tick, each_second, seldom = (nvml.calls(name) - was for name, was in zip(names, before, strict=True))
    assert (each_tick, each_second, seldom) == (40, 20, 0)
    source.close()


def test_names_and_limits_are_read_again_each_half_minute(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    nvml.say([board(0, H100, clock_mem_max=2000, power_limit_mw=500000)], gpm_min_ms=0)
    clock.advance(31)
    gpu = source.read().gpus[0]
    assert gpu.power_limit_w == 500 and gpu.memory_clock_max_mhz == 2000
    source.close()


def test_pcie_and_nvlink_rates_from_counters(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    def counters(pcie_tx: int, nvlink_rx_kib: int) -> dict[str, object]:
        return board(
            0, RTX_4090, **{"field__197": pcie_tx, "field__198": 0, "field__138": 0, "field__139": nvlink_rx_kib}
        )

    source = NvmlSource(clock)
    nvml.say([counters(2**32 - 1_000_000, 1000)])
    source.open()
    clock.advance(1.0)
    nvml.say([counters(2**32 - 500_000, 1000 + 2**20)])
    gpu = source.read().gpus[0]
    assert gpu.pcie_tx_bytes_per_s == 500_000
    assert gpu.nvlink_rx_bytes_per_s == 2**30, "the counter is in KiB"
    clock.advance(1.0)
    nvml.say([counters(500_000, 5)])
    gpu = source.read().gpus[0]
    assert gpu.pcie_tx_bytes_per_s == 1_000_000, "wrapped at 32 bits"
    assert gpu.nvlink_rx_bytes_per_s is None or gpu.nvlink_rx_bytes_per_s >= 0
    source.close()


def test_old_pcie_call_is_asked_rarely_because_it_measures_for_20_ms(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, RTX_4090, pcie_tx_kbs=1000, pcie_rx_kbs=2000)])
    source = NvmlSource(clock)
    source.open()
    for _ in range(18):
        clock.advance(0.5)
        gpu = source.read().gpus[0]
    assert (gpu.pcie_tx_bytes_per_s, gpu.pcie_rx_bytes_per_s) == (1e6, 2e6)
    calls = nvml.calls("nvmlDeviceGetPcieThroughput")
    clock.advance(0.5)
    source.read()
    assert nvml.calls("nvmlDeviceGetPcieThroughput") == calls
    source.close()


def test_energy_gives_joules(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    before = source.read().gpus[0].energy_j
    nvml.say([board(0, H100, energy_mj=1_000_512_000)], gpm_min_ms=0)
    clock.advance(1.0)
    after = source.read().gpus[0].energy_j
    assert before is not None and after is not None and after - before == pytest.approx(512.0)
    source.close()


@pytest.mark.parametrize("count", [8, 16])
def test_many_boards(nvml: LoadedFakeNvml, clock: FakeClock, count: int) -> None:
    name = "Example Accelerator With A Very Long Marketing Name 141GB HBM3e"
    nvml.say([board(slot, H100, name=name, power_mw=690_000 + slot * 1000) for slot in range(count)], gpm_min_ms=0)
    frame = frames(clock)[-1]
    assert [gpu.index for gpu in frame.gpus] == list(range(count))
    assert [gpu.uuid for gpu in frame.gpus] == [uuid_of(slot) for slot in range(count)]
    assert frame.gpus[-1].power_w == 690 + count - 1 and frame.gpus[0].name == name


def test_users_peak_wins_by_uuid_index_or_for_all(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    for key in (uuid_of(0), "0", "*"):
        bandwidth = reading(clock, peak_override_bytes_per_s={key: 3e12}).bandwidth
        assert bandwidth is not None and bandwidth.peak_source == "user"
        assert bandwidth.bytes_per_s == pytest.approx(0.6375 * 3e12)


def test_every_absent_figure_has_a_reason(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, {"name": "Example board that tells nothing"})])
    gpu = reading(clock)
    figures = [
        *("gpu_util_percent", "mem_busy_percent", "sm_percent", "tensor_percent", "memory_used_bytes", "power_w"),
        *("power_limit_w", "energy_j", "temperature_c", "memory_temperature_c", "sm_clock_mhz", "memory_clock_mhz"),
        *("pcie_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "ecc_uncorrected", "fan_percent"),
    ]
    for name in figures:
        assert getattr(gpu, name) is None, name
        assert gpu.missing.get(name), name
    assert gpu.bandwidth is not None and gpu.bandwidth.percent is None and gpu.missing["bandwidth"]


def test_vtop_never_calls_a_setter() -> None:
    package = Path(__file__).parents[2] / "tui" / "vtop" / "telemetry" / "gpu"
    named = {name for path in package.glob("*.py") for name in re.findall(r"\bnvml[A-Z]\w+", path.read_text("utf-8"))}
    assert "nvmlDeviceGetUtilizationRates" in named
    changing = {name for name in named if re.search(r"Set|Clear|Reset|Modify|Create|Destroy|Remove", name)}
    assert changing == {"nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree"}


def test_no_pid_that_the_driver_lists_is_ever_signalled() -> None:
    """In a container such a pid is the host's, and here it may be anybody's: telemetry cannot signal at all."""
    package = Path(__file__).parents[2] / "tui" / "vtop" / "telemetry"
    files = list(package.rglob("*.py"))
    assert len(files) > 20
    signalling = re.compile(r"\bos\.(kill|killpg)\b|\.(send_signal|terminate|kill)\(|\bimport signal\b")
    assert [path.name for path in files if signalling.search(path.read_text("utf-8"))] == []


def test_finite_everywhere(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, H100, field__82="nan", gpm__20="-nan", gpm__21="-5")], gpm_min_ms=0)
    gpu = reading(clock)
    for name in GpuReading.__dataclass_fields__:
        value = getattr(gpu, name)
        assert not isinstance(value, float) or math.isfinite(value), name
    assert gpu.pcie_rx_bytes_per_s is None
