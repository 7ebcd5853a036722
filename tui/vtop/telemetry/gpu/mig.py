"""MIG instances: memory and processes of their own, activity through the GPU that they are part of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vtop.clock import Clock
from vtop.telemetry.gpu import gpm
from vtop.telemetry.gpu.device import EVERY_SECOND_S, Device
from vtop.telemetry.gpu.gpm import Gpm, gpm_percent
from vtop.telemetry.gpu.memory import read_memory, system_memory
from vtop.telemetry.gpu.nvml_calls import U32_SENTINEL, Calls
from vtop.telemetry.gpu.processes import ProcessNames, read_processes
from vtop.telemetry.snapshot import Bandwidth, GpuProcess, GpuReading

_MOST_INSTANCES = 7
"""Of any GPU so far; for drivers that do not say."""
_WHOLE_GPU = "measured for the whole GPU only"


@dataclass(slots=True)
class _Instance:
    uuid: str
    name: str
    handle: Any
    calls: Calls
    gpu_instance_id: int | None
    compute_instance_id: int | None
    gpm: Gpm | None = None
    processes: tuple[GpuProcess, ...] | None = None
    note: str = ""
    listed_s: float = -math.inf


class MigInstances:
    """The instances of one GPU.

    Args:
        parent: the GPU.
        clock: see `Gpm`.
        names: see `ProcessNames`.
    """

    def __init__(self, parent: Device, clock: Clock, names: ProcessNames) -> None:
        self._parent = parent
        self._clock = clock
        self._names = names
        self._instances: dict[str, _Instance] = {}

    def look_up(self) -> None:
        """Finds the instances that exist now; those known already keep their samples.

        Raises:
            DeviceLostError, LibraryDownError: see `Calls.ask`.
        """
        calls, parent = self._parent.calls, self._parent.handle
        found: dict[str, _Instance] = {}
        if self._parent.mig_mode:
            most = calls.ask("mig", "nvmlDeviceGetMaxMigDeviceCount", parent) or _MOST_INSTANCES
            for place in range(min(int(most), 64)):
                handle = calls.ask("mig", "nvmlDeviceGetMigDeviceHandleByIndex", parent, place)
                uuid = (
                    None if handle is None else calls.ask("mig", "nvmlDeviceGetUUID", handle, key=("mig uuid", place))
                )
                if uuid is not None:
                    known = self._instances.pop(str(uuid), None)
                    found[str(uuid)] = known if known is not None else self._made(str(uuid), handle)
        calls.missing.pop("mig", None)
        for gone in self._instances.values():
            if gone.gpm is not None:
                gone.gpm.close()
        self._instances = found

    def _made(self, uuid: str, handle: Any) -> _Instance:
        calls = Calls(self._parent.calls.nvml, self._clock, shared=True)
        name = calls.ask("name", "nvmlDeviceGetName", handle)
        gpu_instance = calls.ask("gi", "nvmlDeviceGetGpuInstanceId", handle)
        compute_instance = calls.ask("ci", "nvmlDeviceGetComputeInstanceId", handle)
        return _Instance(
            uuid,
            str(name) if name else f"{self._parent.name} MIG",
            handle,
            calls,
            None if gpu_instance in (None, U32_SENTINEL) else int(gpu_instance),
            None if compute_instance in (None, U32_SENTINEL) else int(compute_instance),
        )

    def read(self, whole: GpuReading) -> list[GpuReading]:
        """Readings of all instances.

        Args:
            whole: the GPU's own reading, for what is measured only once on the board.

        Raises:
            DeviceLostError, LibraryDownError: see `Calls.ask`.
        """
        return [self._read(instance, whole) for instance in self._instances.values()]

    def _read(self, instance: _Instance, whole: GpuReading) -> GpuReading:
        calls = instance.calls
        calls.missing.clear()
        memory = read_memory(calls, instance.handle, "", system_memory)
        now_s = self._clock.monotonic()
        if now_s - instance.listed_s >= EVERY_SECOND_S:
            instance.listed_s = now_s
            instance.processes, instance.note = read_processes(calls, instance.handle, self._names)
        values: dict[int, float] = {}
        if instance.gpu_instance_id is not None and instance.compute_instance_id is not None:
            if instance.gpm is None and self._parent.gpm_live():
                # An instance without a compute instance has no data, and MIG handles do not belong in these calls.
                instance.gpm = Gpm(calls.nvml, self._clock, self._parent.handle, instance.gpu_instance_id)
            values = instance.gpm.read() if instance.gpm is not None else {}
        live = instance.gpm is not None and instance.gpm.live
        percent = gpm_percent(values, gpm.DRAM_BW_UTIL)
        missing = {
            **calls.missing,
            "gpu_util_percent": "not measured in MIG mode",
            "mem_busy_percent": "not measured in MIG mode",
            "power_w": _WHOLE_GPU,
            "energy_j": _WHOLE_GPU,
            "bandwidth_bytes_per_s": "what 100 % of an instance is in bytes is not documented",
        }
        if percent is None:
            missing["bandwidth"] = "needs two samples" if live else "needs GPM: Hopper or newer"
        if instance.note:
            missing["processes"] = instance.note
        return GpuReading(
            uuid=instance.uuid,
            index=whole.index,
            name=instance.name,
            bandwidth=Bandwidth("gpm", percent) if live else None,
            sm_percent=gpm_percent(values, gpm.SM_UTIL),
            sm_occupancy_percent=gpm_percent(values, gpm.SM_OCCUPANCY),
            tensor_percent=gpm_percent(values, gpm.ANY_TENSOR),
            memory_used_bytes=memory.used_bytes,
            memory_total_bytes=memory.total_bytes,
            temperature_c=whole.temperature_c,
            memory_temperature_c=whole.memory_temperature_c,
            sm_clock_mhz=whole.sm_clock_mhz,
            memory_clock_mhz=whole.memory_clock_mhz,
            memory_clock_max_mhz=whole.memory_clock_max_mhz,
            throttle=whole.throttle,
            processes=instance.processes,
            mig_parent=whole.uuid,
            gpu_instance_id=instance.gpu_instance_id,
            compute_instance_id=instance.compute_instance_id,
            pci_bus_id=whole.pci_bus_id,
            missing=missing,
        )

    def close(self) -> None:
        """Frees all samples."""
        for instance in self._instances.values():
            if instance.gpm is not None:
                instance.gpm.close()
        self._instances = {}
