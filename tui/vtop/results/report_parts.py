"""Parts that reports of runs and of comparisons share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from vtop import units
from vtop.results.blocks import Block, Heading, Table, Text


def when(wall_s: float) -> str:
    """Local time to the minute, or a dash."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(wall_s)) if wall_s else units.DASH


SIMULATED = Text(
    "SIMULATED: these numbers come from a simulated server and GPU (bytes and FLOPs over the card's peaks), "
    "not from hardware.",
    loud=True,
)  # fmt: skip


def definitions(pairs: Sequence[tuple[str, str]]) -> Iterator[Block]:
    """What the numbers of a report mean."""
    yield Heading("What the numbers mean")
    yield Table(("number", "meaning"), tuple(pairs), wide=(1,))


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as milliseconds; unknown stays unknown."""
    return None if seconds is None else seconds * 1000
