"""Faults that the driver reports (XID), as events. Linux only.

NVML keeps them for the one who waits. vtop looks with each reading instead: a thread that waits must wake many times a
second, or quitting would wait for it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from vtop.clock import Clock
from vtop.telemetry.gpu.nvml_calls import handle_address
from vtop.telemetry.snapshot import Event

_WAIT_MS = 1
"""The least that is surely a wait: what 0 means is not documented."""
_MOST_AT_ONCE = 64
"""A dying board reports without end."""

_WORDS = {
    13: "a kernel failed (graphics engine exception)",
    31: "a kernel touched memory that is not its own (page fault)",
    43: "a kernel failed and its channel was stopped",
    45: "work was cleaned up after an earlier fault or a killed process",
    48: "uncorrectable memory error (double-bit ECC)",
    63: "a memory row is to be remapped at the next reset",
    64: "remapping a memory row failed",
    74: "NVLink error",
    79: "the GPU fell off the bus",
    92: "many corrected memory errors",
    94: "uncorrectable memory error, contained: one process was hit",
    95: "uncorrectable memory error, not contained: reset the GPU",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
}
"""NVIDIA's XID catalogue, the ones that an inference server meets."""


def xid_text(code: int) -> str:
    """An XID in words."""
    return f"XID {code}: {_WORDS.get(code, 'see NVIDIA XID errors')}"


class XidWatcher:
    """Collects XIDs of some devices. For the worker thread.

    Args:
        nvml: the `pynvml` module, initialised, and staying so until `stop` has returned.
        clock: event times.
    """

    def __init__(self, nvml: ModuleType, clock: Clock) -> None:
        self._nvml = nvml
        self._clock = clock
        self._uuids: dict[int | None, str] = {}
        self._set: Any = None

    def watch(self, handle: Any, uuid: str) -> None:
        """Adds a whole GPU; where the driver does not offer it, nothing happens."""
        if sys.platform != "linux":
            return
        try:
            if self._set is None:
                self._set = self._nvml.nvmlEventSetCreate()
            self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, self._set)
        except (self._nvml.NVMLError, AttributeError):
            return
        self._uuids[handle_address(handle)] = uuid

    def take(self) -> list[Event]:
        """What came since the last call."""
        taken: list[Event] = []
        for _ in range(_MOST_AT_ONCE if self._uuids else 0):
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._set, _WAIT_MS)
            except (self._nvml.NVMLError, AttributeError):
                break  # nothing came, or it cannot be told; the next call asks again
            if data.eventType == self._nvml.nvmlEventTypeXidCriticalError:
                uuid = self._uuids.get(handle_address(data.device), "")
                taken.append(Event(self._clock.monotonic(), "xid", uuid, xid_text(int(data.eventData))))
        return taken

    def stop(self) -> None:
        """Gives the event set back."""
        event_set, self._set = self._set, None
        self._uuids.clear()
        if event_set is None:
            return
        try:
            self._nvml.nvmlEventSetFree(event_set)
        except self._nvml.NVMLError:
            return
