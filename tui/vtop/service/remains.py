"""What outlived its server: vtop's own orphans with what they hold and how they are ended; those of others, told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vtop.servers.discovery import Leftover, leftovers, stray_engines
from vtop.servers.status import ServerStatus
from vtop.telemetry.gpu.source import GpuFrame
from vtop.units import gib


@dataclass(frozen=True, slots=True)
class Remains:
    """Processes without a server, in words."""

    name: str
    """The server that they are left from; "" where vtop did not start it."""
    text: str
    remedy: str


def find_remains(statuses: Sequence[ServerStatus], frame: GpuFrame | None) -> tuple[Remains, ...]:
    """Orphans now; some milliseconds, for a thread.

    Args:
        statuses: of all servers that are known.
        frame: the newest GPU readings, or None where there are none.
    """
    own = [_own(leftover, frame) for leftover in leftovers(statuses)]
    ours = [pid for status in statuses for pid in status.pids]
    strays = [
        Remains(
            "",
            f"{title} (pid {pid}) runs without its server{_held(None, frame, (pid,))}",
            "vtop did not start it and never ends it; whoever did can.",
        )
        for pid, title in stray_engines(ours)
    ]
    return (*own, *strays)


def _own(leftover: Leftover, frame: GpuFrame | None) -> Remains:
    who = ", ".join(f"{pid} {title}".strip() for pid, title in zip(leftover.pids, leftover.titles, strict=True))
    count = "1 process" if len(leftover.pids) == 1 else f"{len(leftover.pids)} processes"
    held = _held(leftover.memory_bytes, frame, leftover.pids)
    return Remains(
        leftover.name,
        f"{count} of {leftover.name} outlived it ({who}){held}",
        f"End exactly these: vtop stop {leftover.name}",
    )


def _held(memory_bytes: int | None, frame: GpuFrame | None, pids: Sequence[int]) -> str:
    parts = [] if memory_bytes is None else [f"{gib(memory_bytes)} of memory"]
    for gpu in frame.gpus if frame is not None else ():
        # A pid without a name is the host's, seen from inside a container: it may be anybody's here.
        mine = [p for p in gpu.processes or () if p.pid in pids and p.name is not None]
        if mine:
            known = [process.memory_used_bytes for process in mine if process.memory_used_bytes is not None]
            parts.append(f"{gib(sum(known))} on GPU {gpu.index}" if known else f"memory of GPU {gpu.index}")
    return f" and hold{'s' if len(pids) == 1 else ''} {', '.join(parts)}" if parts else ""
