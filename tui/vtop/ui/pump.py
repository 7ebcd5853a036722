"""Newest snapshot wins: the hub may publish as fast as it likes, the screen takes the last one when it paints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from vtop.telemetry.snapshot import Snapshot


class Pump:
    """A slot of one snapshot between the hub and the painter.

    `offer` may be called from any thread: it only sets a reference. Nothing queues, so a terminal that was suspended,
    or a slow link, never gets a storm of old frames.
    """

    def __init__(self) -> None:
        self._newest: Snapshot | None = None
        self._painted: tuple[int, object] | None = None
        self._cancel: Callable[[], None] | None = None

    def connect(self, subscribe: Callable[[Callable[[Snapshot], None]], Callable[[], None]]) -> None:
        """Starts listening."""
        self._cancel = subscribe(self.offer)

    def disconnect(self) -> None:
        """Stops listening."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def offer(self, snapshot: Snapshot) -> None:
        """A newer snapshot; an older one that nobody painted is forgotten."""
        self._newest = snapshot

    @property
    def newest(self) -> Snapshot | None:
        """The last one that was offered."""
        return self._newest

    def take(self, pulse: object) -> Snapshot | None:
        """The snapshot to paint now, or None where neither it nor `pulse` changed since the last time."""
        newest = self._newest
        if newest is None:
            return None
        key = (id(newest), pulse)
        if key == self._painted:
            return None
        self._painted = key
        return newest

    async def newer(self, seconds: float) -> None:
        """Waits until a snapshot comes that is newer than the one now, but no longer than `seconds`."""
        now = self._newest
        end = time.monotonic() + seconds
        # Looked at, not waited for with an event: `offer` may come from another thread.
        while self._newest is now and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def again(self) -> None:
        """Paint at the next chance even if nothing changed."""
        self._painted = None
