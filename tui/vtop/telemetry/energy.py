"""Energy counters over a window: joules for each generated token."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_MOST_SAMPLES = 1200
_FIRST_SPACING_S = 5.0
_SLACK_S = 1.5
"""How far a reading may lie from the window's edge: GPUs and pages are not read in the same moment."""

Sample = tuple[float, float]
"""Monotonic seconds, joules."""


@dataclass(slots=True)
class _Counter:
    """Readings of one counter: the newest all, the older ones spaced, wider each time that there are too many."""

    newest: deque[Sample] = field(default_factory=deque)
    older: list[Sample] = field(default_factory=list)
    spacing_s: float = _FIRST_SPACING_S

    def append(self, sample: Sample) -> None:
        self.newest.append(sample)
        if len(self.newest) <= _MOST_SAMPLES:
            return
        left = self.newest.popleft()
        if not self.older or left[0] >= self.older[-1][0] + self.spacing_s:
            self.older.append(left)
        if len(self.older) > _MOST_SAMPLES:
            del self.older[1::2]
            self.spacing_s *= 2


class EnergyMeter:
    """Remembers the energy counter of each GPU, by UUID: all of it, since a load test may take hours."""

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}

    def add(self, uuid: str, at_s: float, energy_j: float | None) -> None:
        """Takes a reading; a counter that went back (driver reloaded) starts anew."""
        if energy_j is None:
            return
        counter = self._counters.setdefault(uuid, _Counter())
        if counter.newest and energy_j < counter.newest[-1][1]:
            counter = self._counters[uuid] = _Counter()
        if not counter.newest or at_s > counter.newest[-1][0]:
            counter.append((at_s, energy_j))

    def joules(self, uuids: Sequence[str], start_s: float, end_s: float) -> float | None:
        """Energy of all these GPUs together between two moments, or None where a reading is missing."""
        total = 0.0
        for uuid in uuids:
            begin, end = self._at(uuid, start_s), self._at(uuid, end_s)
            if begin is None or end is None:
                return None
            total += end - begin
        return total if uuids and end_s > start_s else None

    def _at(self, uuid: str, at_s: float) -> float | None:
        counter = self._counters.get(uuid)
        samples = [*counter.older, *counter.newest] if counter is not None else []
        if len(samples) < 2 or not samples[0][0] - _SLACK_S <= at_s <= samples[-1][0] + _SLACK_S:
            return None
        right = min(max(bisect_right(samples, at_s, key=_time), 1), len(samples) - 1)
        (t0, e0), (t1, e1) = samples[right - 1], samples[right]
        # Beyond the last reading the last slope goes on, for at most the slack.
        return e0 + (e1 - e0) * (at_s - t0) / (t1 - t0)


def _time(sample: Sample) -> float:
    return sample[0]
