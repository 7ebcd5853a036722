"""How late an event loop is: what the client's own work adds to its stamps."""

from __future__ import annotations

import asyncio

from vtop.load.client import monotonic
from vtop.load.stats import percentile


class LoopLag:
    """How late this process's event loop is, sampled fifty times a second."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins anew."""
        self.samples = []
        self._arm()

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = monotonic() + 0.02
        self._timer = loop.call_later(0.02, self._ring)

    def _ring(self) -> None:
        # Timers of the loop have a grain of one millisecond; only what is beyond it is lag.
        self.samples.append(max(0.0, monotonic() - self._due - 0.001))
        self._arm()

    def stop(self) -> None:
        """Ends sampling."""
        if self._timer is not None:
            self._timer.cancel()

    def p99(self) -> float | None:
        """The 99th percentile so far."""
        return percentile(sorted(self.samples), 99)
