"""Screens that were left are gone from memory, with the rows that were drawn on them."""

from __future__ import annotations

import gc

from textual._styles_cache import StylesCache

from ui.fake_service import FakeService, ready, snapshot
from ui.looks import settle, with_everything
from vtop.ui.app import VtopApp


def _drawn() -> int:
    gc.collect()
    return sum(isinstance(thing, StylesCache) for thing in gc.get_objects())


async def test_nothing_is_kept_of_screens_that_were_left() -> None:
    """Otherwise a day of looking around costs 85 KB a visit."""
    service = with_everything(FakeService(snapshot(ready())))
    app = VtopApp(service, clock=service.clock)
    async with app.run_test(size=(120, 40)) as pilot:

        async def look_around() -> None:
            for key in ("e", "g", "s", "r", "question_mark"):
                for press in (key, "escape"):
                    await pilot.press(press)
                    await settle(pilot)

        await settle(pilot)
        await look_around()
        before = _drawn()
        for _ in range(3):
            await look_around()
        assert _drawn() <= before + 4
