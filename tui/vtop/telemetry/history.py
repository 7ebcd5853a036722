"""Recent values in rings of fixed size, so that memory stays flat however long vtop runs."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence

SERVER_FIELDS = (
    "ttft_mean_s",
    "ttft_p95_s",
    "tpot_mean_s",
    "generation_tokens_per_s",
    "prompt_tokens_per_s",
    "requests_per_s",
    "running",
    "waiting",
    "kv_usage",
    "prefix_hit_rate",
    "acceptance",
    "tpot_floor_s",
)
GPU_FIELDS = ("bandwidth_percent", "sm_percent", "gpu_util_percent", "memory_used_bytes", "power_w")
POINTS = 1200
"""Ten minutes at two a second."""
_MOST_SUBJECTS = 256


class _Ring:
    """Times and several values at each; twice the points are stored, and the older half is dropped at once."""

    __slots__ = ("columns", "points", "times")

    def __init__(self, fields: Sequence[str], points: int) -> None:
        self.points = points
        self.times = array("d")
        self.columns = {field: array("d") for field in fields}

    def append(self, at_s: float, values: Mapping[str, float | None]) -> None:
        if self.times and at_s <= self.times[-1]:
            return
        if len(self.times) >= 2 * self.points:
            del self.times[: self.points]
            for column in self.columns.values():
                del column[: self.points]
        self.times.append(at_s)
        for field, column in self.columns.items():
            value = values.get(field)
            column.append(math.nan if value is None else value)


class HistoryStore:
    """What the hub has published, by server name and GPU UUID; see `snapshot.History` for the keys.

    Args:
        points: how many of the newest points of each series are given out.
    """

    def __init__(self, points: int = POINTS) -> None:
        self._points = points
        self._rings: dict[tuple[str, str], _Ring] = {}

    def add_server(self, name: str, at_s: float, values: Mapping[str, float | None]) -> None:
        """Adds a point of a server; None, NaN and infinities make a gap."""
        self._ring("server", name, SERVER_FIELDS).append(at_s, values)

    def add_gpu(self, uuid: str, at_s: float, values: Mapping[str, float | None]) -> None:
        """Adds a point of a GPU; None, NaN and infinities make a gap."""
        self._ring("gpu", uuid, GPU_FIELDS).append(at_s, values)

    def clear(self) -> None:
        """Forgets everything (a replay that jumps back)."""
        self._rings.clear()

    def series(self, key: str, seconds: float | None = None) -> tuple[Sequence[float], Sequence[float | None]]:
        """See `snapshot.History.series`."""
        kind, _, rest = key.partition("/")
        subject, _, field = rest.rpartition("/")
        ring = self._rings.get((kind, subject))
        if ring is None or field not in ring.columns or not ring.times:
            return (), ()
        first = max(0, len(ring.times) - self._points)
        if seconds is not None:
            first = max(first, bisect_left(ring.times, ring.times[-1] - seconds))
        values = ring.columns[field][first:]
        return ring.times[first:].tolist(), [value if math.isfinite(value) else None for value in values]

    def _ring(self, kind: str, subject: str, fields: Sequence[str]) -> _Ring:
        ring = self._rings.get((kind, subject))
        if ring is None:
            while len(self._rings) >= _MOST_SUBJECTS:
                oldest = min(self._rings, key=lambda found: self._rings[found].times[-1])
                del self._rings[oldest]
            ring = self._rings[kind, subject] = _Ring(fields, self._points)
        return ring
