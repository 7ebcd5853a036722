"""GPU memory in use, and the machines where it is the system's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from vtop.telemetry.gpu.nvml_calls import Calls

SystemMemory = Callable[[], tuple[int, int]]
"""Total and available bytes of the system."""

_SHARES_MEMORY = re.compile(r"GB10|Thor|Orin|Xavier|Tegra")
"""Chips whose GPU has no memory of its own. A GH200 or GB200 has."""
_MOST_BYTES = 2**44
"""More than any GPU has; drivers write "not available" as still more."""
_WHOLE_SYSTEM = 0.9
"""Such a chip's driver refuses, says 0, or says about all of the system's memory, by its version."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """None: not reported."""

    used_bytes: int | None
    total_bytes: int | None
    unified: bool = False
    """Both figures are the system's, shared with everything else."""


def system_memory() -> tuple[int, int]:
    """Total and available bytes of this machine (MemTotal and MemAvailable)."""
    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def read_memory(calls: Calls, handle: Any, name: str, system: SystemMemory) -> MemoryReading:
    """Memory of one device; only a chip known to share memory ever gets the system's figures.

    Raises:
        DeviceLostError, LibraryDownError: see `Calls.ask`.
    """
    nvml = calls.nvml
    # Version 2 keeps what the driver reserves apart from what programs use.
    answer = calls.ask(
        "memory_used_bytes", "nvmlDeviceGetMemoryInfo", handle, key="memory v2", version=nvml.nvmlMemory_v2
    )
    if answer is None:
        answer = calls.ask("memory_used_bytes", "nvmlDeviceGetMemoryInfo", handle, key="memory v1")
    total = None if answer is None or not 0 < answer.total <= _MOST_BYTES else int(answer.total)
    if _SHARES_MEMORY.search(name):
        system_total, available = system()
        refused = "permission" not in calls.missing.get("memory_used_bytes", "")
        if (total is None and refused) or (total is not None and total >= _WHOLE_SYSTEM * system_total):
            calls.missing.pop("memory_used_bytes", None)
            return MemoryReading(max(0, system_total - available), system_total, True)
    if total is None or answer is None:
        said = None if answer is None else int(answer.total)
        reason = "the driver says 0 in total" if said == 0 else "implausible answer from the driver"
        calls.missing["memory_total_bytes"] = calls.missing.setdefault("memory_used_bytes", reason)
        return MemoryReading(None, None)
    used = int(answer.used)
    if used > total:
        calls.missing["memory_used_bytes"] = "implausible: more used than there is"
        return MemoryReading(None, total)
    return MemoryReading(used, total)
