"""One wake-up of the process for the bytes of several streams, as network cards do it for packets.

A server writes the tokens of one engine step to its streams one after the other. A client that is woken for each pays
more for waking than for reading, and the last streams of the step wait for that. So where many streams are open and
the last wake-up found the bytes of a few, the next bytes are given 50 µs to gather. No stamp is later by more than
that (and a sleeping process's wake-up, some 50 µs), the stamps of a whole step are earlier, and a token costs a
quarter less. The measured floor (`floor.py`) contains it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sized

GATHER_S = 50e-6
MANY_STREAMS = 32
"""With fewer streams a process, every read is worth its own wake-up."""
FEW_SHARE = 0.25
"""A wake-up that found bytes for more than this share of the streams came late rather than early."""


class Pacing:
    """Counts the reads of a wake-up; `reads` and `armed` are the caller's to look at, on the path of every token."""

    __slots__ = ("_busy", "armed", "reads")

    def __init__(self, busy: Sized) -> None:
        self._busy = busy
        """The streams that wait for bytes."""
        self.armed = False
        self.reads = 0

    def arm(self) -> None:
        """The first read of a wake-up."""
        self.armed = True
        asyncio.get_running_loop().call_soon(self._after_reads)

    def _after_reads(self) -> None:
        """Everything that this wake-up found has been read."""
        reads, self.reads, self.armed = self.reads, 0, False
        streams = len(self._busy)
        if streams >= MANY_STREAMS and reads <= FEW_SHARE * streams:
            time.sleep(GATHER_S)
