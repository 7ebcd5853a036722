"""Energy counters over a window: joules for each generated token."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

_MOST_SAMPLES = 1200
_SLACK_S = 1.5
"""How far a reading may lie from the window's edge: GPUs and pages are not read in the same moment."""


class EnergyMeter:
    """Remembers the energy counter of each GPU, by UUID."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, float]]] = {}

    def add(self, uuid: str, at_s: float, energy_j: float | None) -> None:
        """Takes a reading; a counter that went back (driver reloaded) starts anew."""
        if energy_j is None:
            return
        samples = self._samples.setdefault(uuid, deque(maxlen=_MOST_SAMPLES))
        if samples and energy_j < samples[-1][1]:
            samples.clear()
        if not samples or at_s > samples[-1][0]:
            samples.append((at_s, energy_j))

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
        samples = self._samples.get(uuid)
        if samples is None or len(samples) < 2 or not samples[0][0] - _SLACK_S <= at_s <= samples[-1][0] + _SLACK_S:
            return None
        times = [time for time, _ in samples]
        right = min(max(bisect_right(times, at_s), 1), len(samples) - 1)
        (t0, e0), (t1, e1) = samples[right - 1], samples[right]
        # Beyond the last reading the last slope goes on, for at most the slack.
        return e0 + (e1 - e0) * (at_s - t0) / (t1 - t0)
