"""The GPUs of this machine, through NVML (nvidia-ml-py). Only reads; never changes a GPU's state.

All calls come from one worker thread: NVML is thread-safe, but slow calls belong away from the screen. Everything is
keyed by UUID: indices move when a GPU goes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from vtop.clock import Clock, SystemClock
from vtop.telemetry.gpu.device import Device
from vtop.telemetry.gpu.memory import SystemMemory, system_memory
from vtop.telemetry.gpu.mig import MigInstances
from vtop.telemetry.gpu.nvml_calls import LIBRARY_DOWN, LOST, DeviceLostError, LibraryDownError, import_nvml
from vtop.telemetry.gpu.processes import ProcessNames
from vtop.telemetry.gpu.source import GpuFrame
from vtop.telemetry.gpu.throttle import ALARMING
from vtop.telemetry.gpu.xid import XidWatcher
from vtop.telemetry.snapshot import Event, GpuReading, GpuStatus

RETRY_S = 10.0
"""Between attempts to find a lost GPU, or a library that does not answer."""
LOOK_UP_S = 30.0
"""Between look-ups of which GPUs and MIG instances there are."""
FIRST_REINIT_S, REINIT_S = 60.0, 300.0
"""A GPU that was reset comes back only after NVML was initialised again, which costs the others a gap; so seldom."""

_UNINITIALIZED, _NO_PERMISSION, _LIBRARY_NOT_FOUND = 1, 4, 12
_REMEDIES = {
    4: "no permission to talk to the NVIDIA driver; check the rights of /dev/nvidia*",
    9: "the NVIDIA driver is not loaded; load it (modprobe nvidia) or reboot",
    _LIBRARY_NOT_FOUND: "no NVIDIA driver library (libnvidia-ml.so.1); "
    "install the driver, or give the container its GPUs (--gpus all)",
    17: "the system blocks access to the GPUs; check cgroup rules and the rights of /dev/nvidia*",
    18: "NVIDIA library and kernel module differ in version (driver updated); reboot, or restart the container",
    28: "the NVIDIA driver finds no GPU; check nvidia-smi and the container's --gpus",
}


def unavailable_text(code: int) -> str:
    """Why NVML does not work and what to do, in one line."""
    if code == _LIBRARY_NOT_FOUND and sys.platform == "darwin":
        return "no NVIDIA GPU on this system (macOS); attach to a server by URL, or run vtop demo"
    return _REMEDIES.get(code, f"the NVIDIA driver library does not work (NVML error {code}); check nvidia-smi")


@dataclass(slots=True)
class _Seat:
    """One GPU's place in the list, whether it answers or not."""

    uuid: str
    device: Device | None = None
    mig: MigInstances | None = None
    readings: tuple[GpuReading, ...] = ()
    """The last good ones, the whole GPU first."""
    read_s: float = 0.0
    lost_s: float | None = None
    why: str = ""
    throttle: frozenset[str] = frozenset()
    ecc: int | None = None


class NvmlSource:
    """See `GpuSource`.

    Args:
        clock: ages, rates, retries; the machine's own where None.
        peak_override_bytes_per_s: DRAM peaks by UUID or index (as text), or for all under `*`; they win.
        memory: the system's total and available bytes, for GPUs that share it.
        host_pids: whether the driver's pids are this namespace's; found out where None.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        peak_override_bytes_per_s: Mapping[str, float] | None = None,
        memory: SystemMemory = system_memory,
        host_pids: bool | None = None,
    ) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._overrides = dict(peak_override_bytes_per_s or {})
        self._memory = memory
        self._names = ProcessNames(host_pids)
        self._nvml: ModuleType | None = None
        self._up = False
        self._message = "the NVIDIA driver was not asked yet"
        self._driver: str | None = None
        self._seats: dict[str, _Seat] = {}
        self._xid: XidWatcher | None = None
        self._tried_s: float | None = None
        self._looked_up_s = 0.0
        self._reinit_s = 0.0
        self._events: list[Event] = []

    def open(self) -> None:
        """See `GpuSource.open`."""
        self._tried_s = self._clock.monotonic()
        try:
            self._nvml = nvml = import_nvml()
        except ImportError:
            self._message = "nvidia-ml-py is not installed; install vtop again with its dependencies"
            return
        except OSError:
            self._message = unavailable_text(_LIBRARY_NOT_FOUND)
            return
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            self._message = unavailable_text(error.value)
            return
        self._up, self._message = True, ""
        try:
            self._driver = str(nvml.nvmlSystemGetDriverVersion())
        except (nvml.NVMLError, ValueError):
            self._driver = None
        self._xid = XidWatcher(nvml, self._clock)
        self._reinit_s = self._clock.monotonic()
        try:
            self._look_up()
        except LibraryDownError as error:
            self._down(error.code)

    def read(self) -> GpuFrame:
        """See `GpuSource.read`."""
        now_s = self._clock.monotonic()
        if not self._up and (self._tried_s is None or now_s - self._tried_s >= RETRY_S):
            self.open()
        if self._up:
            try:
                self._read_all(now_s)
            except LibraryDownError as error:
                self._down(error.code)
                if error.code == _UNINITIALIZED:
                    self.open()  # somebody's shutdown or a fork raced with us: once, at once
        if self._xid is not None:
            self._events += self._xid.take()
        events, self._events = tuple(self._events), []
        gpus = self._gathered(now_s)
        message = self._message
        if self._up and not gpus:
            message = unavailable_text(28)
        return GpuFrame(GpuStatus(self._up and bool(gpus), message, self._driver), gpus, events)

    def close(self) -> None:
        """See `GpuSource.close`."""
        if self._up:
            self._release()
        self._up = False
        self._seats.clear()
        self._tried_s = None
        self._message = "closed"

    def _gathered(self, now_s: float) -> tuple[GpuReading, ...]:
        gathered: list[GpuReading] = []
        for seat in sorted(self._seats.values(), key=lambda seat: seat.readings[0].index if seat.readings else 999):
            for reading in seat.readings:
                if seat.lost_s is None and self._up:
                    gathered.append(reading)
                else:
                    missing = {**reading.missing, "lost": seat.why or self._message}
                    gathered.append(replace(reading, lost=True, age_s=now_s - seat.read_s, missing=missing))
        return tuple(gathered)

    def _read_all(self, now_s: float) -> None:
        assert self._nvml is not None
        lost = [seat.lost_s for seat in self._seats.values() if seat.lost_s is not None]
        if now_s - self._looked_up_s >= (RETRY_S if lost or not self._seats else LOOK_UP_S):
            since_s = now_s - min(lost, default=now_s)
            if since_s >= FIRST_REINIT_S and now_s - self._reinit_s >= min(since_s, REINIT_S):
                self._release()
                self._up = False
                self.open()
                if not self._up:
                    return
            else:
                self._look_up()
        for seat in list(self._seats.values()):
            if seat.device is None:
                continue
            try:
                self._read_seat(seat, now_s)
            except DeviceLostError as error:
                self._lose(seat, str(error))

    def _read_seat(self, seat: _Seat, now_s: float) -> None:
        assert seat.device is not None and seat.mig is not None
        whole = seat.device.read()
        seat.readings = (whole, *seat.mig.read(whole))
        seat.read_s = now_s
        alarming = frozenset(whole.throttle) & ALARMING
        if new := sorted(alarming - seat.throttle):
            self._events.append(Event(now_s, "throttle", seat.uuid, f"GPU {whole.index} slows down: {', '.join(new)}"))
        seat.throttle = alarming
        if whole.ecc_uncorrected is not None:
            if seat.ecc is not None and whole.ecc_uncorrected > seat.ecc:
                more = whole.ecc_uncorrected - seat.ecc
                text = f"GPU {whole.index}: {more} more uncorrectable memory errors (ECC)"
                self._events.append(Event(now_s, "ecc", seat.uuid, text))
            seat.ecc = whole.ecc_uncorrected

    def _look_up(self) -> None:
        """Which GPUs there are now, under which index; finds lost ones again.

        Raises:
            LibraryDownError: NVML as a whole is gone.
        """
        nvml, now_s = self._nvml, self._clock.monotonic()
        assert nvml is not None
        self._looked_up_s = now_s
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            raise LibraryDownError(error.value) from error
        seen: set[str] = set()
        unreachable: dict[int, tuple[int, str]] = {}
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = str(nvml.nvmlDeviceGetUUID(handle))
            except nvml.NVMLError as error:
                if error.value in LIBRARY_DOWN:
                    raise LibraryDownError(error.value) from error
                unreachable[index] = (error.value, LOST.get(error.value, f"NVML error {error.value}"))
                continue
            except ValueError:
                continue
            if self._seat(uuid, handle, index):
                seen.add(uuid)
        for uuid, seat in list(self._seats.items()):
            if uuid in seen:
                continue
            if seat.device is not None:
                self._lose(seat, "the driver does not list it any more")
            elif uuid.startswith(_UNREADABLE):
                del self._seats[uuid]
        known = {seat.readings[0].index for seat in self._seats.values() if seat.lost_s is not None and seat.readings}
        for index, (code, why) in unreachable.items():
            # Hidden by a cgroup is not ours to show; anything else deserves a row, unless it has a lost one already.
            if code != _NO_PERMISSION and index not in known:
                self._seats[f"{_UNREADABLE}{index}"] = _unreadable(index, why, now_s)

    def _seat(self, uuid: str, handle: Any, index: int) -> bool:
        """Puts a GPU that answers into the list; False where it died on its first questions."""
        assert self._nvml is not None
        seat = self._seats.setdefault(uuid, _Seat(uuid))
        try:
            if seat.device is None:
                override = self._overrides.get(uuid, self._overrides.get(str(index), self._overrides.get("*")))
                device = Device(self._nvml, self._clock, handle, index, uuid, override, self._memory, self._names)
                was_lost = seat.lost_s is not None
                seat.device, seat.mig = device, MigInstances(device, self._clock, self._names)
                self._read_seat(seat, self._clock.monotonic())
                if self._xid is not None:
                    self._xid.watch(handle, uuid)
                if was_lost:
                    self._events.append(Event(self._clock.monotonic(), "state", uuid, f"GPU {index} is back"))
            seat.lost_s, seat.why = None, ""
            seat.device.index = index
            assert seat.mig is not None
            seat.mig.look_up()
        except DeviceLostError as error:
            self._lose(seat, str(error), quiet=seat.lost_s is not None)
            if not seat.readings:
                seat.readings = _unreadable(index, str(error), self._clock.monotonic(), uuid).readings
            return False
        return True

    def _lose(self, seat: _Seat, why: str, quiet: bool = False) -> None:
        if seat.device is not None:
            seat.device.close()
        if seat.mig is not None:
            seat.mig.close()
        seat.device = seat.mig = None
        now_s = self._clock.monotonic()
        if seat.lost_s is None:
            seat.lost_s = now_s
        seat.why = why
        if not quiet:
            index = seat.readings[0].index if seat.readings else "?"
            self._events.append(Event(now_s, "gpu-lost", seat.uuid, f"GPU {index} is lost: {why}"))

    def _down(self, code: int) -> None:
        self._message = unavailable_text(code)
        if code == _UNINITIALIZED:
            self._message = "the NVIDIA driver library was shut down; vtop opens it again"
        self._release()
        self._up = False

    def _release(self) -> None:
        """Gives back samples, events and library, in this order; rows stay, with their last values."""
        for seat in self._seats.values():
            if seat.mig is not None:
                seat.mig.close()
            if seat.device is not None:
                seat.device.close()
            seat.device = seat.mig = None
        if self._xid is not None:
            self._events += self._xid.take()
            self._xid.stop()
        self._xid = None
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return


_UNREADABLE = "unreadable-gpu-"


def _unreadable(index: int, why: str, now_s: float, uuid: str = "") -> _Seat:
    """A GPU that did not answer even the question for its name."""
    uuid = uuid or f"{_UNREADABLE}{index}"
    reading = GpuReading(uuid=uuid, index=index, name="GPU that does not answer", missing={"lost": why})
    return _Seat(uuid, readings=(reading,), read_s=now_s, lost_s=now_s, why=why)
