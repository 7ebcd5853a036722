"""One NVML call at a time: what each error code means, and which calls are not worth asking again."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vtop.clock import Clock

ASK_AGAIN_S = 300.0
"""A call that a device does not support is asked again this late: drivers and modes do change under a running vtop."""
UNKNOWN_MEANS_LOST = 3
"""NVML's "unknown error" from every call, this many in a row, is what a dying device says."""

DRIVER_LIBRARY = "libnvidia-ml.so.1"
"""What pynvml loads; asked for first, because pynvml itself takes 2 MB and 20 ms."""

INVALID_ARGUMENT, NO_PERMISSION, UNKNOWN = 2, 4, 999
NOT_OFFERED = {
    3: "not supported by this GPU",
    13: "not offered by this driver",
    21: "no data from this GPU",
    25: "not offered by this driver (structure version)",
    26: "no longer offered by this driver",
}
LOST = {11: "its interrupts fail", 15: "it fell off the bus", 16: "it needs a reset"}
LIBRARY_DOWN = frozenset({1, 9, 12, 18})
"""Not the device's fault: not initialised, driver gone, library gone, library and driver differ."""
INSUFFICIENT_SIZE = 7

U32_SENTINEL = 0xFFFFFFFF
U64_SENTINEL = 0xFFFFFFFFFFFFFFFF
"""How NVML writes "not available" into numbers."""


class DeviceLostError(Exception):
    """The device answers nothing any more; its handle must not be used again."""


class LibraryDownError(Exception):
    """NVML as a whole stopped answering.

    Attributes:
        code: NVML's return code.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


class Calls:
    """Asks one device (or MIG instance), each call guarded alone.

    Args:
        nvml: the `pynvml` module, initialised.
        clock: for the time until a refused call is asked again.
        shared: MIG instance or virtual GPU, where "invalid argument" means that the call is not for them.
    """

    def __init__(self, nvml: ModuleType, clock: Clock, shared: bool = False) -> None:
        self.nvml = nvml
        self.shared = shared
        self.missing: dict[str, str] = {}
        """Reading -> why there is none, for what was asked since it was last cleared."""
        self._clock = clock
        self._refused: dict[object, tuple[float, str]] = {}
        self._unknown_in_a_row = 0

    def refused(self, key: object) -> str | None:
        """Why this call is not worth making now, or None."""
        entry = self._refused.get(key)
        return entry[1] if entry is not None and self._clock.monotonic() < entry[0] else None

    def refuse(self, key: object, reason: str) -> None:
        """Remembers that a call is of no use here."""
        self._refused[key] = (self._clock.monotonic() + ASK_AGAIN_S, reason)

    def forget(self) -> None:
        """Asks everything again, for after a mode change."""
        self._refused.clear()

    def ask(self, reading: str, function: str, *arguments: Any, key: object = None, **options: Any) -> Any | None:
        """Calls one function of NVML.

        Args:
            reading: what it is for, the key in `missing`.
            function: its name in `pynvml`.
            arguments: the handle first.
            key: what is remembered as refused; the function and what follows the handle where None.
            options: keyword arguments of the function.

        Returns:
            What it returned, or None with the reason in `missing`.

        Raises:
            DeviceLostError: the device is gone; make no further call with its handle.
            LibraryDownError: NVML as a whole is gone.
        """
        key = (function, *arguments[1:]) if key is None else key
        if (reason := self.refused(key)) is not None:
            self.missing[reading] = reason
            return None
        try:
            value = self._call(function, arguments, options)
        except self.nvml.NVMLError as error:
            self.missing[reading] = self._judge(key, error.value)
            return None
        except (AttributeError, self.nvml.NVMLLibraryMismatchError):
            self.refuse(key, "not offered by this nvidia-ml-py")
            self.missing[reading] = "not offered by this nvidia-ml-py"
            return None
        except (ValueError, ctypes.ArgumentError):
            # A name that is no UTF-8, a structure of another size: this value only.
            self.missing[reading] = "unreadable answer from the driver"
            return None
        self._unknown_in_a_row = 0
        self.missing.pop(reading, None)
        return value

    def _call(self, function: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        call: Callable[..., Any] = getattr(self.nvml, function)
        try:
            return call(*arguments, **options)
        except self.nvml.NVMLError as error:
            if error.value != INSUFFICIENT_SIZE:
                raise
        return call(*arguments, **options)  # a list grew between its two questions

    def _judge(self, key: object, code: int) -> str:
        if code in LOST:
            raise DeviceLostError(LOST[code])
        if code in LIBRARY_DOWN:
            raise LibraryDownError(code)
        if code == UNKNOWN:
            self._unknown_in_a_row += 1
            if self._unknown_in_a_row >= UNKNOWN_MEANS_LOST:
                raise DeviceLostError("every call ends in an unknown error")
            return "the driver answered with an unknown error"
        self._unknown_in_a_row = 0
        if code in NOT_OFFERED or (code == INVALID_ARGUMENT and self.shared):
            reason = NOT_OFFERED.get(code, "not offered for a part of a GPU")
            self.refuse(key, reason)
            return reason
        if code == NO_PERMISSION:
            self.refuse(key, "no permission")
            return "no permission"
        return f"no answer this time (NVML error {code})"


def plausible(value: float | None, low: float, high: float) -> float | None:
    """The value, or None where no such device can say so (sentinels, garbage)."""
    return value if value is not None and low <= value <= high else None


def number(value: Any) -> float | None:
    """A 32-bit answer, without NVML's "not available"."""
    return None if value is None or value in (U32_SENTINEL, U64_SENTINEL) else float(value)


def count(value: Any) -> int | None:
    """A 32-bit answer as a whole number, without NVML's "not available"."""
    found = number(value)
    return None if found is None else int(found)


def counter(value: Any) -> int | None:
    """A 64-bit answer, without NVML's "not available"."""
    return None if value is None or value == U64_SENTINEL else int(value)


def handle_address(handle: Any) -> int | None:
    """A handle as a number, to compare handles that came by different calls."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def import_nvml() -> ModuleType:
    """The NVML binding, imported only where there is a driver library to bind: on most laptops there is none.

    Raises:
        ImportError: nvidia-ml-py is not installed.
        OSError: no driver library can be loaded.
    """
    if "pynvml" not in sys.modules:
        ctypes.CDLL(DRIVER_LIBRARY)
    import pynvml

    module: ModuleType = pynvml
    return module
