"""Processes that hold GPU memory, by the driver's word, and their names where it is sure whose pid that is.

The driver knows no pid namespaces: in a container it lists pids of the host, which here belong to nobody or, worse, to
somebody else.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import psutil

from vtop.telemetry.gpu.nvml_calls import U32_SENTINEL, Calls, counter
from vtop.telemetry.snapshot import GpuProcess

_REMEMBERED = 1024
_HOST_PID_NAMESPACE = "pid:[4026531836]"
"""Linux gives its first pid namespace this fixed number (PROC_PID_INIT_INO)."""


def in_host_namespace(proc: str = "/proc") -> bool:
    """Whether pids here are the host's pids."""
    if sys.platform != "linux":
        return True
    try:
        return os.readlink(f"{proc}/self/ns/pid") == _HOST_PID_NAMESPACE
    except OSError:
        return False


def has_gpu_open(pid: int, proc: str = "/proc") -> bool:
    """Whether the local process of that number holds an NVIDIA device open, as one that the driver lists must."""
    try:
        with os.scandir(f"{proc}/{pid}/fd") as entries:
            for entry in entries:
                try:
                    if os.readlink(entry.path).startswith("/dev/nvidia"):
                        return True
                except OSError:
                    continue
    except OSError:
        return False
    return False


class ProcessNames:
    """Looks names up, and remembers them while the pid is listed.

    Args:
        host_pids: whether the driver's pids are ours to read; found out where None.
    """

    def __init__(self, host_pids: bool | None = None) -> None:
        self.host_pids = in_host_namespace() if host_pids is None else host_pids
        self._names: dict[int, tuple[float, str]] = {}

    def name(self, pid: int) -> str | None:
        """The process's name, or None where the pid cannot be matched to a process of this namespace."""
        try:
            process = psutil.Process(pid)
            created = process.create_time()
            known = self._names.get(pid)
            if known is not None and known[0] == created:
                return known[1]
            if not self.host_pids and not has_gpu_open(pid):
                return None
            name: str = process.name()
        except psutil.Error:
            self._names.pop(pid, None)
            return None
        if len(self._names) >= _REMEMBERED:
            self._names.clear()
        self._names[pid] = (created, name)
        return name


def read_processes(calls: Calls, handle: Any, names: ProcessNames) -> tuple[tuple[GpuProcess, ...] | None, str]:
    """Who holds memory on a device, by the driver's word, and a note where that word needs one.

    Returns:
        The processes, or None where the driver does not tell. Pids that no process can have are dropped: drivers and
        bindings have disagreed about this structure's size.
    """
    found = calls.ask("processes", "nvmlDeviceGetComputeRunningProcesses_v3", handle)
    if found is None:
        found = calls.ask("processes", "nvmlDeviceGetComputeRunningProcesses_v2", handle)
    if found is None:
        return None, calls.missing.get("processes", "")
    processes: dict[int, GpuProcess] = {}
    for entry in found:
        pid, used = int(entry.pid), counter(entry.usedGpuMemory)
        if pid in (0, U32_SENTINEL):
            continue
        before = processes.get(pid)
        if before is not None and before.memory_used_bytes is not None:
            used = before.memory_used_bytes + (used or 0)
        processes[pid] = GpuProcess(pid, used, names.name(pid))
    unknown = sum(process.name is None for process in processes.values())
    note = ""
    if unknown and not names.host_pids:
        note = f"{unknown} of {len(processes)} pids are the host's and not visible in this container (see --pid=host)"
    return tuple(processes.values()), note
