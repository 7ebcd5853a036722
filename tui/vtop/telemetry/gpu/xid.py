"""Faults that the driver reports (XID), as events. Linux only; in a thread of its own, since NVML makes one wait."""

from __future__ import annotations

import sys
import threading
from collections import deque
from types import ModuleType
from typing import Any

from vtop.clock import Clock
from vtop.telemetry.gpu.nvml_calls import handle_address
from vtop.telemetry.snapshot import Event

_WAIT_MS = 100
"""Short, because the thread must be over before NVML is shut down, and quitting must not wait."""
_PAUSE_S = 1.0
_JOIN_S = 5.0

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
    """Waits for XIDs of some devices.

    Args:
        nvml: the `pynvml` module, initialised, and staying so until `stop` has returned.
        clock: event times.
    """

    def __init__(self, nvml: ModuleType, clock: Clock) -> None:
        self._nvml = nvml
        self._clock = clock
        self._uuids: dict[int | None, str] = {}
        self._events: deque[Event] = deque(maxlen=1000)
        self._ending = threading.Event()
        self._set: Any = None
        self._thread: threading.Thread | None = None

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
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="vtop-xid", daemon=True)
            self._thread.start()

    def take(self) -> list[Event]:
        """What came since the last call."""
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def _run(self) -> None:
        timeout = self._nvml.NVML_ERROR_TIMEOUT
        while not self._ending.is_set():
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._set, _WAIT_MS)
            except self._nvml.NVMLError as error:
                if error.value != timeout:
                    self._ending.wait(_PAUSE_S)
                continue
            except AttributeError:
                return
            if data.eventType != self._nvml.nvmlEventTypeXidCriticalError:
                continue
            uuid = self._uuids.get(handle_address(data.device), "")
            self._events.append(Event(self._clock.monotonic(), "xid", uuid, xid_text(int(data.eventData))))

    def stop(self) -> bool:
        """Ends the thread and gives the event set back.

        Returns:
            False where the driver did not come back from its wait; then NVML must not be shut down under it.
        """
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                return False
            self._thread = None
        if self._set is not None:
            try:
                self._nvml.nvmlEventSetFree(self._set)
            except self._nvml.NVMLError:
                return True
            finally:
                self._set = None
        return True
