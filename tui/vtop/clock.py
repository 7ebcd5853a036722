"""One source of time, so that tests can hold the hands."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the rest of vtop may ask about time."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back (same origin in every process of this boot on Linux)."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for saved files and displays only, never for differences."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def wall(self) -> float:
        """See `Clock.wall`."""
        return time.time()


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._monotonic

    def wall(self) -> float:
        """See `Clock.wall`."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Moves both hands forward.

        Args:
            seconds: how far; must not be negative.

        Raises:
            ValueError: time would run backwards.
        """
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._monotonic += seconds
        self._wall += seconds
