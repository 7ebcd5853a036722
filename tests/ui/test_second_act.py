"""The demonstration ends with a recording of a real vLLM: it plays by itself, can be taken over, and can be left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ui.fake_service import FakeService, ready, snapshot
from ui.looks import loading, settle
from vtop.commands.demo import recorded_account
from vtop.commands.replay import recording
from vtop.service.replaying import ReplayService
from vtop.ui.app import VtopApp
from vtop.ui.display import DisplaySettings
from vtop.ui.recorded_act import RecordedAct
from vtop.ui.screens.dashboard import Dashboard
from vtop.ui.screens.help import HelpScreen

if TYPE_CHECKING:
    from textual.pilot import Pilot

FAST = 20.0


def app_with_recording(service: FakeService, speed: float = 1.0) -> VtopApp:
    return VtopApp(
        service,
        DisplaySettings(paint_hz=4.0),
        clock=service.clock,
        recording=lambda: ReplayService(recording("demo"), speed),
    )


async def reached(pilot: Pilot[int], done: Callable[[], bool], within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end, "it never came to that"
        await pilot.pause(0.02)


async def test_the_second_act_follows_the_recording_to_its_end_and_says_that_it_is_real() -> None:
    app = app_with_recording(FakeService(snapshot(ready())), FAST)
    captions: list[str] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)

        async def watch() -> None:
            while True:
                if app.view.demo_caption and (not captions or captions[-1] != app.view.demo_caption):
                    captions.append(app.view.demo_caption)
                await asyncio.sleep(0.005)

        watcher = asyncio.create_task(watch())
        await RecordedAct(app, pace_s=0.05).play()
        watcher.cancel()
        assert app.recording_shown
        assert app.snapshot.replayed
        app.tick()
        await pilot.pause()
        assert "REPLAY" in app.screen.query_one("#header").lines[0].text  # type: ignore[attr-defined]
    told = " ".join(captions)
    for words in ("RECORDING of a real vLLM", "phases", "tok/s, TTFT mean", "ends the recording"):
        assert words in told, words
    assert app.left_running == (("baseline", "http://127.0.0.1:8000"),), "what runs here is told, not what is recorded"


async def test_a_key_takes_the_recording_over_and_another_leaves_it() -> None:
    service = FakeService(snapshot(ready()), simulated=True)
    app = app_with_recording(service)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        app.demo = act = RecordedAct(app, pace_s=0.05)
        playing = asyncio.create_task(act.play())
        await reached(pilot, lambda: app.recording_shown)
        await pilot.press("question_mark")
        await asyncio.wait_for(playing, 30)
        await reached(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert app.view.demo_caption == ""
        assert app.recording_shown, "a key leaves it where it is"
        await pilot.press("v")
        await reached(pilot, lambda: isinstance(app.screen, Dashboard) and not app.recording_shown)
        await settle(pilot)
        assert app.service is service
        assert not app.view.readonly
        assert "v Recording" in app.screen.query_one("#footer").lines[0].text  # type: ignore[attr-defined]
    assert service.names() == []


async def test_the_recording_does_not_hide_a_load_test_that_runs() -> None:
    app = app_with_recording(loading())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("v")
        await settle(pilot)
        assert not app.recording_shown
        assert any("a load test" in notice.message for notice in app._notifications)


async def test_without_the_demo_there_is_no_recording() -> None:
    service = FakeService(snapshot(ready()))
    app = VtopApp(service, DisplaySettings(paint_hz=4.0), clock=service.clock)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert "Recording" not in app.screen.query_one("#footer").lines[0].text  # type: ignore[attr-defined]
        await pilot.press("v")
        await settle(pilot)
        assert any("vtop replay demo" in notice.message for notice in app._notifications)


def test_the_account_of_the_recording_is_what_its_server_said() -> None:
    told = recorded_account(ReplayService(recording("demo")))
    assert "RECORDING of a real vLLM, not simulated" in told
    assert "vLLM 0.32.0+cpu with tiny: up to 1,631 tok/s" in told
    assert "ready 0:22 after" in told
