"""The application at work with keys to press, for tests of what keys do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ui.fake_service import FakeService
from ui.looks import settle
from vtop.ui.app import VtopApp
from vtop.ui.display import DisplaySettings

if TYPE_CHECKING:
    from textual.pilot import Pilot

Press = Callable[..., Awaitable[None]]


@asynccontextmanager
async def running(
    service: FakeService,
    settings: DisplaySettings | None = None,
    size: tuple[int, int] = (120, 40),
    *,
    notifications: bool = False,
) -> AsyncIterator[tuple[VtopApp, Press, Pilot[int]]]:
    """The application at work, and a way to press keys that waits until they have shown their effect."""
    app = VtopApp(service, settings or DisplaySettings(paint_hz=4.0), clock=service.clock)
    async with app.run_test(size=size, notifications=notifications) as pilot:
        await settle(pilot)

        async def press(*keys: str) -> None:
            for key in keys:
                await pilot.press(key)
                await settle(pilot)

        yield app, press, pilot


def notices(app: VtopApp) -> str:
    """All notices so far, title and text."""
    return "\n".join(f"{notice.title} {notice.message}" for notice in app._notifications)
