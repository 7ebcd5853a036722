"""Verifies on a real NVIDIA GPU what vtop otherwise takes from documentation; stands alone with `traffic.py` beside it.

    python check.py [--device N] [--seconds S]

Needs nvidia-ml-py; with PyTorch it also makes load and compares readings with traffic of known size (about a minute).
It only reads: no clocks, limits, modes, streaming or resets are touched. Each line names its point, what was seen, and
whether that is what vtop expects; `docs/hardware.md` says what each point decides.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pynvml as nvml

try:
    import torch
    from traffic import Load, copy_burst, matmul_burst, upload_burst
except ImportError:
    torch = None  # type: ignore[assignment]

GPM_IDS = (2, 3, 5, 10, 20, 21, 60, 61)
SM, OCCUPANCY, TENSOR, DRAM, PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX = GPM_IDS
ALL_LINKS = 0xFFFFFFFF
MIB = 2**20
VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}


class Report:
    """Plain lines, each with its point."""

    def __init__(self) -> None:
        self.unexpected = 0

    def note(self, point: str, text: str) -> None:
        """For the record; nobody knows what is right."""
        print(f"[{point}] {text}", flush=True)

    def judge(self, point: str, text: str, expected: bool, if_not: str) -> None:
        """Something with an expectation."""
        self.unexpected += not expected
        print(f"[{point}] {text}: {'as expected' if expected else f'NOT AS EXPECTED: {if_not}'}", flush=True)

    def skip(self, point: str, why: str) -> None:
        """Not done."""
        print(f"[{point}] skipped: {why}", flush=True)


def ask(function: str, *arguments: Any, **options: Any) -> tuple[Any, str]:
    """One guarded call: its answer, or None and the error's name and code."""
    try:
        return getattr(nvml, function)(*arguments, **options), ""
    except nvml.NVMLError as error:
        return None, f"{type(error).__name__.removeprefix('NVMLError_')} ({error.value})"
    except (AttributeError, nvml.NVMLLibraryMismatchError) as error:
        return None, type(error).__name__


def shown(value: Any, error: str) -> str:
    """An answer as text."""
    return error if error else str(value)


@contextmanager
def gpm_samples() -> Iterator[tuple[Any, Any]]:
    """Two samples, freed whatever happens."""
    held = []
    try:
        for _ in range(2):
            held.append(nvml.nvmlGpmSampleAlloc())
        yield held[0], held[1]
    finally:
        for sample in held:
            ask("nvmlGpmSampleFree", sample)


def gpm_metrics(older: Any, newer: Any, ids: Sequence[int] = GPM_IDS) -> tuple[dict[int, float], dict[int, int], str]:
    """Values by number, return codes of those that failed, and the error of the call itself."""
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(ids)
    request.sample1, request.sample2 = older, newer
    for place, metric in enumerate(ids):
        request.metrics[place].metricId = metric
    _, error = ask("nvmlGpmMetricsGet", request)
    if error:
        return {}, {}, error
    found = {metric: request.metrics[place] for place, metric in enumerate(ids)}
    values = {metric: float(answer.value) for metric, answer in found.items() if answer.nvmlReturn == 0}
    return values, {metric: int(answer.nvmlReturn) for metric, answer in found.items() if answer.nvmlReturn}, ""


def gpm_pair(handle: Any, gap_s: float, instance: int | None = None) -> tuple[dict[int, float], dict[int, int], str]:
    """Two samples some time apart, and the metrics between them."""
    with gpm_samples() as (older, newer):
        for sample in (older, newer):
            if instance is None:
                _, error = ask("nvmlGpmSampleGet", handle, sample)
            else:
                _, error = ask("nvmlGpmMigSampleGet", handle, instance, sample)
            if error:
                return {}, {}, error
            if sample is older:
                time.sleep(gap_s)
        return gpm_metrics(older, newer)


def fields(handle: Any, wanted: Sequence[Any]) -> dict[int, float]:
    """NVML's field batch; only those that succeeded."""
    answer, error = ask("nvmlDeviceGetFieldValues", handle, list(wanted))
    if error:
        return {}
    found = {}
    for field in answer:
        member = VALUE_MEMBERS.get(field.valueType)
        if field.nvmlReturn == 0 and member:
            found[int(field.fieldId)] = float(getattr(field.value, member))
    return found


def header(report: Report, handle: Any, index: int, first_handle_s: float) -> None:
    """Whose lines these are."""
    for name in ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlDeviceGetCount"):
        report.note("0", f"{name}: {shown(*ask(name))}")
    report.note("0", f"first handle look-up: {first_handle_s * 1000:.1f} ms")
    for name in ("Name", "UUID", "Architecture", "CudaComputeCapability", "PersistenceMode", "MigMode"):
        report.note("0", f"device {index} {name}: {shown(*ask(f'nvmlDeviceGet{name}', handle))}")
    report.note("0", f"virtualization: {shown(*ask('nvmlDeviceGetVirtualizationMode', handle))}")
    inside = os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")
    user = os.geteuid() if hasattr(os, "geteuid") else "?"
    report.note("0", f"user id {user}, container marks: {inside}, PyTorch: {getattr(torch, '__version__', 'none')}")


def peak(report: Report, handle: Any) -> float | None:
    """Points 1.1 to 1.4: what the formula gives, in bytes per second."""
    mhz, mhz_error = ask("nvmlDeviceGetMaxClockInfo", handle, 2)
    bits, bits_error = ask("nvmlDeviceGetMemoryBusWidth", handle)
    report.note("1.1", f"max memory clock {shown(mhz, mhz_error)} MHz, bus {shown(bits, bits_error)} bit")
    if not mhz or not bits:
        report.note("1.4", "no formula for this board: vtop needs a table entry")
        return None
    by_formula = 2.0 * mhz * 1e6 * bits / 8.0
    report.note("1.1", f"formula 2 x MHz x bits / 8: {by_formula / 1e9:.1f} GB/s; compare with the datasheet")
    return by_formula


def gpm_support(report: Report, handle: Any) -> bool:
    """Points 2.1, 2.2, 2.4, 2.10, 2.11, 2.13, 2.14."""
    claimed, error = ask("nvmlGpmQueryDeviceSupport", handle)
    if error:
        report.note("2.1", f"GPM query: {error}; vtop shows busy time")
        return False
    try:
        values, failed, error = gpm_pair(handle, 0.5)
    except nvml.NVMLError as problem:
        values, failed, error = {}, {}, f"{type(problem).__name__} ({problem.value})"
    claim, works = bool(claimed.isSupportedDevice), not error and DRAM in values
    told = error or {metric: round(value, 3) for metric, value in values.items()}
    report.judge(
        "2.1", f"claimed {claim}, works {works} ({told})", claim == works, "the live probe decides, as it does"
    )
    if not works:
        return False
    report.judge("2.2", f"works as user id {getattr(os, 'geteuid', lambda: '?')()}", True, "")
    quiet = math.isfinite(values[DRAM]) and values[DRAM] <= 10
    report.judge("2.4", f"idle: DRAM {values[DRAM]:.2f} %", quiet, "others use this GPU, or idle does not read as 0")
    for metric in (NVLINK_RX, NVLINK_TX):
        report.note("2.10", f"NVLink metric {metric}: {values.get(metric, f'return code {failed.get(metric)}')}")
    with gpm_samples() as (older, newer):
        gets, metrics = [], []
        for _ in range(30):
            begun_s = time.perf_counter()
            ask("nvmlGpmSampleGet", handle, newer)
            gets.append(time.perf_counter() - begun_s)
        ask("nvmlGpmSampleGet", handle, older)
        time.sleep(0.2)
        ask("nvmlGpmSampleGet", handle, newer)
        for _ in range(30):
            begun_s = time.perf_counter()
            gpm_metrics(older, newer)
            metrics.append(time.perf_counter() - begun_s)
        _, unknown, error = gpm_metrics(older, newer, (DRAM, 332))
    report.judge(
        "2.11", f"unknown metric 332: {error or unknown or 'known here'}", not error, "probe each metric alone"
    )
    report.note("2.13", f"streaming (read only): {shown(*ask('nvmlGpmQueryIfStreamingEnabled', handle))}")
    for name, times in (("SampleGet", gets), ("MetricsGet", metrics)):
        middle = statistics.median(times) * 1000
        text = f"{name}: median {middle:.2f} ms, max {max(times) * 1000:.2f} ms"
        report.judge("2.14", text, middle < 5, "lower the rate of GPU readings")
    return True


def gpm_under_load(report: Report, handle: Any, device: str, peak_bytes: float | None, seconds: float) -> None:
    """Points 1.5, 2.3, 2.5 to 2.9."""
    burst, size = copy_burst(device)
    reached: list[tuple[float, float]] = []
    for duty in (1.0, 0.5, 0.1):
        with Load(burst, device, duty) as load, gpm_samples() as (older, newer):
            ask("nvmlGpmSampleGet", handle, older)
            load.restart_count()
            time.sleep(seconds)
            moved = load.bytes_per_s()
            ask("nvmlGpmSampleGet", handle, newer)
            values, _, error = gpm_metrics(older, newer)
            rates, _ = ask("nvmlDeviceGetUtilizationRates", handle)
            now_mhz, _ = ask("nvmlDeviceGetClockInfo", handle, 2)
            max_mhz, _ = ask("nvmlDeviceGetMaxClockInfo", handle, 2)
            dram = values.get(DRAM, math.nan)
            report.note(
                "2.7", f"copy at {duty:.0%}: busy time {getattr(rates, 'memory', '?')} %, GPM DRAM {dram:.1f} %"
            )
            report.note("2.5", f"copy ({size}) at {duty:.0%} of the time: moved {moved / 1e9:.0f} GB/s {error}")
            if peak_bytes and math.isfinite(dram):
                counted = dram / 100 * peak_bytes
                text = f"GPM x peak(max clock) = {counted / 1e9:.0f} GB/s, ratio to moved {counted / moved:.3f}"
                report.judge("2.5", text, 0.9 <= counted / moved <= 1.15, "show the percentage without bytes")
                if now_mhz and max_mhz and now_mhz < 0.98 * max_mhz:
                    by_now = counted * now_mhz / max_mhz
                    report.note(
                        "2.6", f"at {now_mhz} of {max_mhz} MHz: peak(current clock) gives {by_now / 1e9:.0f} GB/s"
                    )
                else:
                    report.skip("2.6", f"memory clock is at its maximum ({now_mhz} of {max_mhz} MHz)")
                reached.append((duty, moved))
            if duty == 1.0:
                for gap_s in (0.0, 0.02, 0.05, 0.12, 0.5):
                    seen, failed, error = gpm_pair(handle, gap_s)
                    text = f"gap {gap_s * 1000:.0f} ms: DRAM {seen.get(DRAM, error or failed)}"
                    steady = math.isfinite(dram) and abs(seen.get(DRAM, math.nan) - dram) <= 5
                    if gap_s >= 0.12:
                        report.judge("2.3", text, steady, "wait longer between samples")
                    else:
                        report.note("2.3", text)
    if peak_bytes and reached:
        share = reached[0][1] / peak_bytes
        report.judge("1.5", f"a copy reaches {share:.1%} of peak", 0.75 <= share <= 0.95, "move the practical ceiling")
    with Load(matmul_burst(device), device):
        values, _, error = gpm_pair(handle, seconds)
        sm, tensor, dram = (values.get(metric, math.nan) for metric in (SM, TENSOR, DRAM))
        text = f"matmul: SM {sm:.1f} %, tensor {tensor:.1f} %, DRAM {dram:.1f} %"
        fits = sm > 80 and tensor > 40 and dram < 60
        report.judge("2.8", f"{text} {error}".rstrip(), fits, "read the labels of the roofline strip again")
    with Load(upload_burst(device), device) as load:
        load.restart_count()
        values, _, error = gpm_pair(handle, seconds)
        moved = load.bytes_per_s()
        received = values.get(PCIE_RX, math.nan) * MIB
        sent = values.get(PCIE_TX, math.nan) * MIB
        text = f"upload {moved / 1e9:.1f} GB/s: RX {received / 1e9:.1f} GB/s, TX {sent / 1e9:.2f} GB/s"
        report.judge("2.9", f"{text} {error}".rstrip(), 0.85 <= received / moved <= 1.3, "swap RX and TX, or the unit")


def under_load(report: Report, handle: Any, device: str, peak_bytes: float | None, works: bool, seconds: float) -> None:
    """Points 1.5 and 2.3 to 2.9 where GPM works, and the costs of calls."""
    if works:
        gpm_under_load(report, handle, device, peak_bytes, seconds)
    else:
        report.skip("2.3, 2.5 to 2.9", "no GPM here")
        copy_alone(report, handle, device, seconds)
    with Load(copy_burst(device)[0], device):
        costs(report, handle, "under load")


def copy_alone(report: Report, handle: Any, device: str, seconds: float) -> None:
    """Points 1.5 and 2.7 on a GPU without GPM."""
    burst, size = copy_burst(device)
    for duty in (1.0, 0.5, 0.1):
        with Load(burst, device, duty) as load:
            time.sleep(seconds)
            rates, error = ask("nvmlDeviceGetUtilizationRates", handle)
            moved = load.bytes_per_s() / 1e9
            busy = getattr(rates, "memory", error)
            report.note("2.7", f"copy ({size}) at {duty:.0%} of the time: {moved:.0f} GB/s, busy time {busy} %")


def costs(report: Report, handle: Any, when: str) -> None:
    """Point 3: milliseconds of each call."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("nvmlDeviceGetUtilizationRates", (), {}),
        ("nvmlDeviceGetMemoryInfo", (), {"version": nvml.nvmlMemory_v2}),
        ("nvmlDeviceGetPowerUsage", (), {}),
        ("nvmlDeviceGetEnforcedPowerLimit", (), {}),
        ("nvmlDeviceGetTotalEnergyConsumption", (), {}),
        ("nvmlDeviceGetTemperature", (0,), {}),
        ("nvmlDeviceGetClockInfo", (2,), {}),
        ("nvmlDeviceGetCurrentClocksEventReasons", (), {}),
        ("nvmlDeviceGetPcieThroughput", (0,), {}),
        ("nvmlDeviceGetComputeRunningProcesses_v3", (), {}),
        ("nvmlDeviceGetFieldValues", ([82, 185, 186, 197, 198, (138, ALL_LINKS), (139, ALL_LINKS)],), {}),
        ("nvmlDeviceGetTotalEccErrors", (1, 0), {}),
        ("nvmlDeviceGetFanSpeed", (), {}),
    ]
    tick_ms = 0.0
    for name, arguments, options in calls:
        times, error = [], ""
        for _ in range(30):
            begun_s = time.perf_counter()
            _, error = ask(name, handle, *arguments, **options)
            times.append((time.perf_counter() - begun_s) * 1000)
        middle = statistics.median(times)
        tick_ms += middle if name != "nvmlDeviceGetPcieThroughput" else 0.0
        report.note("3", f"{when} {name}: median {middle:.3f} ms, max {max(times):.3f} ms {error}".rstrip())
    text = f"{when}: all but PcieThroughput once, for 8 GPUs: {8 * tick_ms:.1f} ms"
    report.judge("3", text, 8 * tick_ms < 100, "move calls into slower groups")


def quirks(report: Report, handle: Any) -> None:
    """Points 4.1, 4.3, 4.4, 4.6, 4.7."""
    one, error = ask("nvmlDeviceGetMemoryInfo", handle)
    two, error_two = ask("nvmlDeviceGetMemoryInfo", handle, version=nvml.nvmlMemory_v2)
    if error or error_two:
        report.note("4.1", f"memory v1 {error or 'ok'}, v2 {error_two or 'ok'}")
    else:
        text = f"v1 used {one.used}, v2 used {two.used} + reserved {two.reserved}"
        report.judge("4.1", text, abs(one.used - two.used - two.reserved) < 64 * MIB, "read the two otherwise")
    found = fields(handle, [82, 91, (138, ALL_LINKS), (139, ALL_LINKS)])
    report.note("4.3", f"memory temperature (field 82): {found.get(82, 'no field')}; vtop takes 0 as not available")
    report.note("4.6", f"NVLink links {found.get(91)}, TX KiB {found.get(138)}, RX KiB {found.get(139)}")
    processes, error = ask("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    listed = error or [(process.pid, process.usedGpuMemory) for process in processes]
    report.note("4.7", f"processes {listed}; this one is {os.getpid()} (differs in a container)")
    report.note("4.4", f"clock reasons idle: {ask('nvmlDeviceGetCurrentClocksEventReasons', handle)}")


def quirks_under_load(report: Report, handle: Any, device: str, seconds: float) -> None:
    """Points 4.2, 4.4, 4.5."""
    with Load(matmul_burst(device), device):
        before, error = ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        begun_s, watts, averages = time.perf_counter(), [], []
        while time.perf_counter() - begun_s < 4 * seconds:
            milliwatts, _ = ask("nvmlDeviceGetPowerUsage", handle)
            batch = fields(handle, [185, 186])
            watts.append((milliwatts or 0) / 1000)
            averages.append(batch.get(185, math.nan) / 1000)
            time.sleep(0.1)
        after, _ = ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        took_s = time.perf_counter() - begun_s
        report.note("4.4", f"clock reasons under matmul: {ask('nvmlDeviceGetCurrentClocksEventReasons', handle)}")
        if error or after is None:
            report.note("4.2", f"energy counter: {error}")
        else:
            mean = (after - before) / 1000 / took_s
            usage, average = statistics.mean(watts), statistics.mean(averages)
            text = f"mean power: energy {mean:.0f} W, PowerUsage {usage:.0f} W, field 185 {average:.0f} W"
            close = abs(usage - mean) <= 0.08 * mean
            report.judge("4.2", text, close, "take power from differences of energy")
    with Load(upload_burst(device), device) as load:
        load.restart_count()
        first, begun_s = fields(handle, [197, 198]), time.perf_counter()
        time.sleep(seconds)
        second, took_s, moved = fields(handle, [197, 198]), time.perf_counter() - begun_s, load.bytes_per_s()
        window, error = ask("nvmlDeviceGetPcieThroughput", handle, 1)
        grown = {key: (second[key] - first[key]) / took_s / 1e9 for key in second if key in first}
        report.note("4.5", f"upload {moved / 1e9:.2f} GB/s; fields 197/198 per s {grown} GB, raw {second}")
        report.note("4.5", f"PcieThroughput RX {shown(window, error)} KB/s; a negative rate above means a 32-bit wrap")


def xid_events(report: Report, handle: Any) -> None:
    """Point 4.8."""
    events, error = ask("nvmlEventSetCreate")
    if error:
        report.note("4.8", f"event set: {error}")
        return
    try:
        _, error = ask("nvmlDeviceRegisterEvents", handle, nvml.nvmlEventTypeXidCriticalError, events)
        if not error:
            _, error = ask("nvmlEventSetWait_v2", events, 300)
        report.judge(
            "4.8", f"waiting for XIDs as this user: {error or 'an event came'}", "(10)" in error, "no XIDs here"
        )
    finally:
        ask("nvmlEventSetFree", events)


def order(report: Report) -> None:
    """Point 4.9: UUIDs by NVML's and by CUDA's numbers."""
    count, _ = ask("nvmlDeviceGetCount")
    by_nvml = []
    for index in range(count or 0):
        handle, error = ask("nvmlDeviceGetHandleByIndex", index)
        by_nvml.append(error if error else shown(*ask("nvmlDeviceGetUUID", handle)))
    report.note("4.9", f"NVML order: {by_nvml}")
    code = (
        "import torch; print([str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())])"
    )
    for name in ("", "PCI_BUS_ID"):
        variables = {key: value for key, value in os.environ.items() if key != "CUDA_DEVICE_ORDER"}
        if name:
            variables["CUDA_DEVICE_ORDER"] = name
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
        told = done.stdout.strip() or (done.stderr.strip().splitlines() or ["no answer"])[-1]
        report.note("4.9", f"CUDA order with CUDA_DEVICE_ORDER={name or '(not set)'}: {told}")


def heartbeat(report: Report, handle: Any, seconds: float) -> None:
    """Point 4.10: whether NVML calls in a thread hold up the others."""
    ending = threading.Event()

    def poll() -> None:
        while not ending.wait(0.2):
            for name in ("UtilizationRates", "PowerUsage", "TotalEnergyConsumption"):
                ask(f"nvmlDeviceGet{name}", handle)
            ask("nvmlDeviceGetComputeRunningProcesses_v3", handle)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    late, end_s = [], time.perf_counter() + 2 * seconds
    while time.perf_counter() < end_s:
        due_s = time.perf_counter() + 0.02
        time.sleep(0.02)
        late.append((time.perf_counter() - due_s) * 1000)
    ending.set()
    thread.join(5)
    report.judge(
        "4.10", f"a 20 ms heartbeat was late by at most {max(late):.1f} ms", max(late) <= 20, "calls hold the GIL"
    )


def mig(report: Report, handle: Any) -> None:
    """Point 2.15, only where MIG is on already."""
    mode, error = ask("nvmlDeviceGetMigMode", handle)
    if error or mode[0] != 1:
        report.skip("2.15", f"MIG is not on ({shown(mode, error)})")
        return
    most, _ = ask("nvmlDeviceGetMaxMigDeviceCount", handle)
    for place in range(most or 0):
        instance, error = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        if error:
            continue
        number, error = ask("nvmlDeviceGetGpuInstanceId", instance)
        seen = gpm_pair(handle, 0.5, number) if not error else ({}, {}, error)
        memory, memory_error = ask("nvmlDeviceGetMemoryInfo", instance)
        report.note(
            "2.15", f"instance {place} (gi {number}): GPM {seen}, memory after it {shown(memory, memory_error)}"
        )


def torch_device(index: int) -> tuple[str | None, str]:
    """CUDA's name of NVML's device, by UUID; or None and why there is none."""
    if torch is None:
        return None, "PyTorch is not installed"
    if not torch.cuda.is_available():
        return None, "PyTorch finds no CUDA device"
    handle, error = ask("nvmlDeviceGetHandleByIndex", index)
    uuid = "" if error else str(ask("nvmlDeviceGetUUID", handle)[0])
    for number in range(torch.cuda.device_count()):
        if str(getattr(torch.cuda.get_device_properties(number), "uuid", "")) in uuid:
            torch.cuda.set_device(number)
            return f"cuda:{number}", ""
    return None, "PyTorch does not see this device"


def main(words: Sequence[str] | None = None) -> int:
    """Runs all points; 0 when they ran, 1 when there is no NVML."""
    parser = argparse.ArgumentParser(description="Checks NVML readings on a real GPU; reads only.")
    parser.add_argument("--device", type=int, default=0, help="NVML's index (default 0)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement (default 1)")
    chosen = parser.parse_args(words)
    report, begun_s = Report(), time.perf_counter()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        print(f"NVML does not start: {type(error).__name__} ({error.value})")
        return 1
    try:
        looked_up_s = time.perf_counter()
        handle, error = ask("nvmlDeviceGetHandleByIndex", chosen.device)
        first_handle_s = time.perf_counter() - looked_up_s
        if error:
            print(f"no device {chosen.device}: {error}")
            return 1
        header(report, handle, chosen.device, first_handle_s)
        peak_bytes = peak(report, handle)
        works = gpm_support(report, handle)
        costs(report, handle, "idle")
        device, why = torch_device(chosen.device)
        if device is not None:
            try:
                under_load(report, handle, device, peak_bytes, works, chosen.seconds)
                quirks_under_load(report, handle, device, chosen.seconds)
            except (RuntimeError, ZeroDivisionError) as problem:
                report.skip("the rest under load", str(problem).splitlines()[0])
        else:
            report.skip("1.5, 2.3, 2.5 to 2.9, 3 under load, 4.2, 4.5", why)
        quirks(report, handle)
        xid_events(report, handle)
        if device is None:
            report.skip("4.9", why)
        else:
            order(report)
        heartbeat(report, handle, chosen.seconds)
        mig(report, handle)
    finally:
        nvml.nvmlShutdown()
    took_s = time.perf_counter() - begun_s
    print(f"done in {took_s:.0f} s, {report.unexpected} lines not as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
