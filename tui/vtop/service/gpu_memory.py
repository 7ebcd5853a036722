"""After a stop: whether the driver still lists memory of the processes that ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Protocol

from vtop.telemetry.gpu.matching import process_label
from vtop.telemetry.gpu.source import GpuFrame
from vtop.units import gib

PATIENCE_S = 6.0
"""The driver gives memory back a moment after the process is gone."""
LOOK_EVERY_S = 0.5


class FrameSource(Protocol):
    """Where the newest GPU readings are."""

    def gpu_frame(self) -> GpuFrame | None:
        """The newest readings, or None where there are none."""
        ...


def held_by(frame: GpuFrame | None, pids: Collection[int]) -> list[str]:
    """In words, what these processes hold on GPUs by the driver's word."""
    return [
        f"GPU {gpu.index} still lists {process_label(process)} with {gib(process.memory_used_bytes)}"
        for gpu in (frame.gpus if frame is not None else ())
        for process in gpu.processes or ()
        if process.pid in pids
    ]


def users_of(frame: GpuFrame | None, uuids: Collection[str] | None, without: Collection[int]) -> str:
    """Who holds memory of some GPUs by the driver's word, the largest first; "" where nobody does or can tell.

    Args:
        frame: the newest readings.
        uuids: the GPUs; None: all that there are.
        without: processes that do not count, such as those of the server that asks.
    """
    words = []
    for gpu in frame.gpus if frame is not None else ():
        if uuids is not None and gpu.uuid not in uuids:
            continue
        others = [process for process in gpu.processes or () if process.pid not in without]
        for process in sorted(others, key=lambda process: -(process.memory_used_bytes or 0)):
            words.append(f"{process_label(process)} holds {gib(process.memory_used_bytes)} of GPU {gpu.index}")
    return ", ".join(words)


def memory_left(source: FrameSource, pids: Collection[int], patience_s: float = PATIENCE_S) -> Sequence[str]:
    """What is still held when patience ends; empty at once where there are no GPU readings. Called in a thread."""
    end = time.monotonic() + patience_s
    while True:
        held = held_by(source.gpu_frame(), pids)
        if not held or time.monotonic() >= end:
            return held
        time.sleep(LOOK_EVERY_S)
