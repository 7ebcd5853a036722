"""Which GPUs a server uses, which are free for another, and who holds the memory that it wants.

`CUDA_VISIBLE_DEVICES` counts in CUDA's order, which is NVML's (by PCI bus) only with `CUDA_DEVICE_ORDER=PCI_BUS_ID`;
CUDA's default, FASTEST_FIRST, only promises which one is number 0. So the driver's process list is asked first, and
where neither it nor a UUID tells, the answer is "not known" rather than a guess.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import psutil

from vtop.servers.status import ServerStatus
from vtop.telemetry.snapshot import GpuProcess, GpuReading
from vtop.units import gib

PCI_ORDER = "PCI_BUS_ID"
"""What vtop sets as CUDA_DEVICE_ORDER for the servers that it starts, so that GPU numbers are NVML's."""
NOT_VERIFIED = "mapping not verified"


class GpuMatch(NamedTuple):
    """GPUs of a server."""

    uuids: tuple[str, ...] | None
    """None: it cannot be known; (): it has none."""
    reason: str
    """How that was found, or why it cannot be."""


@lru_cache(maxsize=256)
def is_here(host: str) -> bool:
    """Whether a host name or address means this machine; names are compared, not looked up."""
    name = host.strip("[]").lower()
    if name in ("", "localhost", "::1", "::", "0.0.0.0") or name.startswith("127."):
        return True
    if name == socket.gethostname().lower():
        return True
    return any(name == address.address.lower() for each in psutil.net_if_addrs().values() for address in each)


def gpus_there(host: str, gpus: Sequence[GpuReading]) -> tuple[GpuReading, ...]:
    """The GPUs in the machine where a server answers."""
    here = is_here(host)
    return tuple(gpu for gpu in gpus if (gpu.host == "" if here else gpu.host.lower() == host.strip("[]").lower()))


def gpus_of(status: ServerStatus, gpus: Sequence[GpuReading]) -> tuple[GpuReading, ...]:
    """The GPUs of a server, lost ones too; none where it cannot be known which they are.

    A server of which nothing is known is taken to use the one GPU of its machine, never one of another machine.
    """
    if status.gpu_uuids is not None:
        return tuple(gpu for gpu in gpus if gpu.uuid in status.gpu_uuids)
    if "+cpu" in (status.version or ""):
        return ()
    there = gpus_there(status.host, gpus)
    return there if len(there) == 1 else ()


def match_gpus(
    visible_devices: str | None,
    device_order: str | None,
    gpus: Sequence[GpuReading],
    tree_pids: Collection[int] = (),
) -> GpuMatch:
    """The GPUs of a server on this machine.

    Args:
        visible_devices: its CUDA_VISIBLE_DEVICES, or None where that is not set.
        device_order: its CUDA_DEVICE_ORDER, or None where that is not set.
        gpus: all readings, MIG instances included.
        tree_pids: the pids of its process tree.
    """
    by_process = _by_process(gpus, tree_pids)
    if by_process:
        return GpuMatch(by_process, "by the driver's process list")
    whole = [gpu for gpu in gpus if gpu.mig_parent is None]
    if visible_devices is None:
        if len(whole) == 1 and len(gpus) == 1 and not whole[0].lost:
            return GpuMatch((whole[0].uuid,), "the only GPU here")
        if not whole:
            return GpuMatch(None, "no GPU readings")
        return GpuMatch(None, f"{NOT_VERIFIED}: it may use any of {len(whole)} GPUs, and holds no memory that shows")
    return _by_visible(visible_devices, device_order, gpus, whole)


def _by_process(gpus: Sequence[GpuReading], tree_pids: Collection[int]) -> tuple[str, ...]:
    """Only pids that have a name are this namespace's; the host's pids in a container match by accident."""
    pids = set(tree_pids)
    holding = [
        gpu for gpu in gpus if any(process.pid in pids and process.name is not None for process in gpu.processes or ())
    ]
    parents = {gpu.mig_parent for gpu in holding}
    return tuple(gpu.uuid for gpu in holding if gpu.uuid not in parents)


def _by_visible(
    visible_devices: str, device_order: str | None, gpus: Sequence[GpuReading], whole: Sequence[GpuReading]
) -> GpuMatch:
    entries = [entry.strip() for entry in visible_devices.split(",")]
    chosen: list[GpuReading] = []
    covers_all = set(entries) == {str(index) for index in range(len(whole))}
    how = "by UUID"
    for entry in entries:
        if entry.isdigit():
            found, doubt = _by_index(int(entry), device_order, whole, covers_all)
            if doubt:
                return GpuMatch(None, doubt)
            how = f"by number in CUDA_VISIBLE_DEVICES={visible_devices}"
        else:
            found = _by_id(entry, gpus)
        # CUDA hides the first entry that names no device, and all after it.
        if found is None:
            break
        if found in chosen:
            return GpuMatch((), f"CUDA_VISIBLE_DEVICES={visible_devices} names a GPU twice, which hides all")
        if any(gpu.mig_parent == found.uuid for gpu in gpus):
            return GpuMatch(None, f"{NOT_VERIFIED}: GPU {found.index} is in MIG mode, and no instance is named")
        chosen.append(found)
    if not chosen:
        return GpuMatch((), f"CUDA_VISIBLE_DEVICES={visible_devices!r} hides all GPUs")
    return GpuMatch(tuple(gpu.uuid for gpu in chosen), how)


def _by_index(
    index: int, device_order: str | None, whole: Sequence[GpuReading], covers_all: bool
) -> tuple[GpuReading | None, str]:
    if any(gpu.lost for gpu in whole):
        return None, f"{NOT_VERIFIED}: a GPU was lost, so that numbers may have moved"
    if index >= len(whole):
        return None, ""
    # With one GPU, or all of them asked for, the order does not matter.
    if device_order != PCI_ORDER and len(whole) > 1 and not covers_all:
        order = device_order or "not set, so FASTEST_FIRST"
        return None, f"{NOT_VERIFIED}: CUDA_DEVICE_ORDER is {order}; CUDA may number the GPUs otherwise than NVML"
    return next((gpu for gpu in whole if gpu.index == index), None), ""


def _by_id(entry: str, gpus: Sequence[GpuReading]) -> GpuReading | None:
    """A GPU by (the beginning of) its UUID, or a MIG instance by its UUID or by `MIG-GPU-<uuid>/<gi>/<ci>`."""
    if entry.startswith("MIG-GPU-"):
        parent, _, rest = entry.removeprefix("MIG-").partition("/")
        gi, _, ci = rest.partition("/")
        for gpu in gpus:
            if gpu.mig_parent == parent and str(gpu.gpu_instance_id) == gi and str(gpu.compute_instance_id) == ci:
                return gpu
        return None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None


class Choice(NamedTuple):
    """GPUs for a new server."""

    uuids: tuple[str, ...] | None
    """None: there are not enough."""
    reason: str


def free_gpus(gpus: Sequence[GpuReading], count: int = 1, share: float = 0.9) -> Choice:
    """Picks whole GPUs for a new server: of one model, the emptiest first, then by number.

    Args:
        gpus: all readings.
        count: how many.
        share: of each one's memory that must be free (vLLM's gpu-memory-utilization).
    """
    divided = {gpu.mig_parent for gpu in gpus}
    whole = [gpu for gpu in gpus if gpu.mig_parent is None and gpu.uuid not in divided and not gpu.lost]
    fitting = [gpu for gpu in whole if shortage([gpu], [gpu.uuid], share) is None]
    models: dict[str, list[GpuReading]] = {}
    for gpu in sorted(fitting, key=lambda gpu: (-_free(gpu), gpu.index)):
        models.setdefault(gpu.name, []).append(gpu)
    for group in models.values():
        if len(group) >= count:
            picked = sorted(group[:count], key=lambda gpu: gpu.index)
            return Choice(tuple(gpu.uuid for gpu in picked), "free " + ", ".join(f"GPU {gpu.index}" for gpu in picked))
    if len(fitting) >= count:
        return Choice(None, f"{count} free GPUs of one model are wanted, and the free ones differ")
    lacking = shortage(whole, [gpu.uuid for gpu in whole if gpu not in fitting], share)
    text = f"{len(fitting)} of {len(whole)} GPUs have {share:.0%} of their memory free, {count} wanted"
    return Choice(None, f"{text}; {lacking.text}" if lacking is not None else text)


def _free(gpu: GpuReading) -> int:
    return (gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A GPU whose free memory is less than a server will ask for; vLLM then ends in "Free memory on device ..."."""

    uuid: str
    index: int
    wanted_bytes: int
    free_bytes: int
    total_bytes: int
    holders: tuple[GpuProcess, ...] | None
    """Who holds the rest, largest first; None where the driver does not tell."""
    text: str

    @property
    def fitting_share(self) -> float:
        """The largest gpu-memory-utilization, in steps of 0.01, that would fit now."""
        return math.floor(self.free_bytes / self.total_bytes * 100) / 100


def shortage(
    gpus: Sequence[GpuReading], uuids: Collection[str], share: float, own_pids: Collection[int] = ()
) -> Shortage | None:
    """The first of some GPUs that has not enough free memory; None where all have, or nobody can tell.

    Args:
        gpus: all readings.
        uuids: those to look at.
        share: of the whole memory that is wanted, as vLLM's gpu-memory-utilization.
        own_pids: processes whose memory does not count, for a server about to be replaced.
    """
    for gpu in gpus:
        total, used = gpu.memory_total_bytes, gpu.memory_used_bytes
        if gpu.uuid not in uuids or not total or used is None:
            continue
        processes = gpu.processes or ()
        used -= sum(process.memory_used_bytes or 0 for process in processes if process.pid in own_pids)
        wanted, free = int(share * total), total - max(0, used)
        if free >= wanted:
            continue
        others = [process for process in processes if process.pid not in own_pids]
        holders = tuple(sorted(others, key=lambda process: -(process.memory_used_bytes or 0)))
        text = f"GPU {gpu.index}: {gib(free)} of {gib(total)} free, {gib(wanted)} wanted; {_held(holders)}"
        return Shortage(gpu.uuid, gpu.index, wanted, free, total, holders if gpu.processes is not None else None, text)
    return None


def _held(holders: Sequence[GpuProcess]) -> str:
    if not holders:
        return "who holds the rest does not show here"
    shown = [f"{process_label(holder)} ({gib(holder.memory_used_bytes)})" for holder in holders[:3]]
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    return f"held by {', '.join(shown)}{more}"


def process_label(process: GpuProcess) -> str:
    """A process in words; a pid without a name here is the host's, and must never be signalled."""
    if process.name is None:
        return f"host pid {process.pid} (not visible here)"
    return f"{process.name} (pid {process.pid})"
