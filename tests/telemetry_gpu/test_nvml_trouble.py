"""Odd machines: no driver, lost boards, MIG, unified memory, containers, virtual GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from telemetry_gpu.fake_nvml import (
    H100,
    RTX_4090,
    LoadedFakeNvml,
    board,
    environment,
    uuid_of,
    write_state,
)
from vtop.clock import FakeClock, SystemClock
from vtop.telemetry.gpu import nvml as nvml_source
from vtop.telemetry.gpu.matching import match_gpus, process_label
from vtop.telemetry.gpu.nvml import NvmlSource, unavailable_text
from vtop.telemetry.gpu.processes import ProcessNames
from vtop.telemetry.snapshot import GpuProcess

GIB = 2**30
EXAMPLE = {
    "name": "Example H100 80GB",
    "mem_total": 85899345920,
    "mem_used": 21474836480,
    "util_gpu": 40,
    "util_mem": 20,
    "power_mw": 350000,
    "power_limit_mw": 700000,
    "temp": 50,
}


# ---- no driver, or one that fails


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "not loaded"),
        (12, "no NVIDIA driver library"),
        (17, "blocks access"),
        (18, "reboot, or restart the container"),
        (28, "finds no GPU"),
        (4, "no permission"),
        (999, "NVML error 999"),
    ],
)
def test_an_nvml_that_does_not_start_gets_one_line_with_a_remedy(
    nvml: LoadedFakeNvml, clock: FakeClock, code: int, words: str
) -> None:
    nvml.say([], init_err=code)
    source = NvmlSource(clock)
    source.open()
    frame = source.read()
    assert not frame.status.available and frame.gpus == ()
    assert words in frame.status.message and "\n" not in frame.status.message
    nvml.say(gpm_min_ms=0)
    clock.advance(10)
    assert source.read().status.available, "tried again by itself"
    source.close()


def test_absent_library_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Nothing needs a driver to be imported, and without one the binding is not imported either: it takes 2 MB."""
    code = (
        "from vtop.clock import SystemClock\n"
        "from vtop.telemetry.gpu.nvml import NvmlSource\n"
        "import sys; assert 'pynvml' not in sys.modules\n"
        "source = NvmlSource(SystemClock()); source.open(); print(source.read().status.message); source.close()\n"
        "print('pynvml' in sys.modules)\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        assert done.stdout.splitlines() == [unavailable_text(12), "False"]


def test_macos_is_not_told_to_install_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_source.sys, "platform", "darwin")
    assert "macOS" in unavailable_text(12) and "vtop demo" in unavailable_text(12)


def test_missing_binding_gets_one_line(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    source = NvmlSource(clock)
    source.open()
    assert "nvidia-ml-py is not installed" in source.read().status.message
    source.close()


def test_a_driver_without_gpus_says_so(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([])
    source = NvmlSource(clock)
    source.open()
    assert "finds no GPU" in source.read().status.message
    source.close()


def test_library_found_by_the_loader(fake_library: Path, tmp_path: Path) -> None:
    """A whole process with LD_LIBRARY_PATH, as for a run of vtop from end to end."""
    state = write_state(tmp_path / "gpus")
    code = (
        "from vtop.clock import SystemClock\n"
        "from vtop.telemetry.gpu.nvml import NvmlSource\n"
        "source = NvmlSource(SystemClock()); source.open()\n"
        "print(*(gpu.name for gpu in source.read().gpus), sep='|'); source.close()\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(fake_library, state), check=False)
    assert done.stdout.strip() == "NVIDIA H100 80GB HBM3|NVIDIA GeForce RTX 4090", done.stderr


def test_shutdown_by_somebody_else_is_repaired_at_once(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    source.read()
    nvml.pynvml.nvmlShutdown()
    nvml.forget_leaks()
    clock.advance(0.5)
    source.read()
    clock.advance(0.5)
    frame = source.read()
    assert frame.status.available and not frame.gpus[0].lost
    assert nvml.live_samples == 2
    source.close()


# ---- lost boards


def lost_scenario(utils: list[int], **changes: object) -> list[dict[str, object]]:
    return [board(slot, {**EXAMPLE, "util_gpu": util}) for slot, util in enumerate(utils)]


def test_a_lost_board_leaves_the_others_alone_and_indices_may_move(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say(lost_scenario([55, 55, 55, 66]))
    source = NvmlSource(clock)
    source.open()
    assert [gpu.gpu_util_percent for gpu in source.read().gpus] == [55, 55, 55, 66]

    boards = lost_scenario([55, 55, 55, 70])
    boards[2]["err.*"] = 15
    nvml.say(boards)
    clock.advance(2.0)
    frame = source.read()
    by_uuid = {gpu.uuid: gpu for gpu in frame.gpus}
    lost = by_uuid[uuid_of(2)]
    assert [gpu.uuid for gpu in frame.gpus if gpu.lost] == [uuid_of(2)]
    assert lost.gpu_util_percent == 55 and lost.age_s == 2.0 and "fell off the bus" in lost.missing["lost"]
    assert by_uuid[uuid_of(3)].gpu_util_percent == 70
    assert [(event.kind, event.subject) for event in frame.events] == [("gpu-lost", uuid_of(2))]

    stale = nvml.slot_calls(2)
    for _ in range(6):
        clock.advance(1.0)
        frame = source.read()
    assert nvml.slot_calls(2) == stale, "no call with a stale handle"
    assert frame.events == (), "one loss is one event"

    nvml.say(lost_scenario([55, 55, 0, 77]), order="0,1,3")
    clock.advance(10.0)
    frame = source.read()
    by_uuid = {gpu.uuid: gpu for gpu in frame.gpus}
    assert by_uuid[uuid_of(3)].index == 2 and by_uuid[uuid_of(3)].gpu_util_percent == 77
    assert by_uuid[uuid_of(2)].lost and by_uuid[uuid_of(2)].gpu_util_percent == 55, "its last values, not 0"
    source.close()


@pytest.mark.parametrize("code", [11, 15, 16])
def test_each_code_of_a_dead_device(nvml: LoadedFakeNvml, clock: FakeClock, code: int) -> None:
    source = NvmlSource(clock)
    source.open()
    nvml.say([board(0, H100, **{"err__*": code}), board(1, RTX_4090)], gpm_min_ms=0)
    clock.advance(0.5)
    first, second = source.read().gpus
    assert first.lost and not second.lost
    assert nvml.live_samples == 0, "its samples are freed"
    source.close()


def test_a_device_that_answers_everything_with_unknown_is_lost(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    nvml.say([board(0, H100, **{"err__*": 999}), board(1, RTX_4090)], gpm_min_ms=0)
    clock.advance(0.5)
    first, second = source.read().gpus
    assert first.lost and not second.lost
    source.close()


def test_a_lost_board_is_found_again(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    nvml.say([board(0, H100, **{"err__*": 15}), board(1, RTX_4090)], gpm_min_ms=0)
    clock.advance(0.5)
    assert source.read().gpus[0].lost
    nvml.say(gpm_min_ms=0)
    clock.advance(5.0)
    assert source.read().gpus[0].lost, "looked up only each ten seconds"
    clock.advance(10.0)
    frame = source.read()
    assert not frame.gpus[0].lost and frame.gpus[0].age_s == 0
    assert [event.text for event in frame.events] == ["GPU 0 is back"]
    clock.advance(0.5)
    bandwidth = source.read().gpus[0].bandwidth
    assert bandwidth is not None and bandwidth.percent == 63.75, "with samples of its own again"
    source.close()


def test_nvml_is_initialised_again_for_a_board_that_stays_lost(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    source = NvmlSource(clock)
    source.open()
    nvml.say([board(0, H100, **{"err__*": 15}), board(1, RTX_4090)], gpm_min_ms=0)
    before = nvml.calls("nvmlInitWithFlags")
    for _ in range(130):
        clock.advance(1.0)
        frame = source.read()
        assert not frame.gpus[1].lost
    assert nvml.calls("nvmlInitWithFlags") == before + 1, "after a minute, then every five"
    assert frame.gpus[0].lost and frame.gpus[0].age_s >= 129
    source.close()


def test_a_board_that_never_answered_has_a_row(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, H100), board(1, RTX_4090, **{"err__*": 15})], gpm_min_ms=0)
    source = NvmlSource(clock)
    source.open()
    good, bad = source.read().gpus
    assert not good.lost and bad.lost and bad.index == 1 and "fell off" in bad.missing["lost"]
    nvml.say(gpm_min_ms=0)
    clock.advance(31)
    gpus = source.read().gpus
    assert [gpu.lost for gpu in gpus] == [False, False] and gpus[1].uuid == uuid_of(1)
    source.close()


def test_boards_hidden_by_permissions_have_no_row(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, H100), board(1, RTX_4090, err__nvmlDeviceGetHandleByIndex_v2=4)], gpm_min_ms=0)
    source = NvmlSource(clock)
    source.open()
    assert [gpu.index for gpu in source.read().gpus] == [0]
    source.close()


# ---- faults and throttling as events


def test_xid_becomes_an_event_of_the_next_reading(nvml: LoadedFakeNvml) -> None:
    source = NvmlSource(SystemClock())
    source.open()
    nvml.say(gpm_min_ms=0, xid=f"{time.monotonic_ns()}:1:79")
    events = [event for event in source.read().events if event.kind == "xid"]
    assert [(event.subject, event.text) for event in events] == [(uuid_of(1), "XID 79: the GPU fell off the bus")]
    assert not [event for event in source.read().events if event.kind == "xid"], "each is told once"
    source.close()


def test_new_ecc_errors_and_hardware_slowdown_are_events_and_a_power_cap_is_not(
    nvml: LoadedFakeNvml, clock: FakeClock
) -> None:
    nvml.say([board(0, H100, ecc=3)], gpm_min_ms=0)
    source = NvmlSource(clock)
    source.open()
    assert source.read().events == (), "errors from before are no news, a power cap is normal"
    nvml.say([board(0, H100, ecc=5, reasons=0x1 | 0x40 | 0x1000)], gpm_min_ms=0)
    clock.advance(31)
    frame = source.read()
    assert [(event.kind, event.subject) for event in frame.events] == [("throttle", uuid_of(0)), ("ecc", uuid_of(0))]
    assert "2 more" in frame.events[1].text
    assert frame.gpus[0].throttle == ("hardware thermal slowdown", "unknown reason 0x1000")
    clock.advance(0.5)
    assert source.read().events == ()
    source.close()


# ---- unified memory


def test_unified_memory_shows_the_systems_and_a_discrete_board_never_does(
    nvml: LoadedFakeNvml, clock: FakeClock
) -> None:
    gb10 = {"name": "NVIDIA GB10", "util_gpu": 0, "util_mem": 0, "power_mw": 11170, "temp": 35}
    zero = {**gb10, "mem_total": 0, "mem_used": 0, "power_mw": 11000}
    whole = {**gb10, "mem_total": 127600748 * 1024, "mem_used": 5, "util_gpu": 50}
    discrete = {"name": "Example RTX 24GB", "util_gpu": 10, "util_mem": 5, "power_mw": 60000, "temp": 40}
    nvml.say(
        [board(0, gb10), board(1, zero), board(2, discrete), board(3, whole), board(4, {**discrete, "mem_total": 0})]
    )
    source = NvmlSource(clock, memory=lambda: (127600748 * 1024, 118566368 * 1024))
    source.open()
    refused, zeros, other, full, no_total = source.read().gpus
    source.close()
    for gpu in (refused, zeros, full):
        assert gpu.unified_memory and gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None
        assert gpu.memory_total_bytes / GIB == pytest.approx(121.69, abs=0.01)
        assert (gpu.memory_total_bytes - gpu.memory_used_bytes) / GIB == pytest.approx(113.07, abs=0.01)
        assert gpu.pcie_generation is None
    assert (refused.gpu_util_percent, refused.power_w, refused.temperature_c) == (0, 11.17, 35)
    assert refused.power_limit_w is None, "no bar without a limit"
    assert full.mem_busy_percent is None, "stuck at 0 while the GPU works is unknown, not idle"
    assert refused.bandwidth is not None and refused.bandwidth.peak_bytes_per_s == 273e9
    for gpu in (other, no_total):
        assert not gpu.unified_memory and gpu.memory_total_bytes is None and gpu.missing["memory_used_bytes"]


# ---- MIG


def mig_boards() -> list[dict[str, object]]:
    boards = [board(slot, EXAMPLE) for slot in range(8)]
    boards[6] = board(6, EXAMPLE, mem_used=15032385536, util_gpu=None, mig=1, mig_max=7)
    boards[7] = board(7, EXAMPLE, util_gpu=None, mig=1, mig_max=7, gpm=1, gpm__10=30, err__nvmlDeviceGetMemoryInfo=4)
    boards[7] |= {"err.nvmlDeviceGetMemoryInfo_v2": 4, "gi5.gpm.10": 75.0, "gi5.gpm.2": 60.0}
    boards[7] |= {
        "mig2.uuid": "MIG-00000000-0000-0000-0000-000000000001",
        "mig2.name": "Example H100 80GB MIG 2g.20gb",
        "mig2.gi": 5,
        "mig2.ci": 0,
        "mig2.mem_total": 21474836480,
        "mig2.mem_used": 3221225472,
        "mig2.procs": "4242:3221225472",
    }
    return boards


def test_mig_boards_say_not_measured_and_instances_have_their_own_memory(
    nvml: LoadedFakeNvml, clock: FakeClock
) -> None:
    nvml.say(mig_boards(), gpm_min_ms=0)
    source = NvmlSource(clock, host_pids=True)
    source.open()
    source.read()
    clock.advance(0.5)
    gpus = source.read().gpus
    source.close()
    whole = [gpu for gpu in gpus if gpu.mig_parent is None]
    utils = [gpu.gpu_util_percent for gpu in whole]
    assert utils == [40] * 6 + [None, None], "not measured is not 0"
    known = [util for util in utils if util is not None]
    assert sum(known) / len(known) == 40.0
    assert whole[6].memory_used_bytes == 14 * GIB and "MIG" in whole[6].missing["gpu_util_percent"]
    assert whole[7].memory_used_bytes is None and whole[7].missing["memory_used_bytes"] == "no permission"
    instance = next(gpu for gpu in gpus if gpu.mig_parent is not None)
    assert gpus.index(instance) == gpus.index(whole[7]) + 1
    assert instance.uuid == "MIG-00000000-0000-0000-0000-000000000001" and instance.mig_parent == uuid_of(7)
    assert instance.name.endswith("2g.20gb") and instance.memory_total_bytes == 20 * GIB
    assert instance.memory_used_bytes == 3 * GIB and instance.temperature_c == 50
    assert instance.power_w is None, "counted once, at the whole GPU"
    assert instance.bandwidth is not None and instance.bandwidth.source == "gpm"
    assert instance.bandwidth.percent == 75.0 and instance.bandwidth.bytes_per_s is None
    assert instance.sm_percent == 60.0
    assert instance.processes is not None and instance.processes[0].pid == 4242


def test_mig_zero_percent_is_not_believed(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    nvml.say([board(0, EXAMPLE, util_gpu=0, util_mem=0, mig=1, mig_max=7)])
    source = NvmlSource(clock)
    source.open()
    assert source.read().gpus[0].gpu_util_percent is None
    source.close()


def test_mig_samples_go_through_the_parent_and_are_freed_with_the_instance(
    nvml: LoadedFakeNvml, clock: FakeClock
) -> None:
    nvml.say(mig_boards()[7:], gpm_min_ms=0)
    source = NvmlSource(clock)
    source.open()
    source.read()
    assert nvml.live_samples == 4 and nvml.calls("nvmlGpmMigSampleGet") > 0
    nvml.say([board(7, EXAMPLE, gpm=1, gpm__10=30, mig=0)], gpm_min_ms=0)
    for _ in range(2):
        clock.advance(31)
        gpus = source.read().gpus
    assert [gpu.uuid for gpu in gpus] == [uuid_of(7)] and nvml.live_samples == 2
    assert gpus[0].gpu_util_percent == 40, "measured again"
    source.close()


# ---- containers


def test_pids_of_the_host_have_no_names_and_match_nothing(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    """One pid does not exist here, the other belongs to a process that has no GPU open: this one."""
    mine = os.getpid()
    nvml.say([board(0, H100, procs=f"99999999:34359738368,{mine}:2147483648")], gpm_min_ms=0)
    source = NvmlSource(clock, host_pids=False)
    source.open()
    gpu = source.read().gpus[0]
    source.close()
    assert gpu.processes is not None and [process.name for process in gpu.processes] == [None, None]
    assert "not visible in this container" in gpu.missing["processes"]
    match = match_gpus("0,1", None, [gpu], tree_pids=[mine])
    assert match.uuids != (gpu.uuid,) or "process list" not in match.reason
    assert process_label(gpu.processes[0]) == "host pid 99999999 (not visible here)"


def test_names_where_pids_are_ours(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    mine = os.getpid()
    nvml.say([board(0, H100, procs=f"{mine}:1073741824")], gpm_min_ms=0)
    source = NvmlSource(clock, host_pids=True)
    source.open()
    gpu = source.read().gpus[0]
    source.close()
    assert gpu.processes is not None and gpu.processes[0].name
    assert match_gpus(None, None, [gpu], tree_pids=[mine]) == ((gpu.uuid,), "by the driver's process list")


def test_name_of_a_pid_that_is_gone() -> None:
    assert ProcessNames(host_pids=True).name(99999999) is None
    assert process_label(GpuProcess(7, None, "python3")) == "python3 (pid 7)"


# ---- time share, virtual GPUs


def test_mem_busy_is_not_bandwidth_and_a_virtual_gpu_has_percent_only(nvml: LoadedFakeNvml, clock: FakeClock) -> None:
    hopper = board(0, H100, name="Example Hopper 80GB", gpm__10=62.5)
    ampere = board(1, H100, name="Example Ampere 40GB", gpm=0, clock_mem=1215, clock_mem_max=1215, util_mem=41)
    virtual = board(2, H100, clock_mem=None, clock_mem_max=None, bus_width=None, virtualization=2, gpm__10=50.0)
    nvml.say([hopper, ampere, virtual], gpm_min_ms=0)
    source = NvmlSource(clock)
    source.open()
    clock.advance(0.5)
    bandwidths = [gpu.bandwidth for gpu in source.read().gpus]
    source.close()
    real, share, slice_ = bandwidths
    assert real is not None and (real.source, real.percent) == ("gpm", 62.5)
    assert real.bytes_per_s == pytest.approx(2095.2e9)
    assert share is not None and (share.source, share.percent, share.bytes_per_s) == ("busy", 41, None)
    assert slice_ is not None and (slice_.source, slice_.percent, slice_.bytes_per_s) == ("gpm", 50.0, None)
    assert slice_.peak_bytes_per_s is None, "the whole board's datasheet is not a slice's peak"
