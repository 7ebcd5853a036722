"""Byte counters of the driver to rates, and NVML's field batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vtop.telemetry.gpu.nvml_calls import Calls

MEMORY_TEMPERATURE, POWER_INSTANT = 82, 186
NVLINK_RX_KIB, NVLINK_TX_KIB = 139, 138
PCIE_TX_BYTES, PCIE_RX_BYTES = 197, 198
ALL_LINKS = 0xFFFFFFFF
BATCH: tuple[Any, ...] = (
    MEMORY_TEMPERATURE,
    POWER_INSTANT,
    (NVLINK_TX_KIB, ALL_LINKS),
    (NVLINK_RX_KIB, ALL_LINKS),
    PCIE_TX_BYTES,
    PCIE_RX_BYTES,
)
"""One driver call answers them together. NVLink with the scope "sum of all links"."""

_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""Value type -> member of the union."""
_WRAP = 2**32


def read_fields(calls: Calls, handle: Any) -> dict[int, float]:
    """The batch; only fields whose own return code is success."""
    answer = calls.ask("fields", "nvmlDeviceGetFieldValues", handle, list(BATCH), key="fields")
    return dict(_values(answer)) if answer is not None else {}


def _values(answer: Iterable[Any]) -> Iterable[tuple[int, float]]:
    for field in answer:
        member = _MEMBERS.get(field.valueType)
        if field.nvmlReturn == 0 and member is not None:
            yield int(field.fieldId), float(getattr(field.value, member))


class CounterRate:
    """A growing counter to a rate.

    Args:
        most_per_s: rates above this are faults of the counter, not traffic.
        unit_bytes: bytes of one count.
    """

    def __init__(self, most_per_s: float, unit_bytes: float = 1.0) -> None:
        self._most_per_s = most_per_s
        self._unit_bytes = unit_bytes
        self._before: tuple[float, float] | None = None

    def update(self, at_s: float, count: float | None) -> float | None:
        """Bytes per second since the count before, or None where that cannot be told.

        A counter that went back is taken to have wrapped at 32 bits if it was below that, else to have been reset. A
        counter that is only 32 bits wide cannot tell rates above 4.3 GB a reading apart.
        """
        before, self._before = self._before, None if count is None else (at_s, count)
        if before is None or count is None or at_s <= before[0]:
            return None
        grown = count - before[1]
        if grown < 0:
            if before[1] >= _WRAP:
                return None
            grown += _WRAP
        rate = grown * self._unit_bytes / (at_s - before[0])
        return rate if 0 <= rate <= self._most_per_s else None
