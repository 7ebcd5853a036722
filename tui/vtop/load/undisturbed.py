"""What keeps a process that measures from being late: no garbage collection, and the processor when bytes arrive."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator


@contextlib.contextmanager
def undisturbed() -> Iterator[bool]:
    """For the time of a measurement; yields whether the system grants real-time scheduling.

    A server that computes on every core of the same machine keeps a client waiting for its turn, tens of milliseconds
    with two cores, and every stamp is late by that. A client on another machine does not wait, so the client takes the
    processor first here too, for the 15 µs that a token costs it. That needs the right to (root, CAP_SYS_NICE, or
    RLIMIT_RTPRIO); without it, and for a process that somebody made nice on purpose, nothing is changed.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    granted = _take_turns_first()
    try:
        yield granted
    finally:
        if granted:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        gc.enable()
        gc.unfreeze()


def _take_turns_first() -> bool:
    if not hasattr(os, "sched_setscheduler") or os.getpriority(os.PRIO_PROCESS, 0) > 0:
        return False
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    try:
        # The lowest real-time priority; children do not inherit it.
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True
