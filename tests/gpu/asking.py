"""NVML asked one guarded call at a time, and lines that say what was seen; see `check.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pynvml as nvml

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
