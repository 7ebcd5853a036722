from __future__ import annotations

import asyncio

import pytest

from vtop.load import pacing
from vtop.load.pacing import GATHER_S, MANY_STREAMS, Pacing


async def pauses_after(monkeypatch: pytest.MonkeyPatch, *, streams: int, reads: int) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(pacing.time, "sleep", slept.append)
    pace = Pacing(range(streams))
    for _ in range(reads):
        pace.reads += 1
        if not pace.armed:
            pace.arm()
    assert not slept
    await asyncio.sleep(0)
    assert (pace.reads, pace.armed) == (0, False)
    return slept


async def test_the_first_bytes_of_a_step_let_the_others_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await pauses_after(monkeypatch, streams=MANY_STREAMS, reads=1) == [GATHER_S]


async def test_few_streams_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await pauses_after(monkeypatch, streams=MANY_STREAMS - 1, reads=1) == []


async def test_a_client_that_is_late_already_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await pauses_after(monkeypatch, streams=64, reads=17) == []
    assert await pauses_after(monkeypatch, streams=64, reads=16) == [GATHER_S]


def test_the_wait_is_short_beside_what_is_measured() -> None:
    """A tenth of the least TTFT error that is promised, 0.5 ms."""
    assert GATHER_S <= 50e-6
