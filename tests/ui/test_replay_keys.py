"""A recording on the screen: it can be stopped and moved through, and nothing can be started."""

from __future__ import annotations

from pathlib import Path

import pytest

import vtop
from ui.looks import settle
from ui.pressing import notices
from vtop.service.replaying import ReplayService
from vtop.ui.app import VtopApp
from vtop.ui.listing import Picker

RECORDING = next((Path(vtop.__file__).parent / "recordings").glob("*.rec.gz"))


async def test_a_recording_is_paused_and_moved_through() -> None:
    service = ReplayService(RECORDING)
    app = VtopApp(service)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press("p")
        assert service.playback.paused
        began = service.playback.position_s
        await pilot.press("greater_than_sign")
        assert service.playback.position_s == pytest.approx(min(service.playback.duration_s, began + 10))
        await pilot.press("less_than_sign")
        assert service.playback.position_s == pytest.approx(max(0.0, min(service.playback.duration_s, began + 10) - 10))
        await pilot.press("p")
        assert not service.playback.paused
        assert service.snapshot().replayed


async def test_nothing_can_be_started_from_a_recording() -> None:
    app = VtopApp(ReplayService(RECORDING))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        before = app.screen
        await pilot.press("s")
        assert app.screen is before


async def test_the_window_of_a_recording_is_not_said_to_change() -> None:
    app = VtopApp(ReplayService(RECORDING))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        before = app.view.window_s
        await pilot.press("w")
        assert app.view.window_s == before
        assert "a recording keeps the window that it was made with: 10 s" in notices(app)


async def test_what_a_recording_refuses_is_not_blamed_on_an_option() -> None:
    app = VtopApp(ReplayService(RECORDING))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press("c")
        assert "Compare: not possible in a recording" in notices(app)


async def test_the_list_of_runs_of_a_recording_names_no_key_that_does_nothing() -> None:
    app = VtopApp(ReplayService(RECORDING))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press("r")
        await settle(pilot)
        rows = app.screen.query_one("#list", Picker).lines
        assert "A recording holds no runs." in rows[0].text
