"""One worker thread that reads the GPUs at its own pace, so that a slow driver never holds up the screen."""

from __future__ import annotations

import threading
from collections import deque

from vtop.clock import Clock
from vtop.telemetry.gpu.source import GpuFrame, GpuSource
from vtop.telemetry.snapshot import GpuStatus

PERIOD_S = 0.5
_MOST_WAITING = 120


class GpuSampler:
    """Reads a source twice a second in a daemon thread.

    Args:
        source: opened, read and closed in the thread only.
        clock: stamps the frames.
        period_s: between two readings, counted from the start, so that lateness does not add up.
    """

    def __init__(self, source: GpuSource, clock: Clock, period_s: float = PERIOD_S) -> None:
        self._source = source
        self._clock = clock
        self._period_s = period_s
        self._stop = threading.Event()
        self._frames: deque[tuple[float, GpuFrame]] = deque(maxlen=_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="vtop-gpu", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def drain(self) -> list[tuple[float, GpuFrame]]:
        """The frames since the last call, each with its time (monotonic seconds)."""
        frames = []
        while self._frames:
            frames.append(self._frames.popleft())
        return frames

    def close(self, wait_s: float) -> bool:
        """Ends the thread; a driver call that hangs is left to itself (the thread is a daemon).

        Returns:
            Whether it ended in time.
        """
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._guarded_open()
            due = self._clock.monotonic()
            while not self._stop.is_set():
                self._frames.append((self._clock.monotonic(), self._read()))
                now = self._clock.monotonic()
                due += self._period_s
                if due < now:
                    due = now
                # A clock that stands still (tests) must not make the pause grow.
                self._stop.wait(min(self._period_s, due - now))
        finally:
            self._source.close()

    def _guarded_open(self) -> None:
        try:
            self._source.open()
        except Exception as error:  # a source promises not to raise; if it does, the rest of vtop lives on
            self._frames.append((self._clock.monotonic(), _broken(error)))

    def _read(self) -> GpuFrame:
        try:
            return self._source.read()
        except Exception as error:  # see _guarded_open
            return _broken(error)


def _broken(error: Exception) -> GpuFrame:
    return GpuFrame(GpuStatus(False, f"GPU readings failed: {type(error).__name__}: {error}"))
