"""Points that need a load of known size, and so PyTorch; see `check.py`."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import torch
from asking import (
    DRAM,
    MIB,
    PCIE_RX,
    PCIE_TX,
    SM,
    TENSOR,
    Report,
    ask,
    fields,
    gpm_metrics,
    gpm_pair,
    gpm_samples,
    shown,
)
from device_points import costs
from traffic import Load, copy_burst, matmul_burst, upload_burst


def under_load(report: Report, handle: Any, device: str, peak_bytes: float | None, works: bool, seconds: float) -> None:
    """Points 1.5 and 2.3 to 2.9 where GPM works, and the costs of calls."""
    if works:
        gpm_under_load(report, handle, device, peak_bytes, seconds)
    else:
        report.skip("2.3, 2.5 to 2.9", "no GPM here")
        copy_alone(report, handle, device, seconds)
    with Load(copy_burst(device)[0], device):
        costs(report, handle, "under load")


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


def torch_device(index: int) -> tuple[str | None, str]:
    """CUDA's name of NVML's device, by UUID; or None and why there is none."""
    if not torch.cuda.is_available():
        return None, "PyTorch finds no CUDA device"
    handle, error = ask("nvmlDeviceGetHandleByIndex", index)
    uuid = "" if error else str(ask("nvmlDeviceGetUUID", handle)[0])
    for number in range(torch.cuda.device_count()):
        if str(getattr(torch.cuda.get_device_properties(number), "uuid", "")) in uuid:
            torch.cuda.set_device(number)
            return f"cuda:{number}", ""
    return None, "PyTorch does not see this device"
