"""Points about GPM, the counters that give measured DRAM bandwidth; see `check.py`."""

from __future__ import annotations

import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pynvml as nvml
from asking import (
    DRAM,
    NVLINK_RX,
    NVLINK_TX,
    Report,
    ask,
    gpm_metrics,
    gpm_pair,
    gpm_samples,
    shown,
)


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


def neighbours(report: Report) -> None:
    """Point 2.12: whether the readings above were taken beside DCGM, which uses the same counters."""
    running = set()
    for name in Path("/proc").glob("[0-9]*/comm"):
        try:
            running.add(name.read_text().strip())
        except OSError:
            continue
    found = sorted(name for name in running if name in ("nv-hostengine", "dcgm-exporter", "nvsm_core"))
    if found:
        report.note("2.12", f"{', '.join(found)} runs here: the GPM readings above were taken beside it")
    else:
        report.skip("2.12", "no DCGM runs here; start dcgm-exporter and run this again to compare the values")
