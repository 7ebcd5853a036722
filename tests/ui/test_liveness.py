"""The event loop stays free whatever the service does; old frames never queue; errors end nothing."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from dataclasses import replace

import pytest

from ui.fake_service import NOW, FakeService, failed, ready, snapshot, starting
from ui.looks import app_for, comparing, comparison, loading, settle, with_everything
from vtop.contract import ChatEvent
from vtop.load.progress import LoadProgress
from vtop.ui.app import VtopApp
from vtop.ui.calls import Calls, aside
from vtop.ui.canvas import Canvas
from vtop.ui.demo import Demo
from vtop.ui.display import DisplaySettings, over_ssh, terminal_environment
from vtop.ui.pump import Pump
from vtop.ui.screens.compare import CompareScreen
from vtop.ui.screens.load import LoadScreen
from vtop.ui.transitions import WorkWatch, endings


async def test_keys_work_while_every_call_hangs() -> None:
    """A heart that beats each 20 ms never stops for long, and the screens go on."""
    service = FakeService(snapshot(ready(), failed()))
    service.hang = {"open", "start_server", "stop_server", "plan_start", "start_load"}
    app = VtopApp(service, DisplaySettings(paint_hz=4.0), clock=service.clock)
    worst = 0.0
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)

        async def beat() -> None:
            nonlocal worst
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.02)
                worst = max(worst, time.monotonic() - before - 0.02)

        heart = asyncio.create_task(beat())
        for key in ("s", "enter", "x", "y", "l", "e", "escape", "g", "escape"):
            await pilot.press(key)
            await settle(pilot)
        heart.cancel()
    # A blocked call would hold the loop for ever; drawing takes some ten milliseconds.
    assert worst < 2.0


async def test_a_slow_disk_does_not_stop_the_keys() -> None:
    app = app_for("one")
    gate = threading.Event()

    def slow(name: str, last: int = 2000) -> list[str]:
        gate.wait(10)
        return ["late"]

    app.service.log_lines = slow  # type: ignore[method-assign]
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("g")
        await settle(pilot)
        assert "empty so far" in app.screen.query_one("#body", Canvas).lines[0].text
        await pilot.press("escape")
        await settle(pilot)
        assert app.screen.query_one("#servers", Canvas)
        gate.set()


async def test_aside_does_not_keep_the_process() -> None:
    """Its threads are daemons, so Python does not wait for them at the exit."""
    started = threading.Event()
    seen: list[bool] = []

    def work() -> int:
        seen.append(threading.current_thread().daemon)
        started.set()
        return 7

    assert await aside(work) == 7
    assert seen == [True]

    def fails() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await aside(fails)


async def test_an_error_in_a_call_is_handed_over() -> None:
    failures: list[tuple[str, str]] = []
    calls = Calls(lambda error, what: failures.append((str(error), what)))

    async def fails() -> None:
        raise RuntimeError("no")

    await calls.run(fails(), "try")
    assert failures == [("no", "try")]


def test_only_the_newest_snapshot_is_painted() -> None:
    pump = Pump()
    for sequence in range(50):
        pump.offer(snapshot(sequence=sequence))
    taken = pump.take(None)
    assert taken is not None
    assert taken.sequence == 49
    assert pump.take(None) is None
    assert pump.take("another screen") is taken


async def test_unchanged_rows_are_not_sent_again() -> None:
    app = app_for("one")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        canvas = app.screen.query_one("#servers", Canvas)
        sent: list[object] = []
        canvas.refresh = lambda *regions, **_: sent.extend(regions) or canvas  # type: ignore[assignment,func-returns-value]
        service = app.service
        service.publish(replace(snapshot(ready()), sequence=2))  # type: ignore[attr-defined]
        app.tick()
        assert sent == []
        view = ready(engines=(replace(ready().engines[0], generation_tokens_per_s=893.0),))
        service.publish(replace(snapshot(view), sequence=3))  # type: ignore[attr-defined]
        app.tick()
        assert len(sent) == 1


async def test_a_panel_that_cannot_be_drawn_is_told_once() -> None:
    app = app_for("one")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)

        def broken(*_: object) -> None:
            raise ValueError("[/bold] broken")

        app.screen.paint_body = broken  # type: ignore[attr-defined]
        for sequence in (2, 3, 4):
            app.service.publish(snapshot(ready(), sequence=sequence))  # type: ignore[attr-defined]
            app.tick()
            await pilot.pause()
        shown = [notice for notice in app._notifications if "broken" in notice.message]
        assert len(shown) == 1
        assert app.is_running


async def test_old_data_says_how_old_it_is() -> None:
    service = FakeService(snapshot(ready()))
    app = VtopApp(service, clock=service.clock)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        service.clock.advance(12.0)
        app.tick()
        await pilot.pause()
        assert "data 12 s old" in app.screen.query_one("#header", Canvas).lines[0].text


@pytest.mark.parametrize(("compare_state", "told"), [("running", False), ("finished", True)])
async def test_the_starts_of_a_comparison_put_no_notice_over_its_table(compare_state: str, told: bool) -> None:
    service = FakeService(snapshot(starting("a")))
    service.comparison = comparison(compare_state)
    app = VtopApp(service, clock=service.clock)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        service.publish(snapshot(ready("a")))
        app.tick()
        await pilot.pause()
        notices = [notice.message for notice in app._notifications]
        assert any(message.startswith("ready") for message in notices) is told


def test_endings_are_told_once_and_not_at_the_beginning() -> None:
    before, after = snapshot(starting("a"), ready("b")), snapshot(ready("a"), failed("b"))
    assert endings(None, after) == []
    assert [(ending.title, ending.failed) for ending in endings(before, after)] == [("a", False), ("b", True)]
    assert endings(after, after) == []


def test_over_ssh_it_paints_slower_by_itself() -> None:
    ssh = {"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}
    assert over_ssh(ssh)
    assert DisplaySettings().resolved(ssh).paint_hz == 1.0
    assert DisplaySettings().resolved({}).paint_hz == 2.0
    assert DisplaySettings(paint_hz=4.0).resolved(ssh).paint_hz == 4.0
    assert terminal_environment(ssh)["TEXTUAL_ANIMATIONS"] == "none"
    assert terminal_environment(ssh)["TEXTUAL_FPS"] == "15", "held keys repaint less often on a slow link"
    assert "TEXTUAL_FPS" not in terminal_environment(ssh | {"TEXTUAL_FPS": "60"}), "a person's own choice stays"
    assert "TEXTUAL_FPS" not in terminal_environment({}), "the first frame waits for one interval of it"


class ActedService(FakeService):
    """Does at once what the demonstration asks for, so that its course can be seen."""

    async def start_server(self, preset: str, overrides: object = None) -> str:
        await self._called("start_server", preset)
        self.publish(snapshot(starting(preset), sequence=2))
        asyncio.get_running_loop().call_later(0.1, self.publish, snapshot(ready(preset), sequence=3))
        return preset

    async def start_load(self, request: object) -> str:
        await self._called("start_load", request)
        self.load = loading().load
        asyncio.get_running_loop().call_later(0.1, self._finish_load)
        return "run-1"

    def _finish_load(self) -> None:
        assert isinstance(self.load, LoadProgress)
        self.load = replace(self.load, state="finished")

    async def start_compare(self, request: object) -> str:
        await self._called("start_compare", request)
        self.comparison = comparison("running")
        asyncio.get_running_loop().call_later(0.1, self._finish_compare)
        return "compare-1"

    def _finish_compare(self) -> None:
        self.comparison = comparison("finished")


async def test_the_demonstration_plays_to_its_end() -> None:
    service = ActedService(snapshot(gpus=()), simulated=True)
    app = VtopApp(service, DisplaySettings(paint_hz=4.0), clock=service.clock)
    captions: list[str] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        demo = Demo(app, pace_s=0.05)
        seen: list[type] = []

        async def watch() -> None:
            while True:
                if app.view.demo_caption and (not captions or captions[-1] != app.view.demo_caption):
                    captions.append(app.view.demo_caption)
                if not seen or seen[-1] is not type(app.screen):
                    seen.append(type(app.screen))
                await asyncio.sleep(0.01)

        watcher = asyncio.create_task(watch())
        await demo.play()
        watcher.cancel()
        await settle(pilot)
        assert app.view.demo_caption == ""
    assert service.names() == ["start_server", "start_load", "stop_server", "start_compare"]
    assert LoadScreen in seen
    assert CompareScreen in seen
    assert any("1.28x" in caption for caption in captions)


async def test_any_key_takes_the_demonstration_over_and_stops_nothing() -> None:
    service = ActedService(snapshot(gpus=()), simulated=True)
    app = VtopApp(service, DisplaySettings(paint_hz=4.0), clock=service.clock, demo=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        caption = app.screen.query_one("#caption", Canvas)
        text = " ".join(line.text.strip() for line in caption.lines)
        assert "simulated" in text
        assert "any key takes over" in text
        await pilot.press("e")
        await asyncio.sleep(0.4)
        await settle(pilot)
        assert app.view.demo_caption == ""
    assert service.names() == []


async def test_a_stream_that_breaks_off_is_said() -> None:
    service = with_everything(FakeService(snapshot(ready())))
    service.chat_events = [ChatEvent("half an ans")]
    app = VtopApp(service, clock=service.clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for key in ("t", "h", "i", "enter"):
            await pilot.press(key)
            await settle(pilot)
        text = "\n".join(line.text for line in app.screen.query_one("#body", Canvas).lines)
    assert "half an ans" in text
    assert "ended without saying that it was complete" in text


async def test_comparison_follows_its_runs() -> None:
    service = comparing("running")
    app = VtopApp(service, DisplaySettings(paint_hz=4.0), clock=service.clock)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("c")
        await settle(pilot)
        body = app.screen.query_one("#body", Canvas)
        assert "4 of 9 runs" in body.lines[0].text
        assert any("start · warm up · load · stop" in line.text for line in body.lines)
        service.comparison = comparison("finished")
        await settle(pilot)
        text = "\n".join(line.text for line in body.lines)
        assert "no difference seen (could be up to 4 %)" in text
        assert "predicted" in text


def test_the_fake_moment_is_the_clocks() -> None:
    assert FakeService().clock.monotonic() == NOW


async def test_no_size_and_no_step_between_two_sizes_breaks_a_screen() -> None:
    """While a terminal is being resized a panel has for a moment the rows of neither size."""
    service = with_everything(loading("finished"))
    service.comparison = comparison("finished")
    app = VtopApp(service, DisplaySettings(paint_hz=4.0), clock=service.clock)
    sizes = ((80, 24), (160, 45), (40, 10), (100, 28), (1, 1), (60, 16))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for keys in ("", "s", "l", "c", "i", "1"):
            if keys:
                await pilot.press(keys)
                await settle(pilot)
            for width, height in sizes:
                await pilot.resize_terminal(width, height)
                app.pump.again()
                app.tick()
            await settle(pilot)
            while len(app.screen_stack) > 1:
                await pilot.press("escape")
                await settle(pilot)
        told = [f"{notice.title} {notice.message}" for notice in app._notifications]
    assert not [text for text in told if "could not be drawn" in text]


async def test_every_panel_is_drawn_in_any_size() -> None:
    async with app_for("busy").run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for canvas in pilot.app.screen.query(Canvas):
            draw = canvas._draw
            for width, height in itertools.product((1, 2, 3, 8, 40, 120), range(1, 10)):
                if draw is not None:
                    draw(width, height)


@pytest.mark.parametrize("bell", [True, False])
async def test_the_end_of_a_load_test_is_told_wherever_one_looks(bell: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    service = with_everything(loading())
    app = VtopApp(service, DisplaySettings(paint_hz=4.0, bell=bell), clock=service.clock)
    rung: list[None] = []
    monkeypatch.setattr(app, "bell", lambda: rung.append(None))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("r")
        service.load = loading("finished", 2).load
        await settle(pilot)
        await settle(pilot)
        told = [notice.message for notice in app._notifications]
    assert told.count("finished: 200 requests, 2 failed") == 1
    assert len(rung) == (1 if bell else 0)


def test_the_loads_of_a_comparison_are_not_told_one_by_one() -> None:
    watch = WorkWatch()
    running, done = loading("running").load, loading("finished").load
    assert watch.endings(running, comparison("running")) == []
    assert watch.endings(done, comparison("running")) == []
    (ending,) = watch.endings(done, comparison("finished"))
    assert ending.title == "Comparison"
    assert "9 of 9 runs measured" in ending.text
    assert watch.endings(done, comparison("finished")) == []


def test_what_had_ended_before_the_screen_was_opened_is_not_told() -> None:
    assert WorkWatch().endings(loading("finished").load, comparison("finished")) == []
