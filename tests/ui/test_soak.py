"""Half an hour of painting in a row: nothing grows."""

from __future__ import annotations

import asyncio
import gc
import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ui.fake_service import FakeService, engine, gpu, ready, snapshot
from ui.looks import settle, with_everything
from vtop.telemetry.snapshot import Bandwidth
from vtop.ui.app import VtopApp
from vtop.ui.display import DisplaySettings

PAINTS = 1800
"""One a second for half an hour."""


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_half_an_hour_of_paints_grows_nothing() -> None:
    """Memory, tasks and open files after 1,800 snapshots and a walk through the screens are those of the beginning."""
    service = with_everything(FakeService(snapshot(ready())))
    app = VtopApp(service, DisplaySettings(paint_hz=4.0), clock=service.clock)
    process = psutil.Process(os.getpid())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)

        async def paint(first: int, count: int) -> None:
            for number in range(first, first + count):
                service.clock.advance(1.0)
                numbers = engine(generation_tokens_per_s=800.0 + number % 97, running=float(number % 17))
                card = gpu(bandwidth=Bandwidth("gpm", 40.0 + number % 31, 1.5e12, 3.35e12))
                made = snapshot(ready(engines=(numbers,)), gpus=[card], sequence=number)
                service.publish(replace(made, at_s=service.clock.monotonic()))
                app.tick()
                await pilot.pause()
                if number % 100 == 0:
                    for key in ("e", "escape", "g", "escape", "s", "escape", "question_mark", "escape"):
                        await pilot.press(key)
                        await settle(pilot)

        def state() -> tuple[int, int, int]:
            gc.collect()
            return process.memory_info().rss, len(asyncio.all_tasks()), len(list(Path("/proc/self/fd").iterdir()))

        await paint(2, PAINTS // 3)
        before = state()
        await paint(2 + PAINTS // 3, 2 * PAINTS // 3)
        after = state()
    assert after[0] - before[0] < 12 * 2**20
    assert after[1] <= before[1] + 2
    assert after[2] <= before[2] + 2
