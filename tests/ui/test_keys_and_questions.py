"""What the keys do: questions before what destroys, calls that go out, and what `--readonly` refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from textual.events import Key, Paste, Resize
from textual.geometry import Size
from textual.widgets import Input
from textual.widgets._toast import Toast

from ui.fake_service import PRESETS, FakeService, failed, foreign, ready, snapshot, starting
from ui.looks import comparing, loading, settle, with_everything
from ui.pressing import notices, running
from vtop.errors import VtopError
from vtop.load.progress import LoadRequest
from vtop.presets import Preset, ServerSpec
from vtop.servers.status import StopReport
from vtop.ui.actions import ACTIONS, BY_ID, Situation, can_act, keymap_problems
from vtop.ui.app import VtopApp
from vtop.ui.display import DisplaySettings
from vtop.ui.screens.choose_load import ChooseLoadScreen
from vtop.ui.screens.confirm import ConfirmScreen
from vtop.ui.screens.dashboard import Dashboard
from vtop.ui.screens.explain import ExplainScreen
from vtop.ui.screens.help import HelpScreen
from vtop.ui.screens.load import LoadScreen
from vtop.ui.screens.logs import LogsScreen
from vtop.ui.screens.start import StartScreen

if TYPE_CHECKING:
    pass


async def test_stop_asks_and_escape_leaves_the_server_running() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, _):
        await press("x")
        assert isinstance(app.screen, ConfirmScreen)
        assert "19 requests are under way" in app.screen.detail
        await press("escape")
        assert isinstance(app.screen, Dashboard)
    assert "stop_server" not in service.names()


async def test_enter_on_the_question_takes_the_harmless_answer() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, _):
        await press("x", "enter")
        assert isinstance(app.screen, Dashboard)
    assert "stop_server" not in service.names()


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (120, 40)])
async def test_a_notice_never_lies_over_the_answers_of_a_question(size: tuple[int, int]) -> None:
    service = FakeService(snapshot(ready()))
    async with running(service, size=size, notifications=True) as (app, press, pilot):
        app.report(VtopError("the load test failed", "look at the log of the server"), "load test")
        await press("x")
        await settle(pilot)
        (notice,) = app.screen.query(Toast)
        assert notice.region.area > 0
        for answer in ("#yes", "#no"):
            assert not app.screen.query_one(answer).region.overlaps(notice.region), answer


async def test_a_badge_of_the_header_is_black_on_yellow_in_a_terminals_own_colours() -> None:
    """It took the terminal's usual text colour, which is white on yellow in most."""
    service = FakeService(snapshot(ready(), simulated=True), simulated=True)
    async with running(service, DisplaySettings(theme="ansi-dark", paint_hz=4.0)) as (app, _, _):
        strip = app.screen.query_one("#header").render_line(0)  # type: ignore[attr-defined]
        (style,) = [segment.style for segment in strip if segment.text == " SIMULATED "]
        assert style is not None and style.color is not None and style.bgcolor is not None
        assert (style.color.number, style.bgcolor.number) == (0, 3)


async def test_an_answer_that_is_typed_twice_counts_once() -> None:
    """Keys typed faster than the question goes away ended the program."""
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, pilot):
        await press("x")
        for key in ("y", "n", "enter", "enter", "y"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await settle(pilot)
        assert app.is_running
    assert service.names() == ["stop_server"]


async def test_y_stops_and_the_report_is_shown() -> None:
    service = FakeService(snapshot(ready()))
    service.stop_report = StopReport("baseline", False, 31.0, (), ("process 4250 still holds 12 GiB of GPU 0",))
    async with running(service) as (app, press, _):
        await press("x", "y")
        assert ("stop_server", "baseline") in service.calls
        assert "process 4250 still holds 12 GiB" in notices(app)


async def test_a_foreign_server_is_never_stopped() -> None:
    service = FakeService(snapshot(foreign()))
    async with running(service) as (app, press, _):
        await press("x")
        assert isinstance(app.screen, Dashboard)
        assert "did not start this server" in notices(app)
    assert service.names() == []


async def test_readonly_refuses_every_key_that_changes_something() -> None:
    service = with_everything(FakeService(snapshot(ready(), failed()), readonly=True))
    async with running(service) as (app, press, _):
        for action in ACTIONS:
            if action.mutates:
                await press(action.keys.split(",")[0])
                assert isinstance(app.screen, Dashboard), action.id
        assert "not possible with --readonly" in notices(app)
        await press("e")
        assert isinstance(app.screen, ExplainScreen)
    assert service.names() == []


async def test_start_shows_the_plan_and_enter_starts() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, _):
        await press("s")
        assert isinstance(app.screen, StartScreen)
        text = "\n".join(line.text for line in app.screen.query_one("#detail").lines)  # type: ignore[attr-defined]
        assert "--speculative-config" in text
        await press("down", "down", "enter")
        assert ("start_server", ("spec-ngram", {})) in service.calls
        assert isinstance(app.screen, Dashboard)
        assert app.view.server == "spec-ngram"


@pytest.mark.parametrize(
    ("gpu", "simulated", "expected"),
    [(True, False, "baseline"), (False, False, "cpu-small"), (False, True, "baseline")],
    ids=["gpu", "no-gpu", "simulated"],
)
async def test_the_list_of_presets_opens_on_what_this_machine_can_start(
    gpu: bool, simulated: bool, expected: str
) -> None:
    service = FakeService(snapshot(gpus=None if gpu else ()), simulated=simulated)
    service.preset_list = (
        Preset(name="cpu-small", title="A small model on a CPU", optimization="none", source="x", summary="",
               server=ServerSpec(model="m")),
        *PRESETS,
    )  # fmt: skip
    async with running(service) as (_, press, _pilot):
        await press("s", "enter")
    assert [argument[0] for name, argument in service.calls if name == "start_server"] == [expected]


@pytest.mark.parametrize("size", [(80, 24), (40, 10)], ids=["80x24", "40x10"])
async def test_every_footer_says_how_to_leave(size: tuple[int, int]) -> None:
    service = with_everything(loading("finished"))
    async with running(service, size=size) as (app, press, _):
        for keys in (
            "s",
            "r",
            "c",
            "L",
            "i",
            "e",
            "g",
            "question_mark",
            "l",
            "r,enter",
            "r,down,enter",
            "t",
            "g,slash",
        ):
            await press(*keys.split(","))
            footer = app.screen.query_one("#footer").lines[0].text  # type: ignore[attr-defined]
            assert "esc Back" in footer, keys
            assert " Quit" in footer, keys
            assert ("^c Quit" in footer) == keys.endswith(("t", "slash")), "while typing a letter is text"
            while len(app.screen_stack) > 1:
                await press("escape")


async def test_a_preset_that_cannot_start_is_not_started() -> None:
    from ui.looks import with_problem

    service = with_problem()
    async with running(service) as (app, press, _):
        await press("s", "end", "up", "enter")
        assert isinstance(app.screen, StartScreen)
        assert "vLLM 0.6 has no FP8" in notices(app)
    assert "start_server" not in service.names()


async def test_warnings_are_asked_about_before_a_start() -> None:
    from ui.looks import with_problem

    service = with_problem()
    service.plans["prefix-caching"] = service.plans["baseline"]
    async with running(service) as (app, press, _):
        await press("s", "down", "enter")
        assert isinstance(app.screen, ConfirmScreen)
        assert "port 8000 is taken" in app.screen.detail
        await press("y")
    assert ("start_server", ("prefix-caching", {})) in service.calls


async def test_a_preset_that_runs_is_not_started_twice() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, _):
        await press("s", "enter")
        assert isinstance(app.screen, StartScreen)
        assert "baseline is there already: x on the dashboard stops it" in notices(app)
    assert "start_server" not in service.names()


async def test_l_runs_the_load_test_on_the_selected_server() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, _):
        await press("l")
        assert isinstance(app.screen, LoadScreen)
    (request,) = [argument for name, argument in service.calls if name == "start_load"]
    assert (request.server, request.url, request.model) == ("baseline", "http://127.0.0.1:8000", "qwen2.5-7b")
    assert request.workload == LoadRequest().workload


async def test_load_on_somebody_elses_server_is_asked_about() -> None:
    service = FakeService(snapshot(foreign()))
    async with running(service) as (app, press, _):
        await press("l")
        assert isinstance(app.screen, ConfirmScreen)
        await press("n")
    assert "start_load" not in service.names()


async def test_x_on_the_load_screen_stops_the_test_and_not_the_server() -> None:
    service = loading()
    async with running(service) as (_, press, _pilot):
        await press("l", "x")
    assert service.names() == ["stop_load"]


async def test_chosen_workload_is_kept_for_the_next_l() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, _):
        await press("L")
        assert isinstance(app.screen, ChooseLoadScreen)
        await press("right", "down", "right", "right", "enter", "escape", "l")
    requests = [argument for name, argument in service.calls if name == "start_load"]
    assert [(request.workload, request.concurrency) for request in requests] == [("chat", 2), ("chat", 2)]


async def test_a_load_shape_is_chosen_among_the_workloads_and_its_values_go_with_it() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, _):
        await press("L")
        assert isinstance(app.screen, ChooseLoadScreen)
        await press(*["right"] * 8, "enter", "escape", "L", *["left"] * 8, "enter")
    requests = [argument for name, argument in service.calls if name == "start_load"]
    assert [(r.workload, r.shape, r.arrival, r.requests) for r in requests] == [
        ("chat", "burst", "burst", 64),
        ("demo", "", None, None),
    ]


async def test_quit_while_a_load_test_runs_asks() -> None:
    service = loading()
    async with running(service) as (app, press, _):
        await press("q")
        assert isinstance(app.screen, ConfirmScreen)
        await press("n")
        assert app.is_running
        await press("q", "y")
        assert app.return_code == 0


async def test_quitting_stops_the_load_test_first_and_a_second_q_does_not_wait() -> None:
    service = loading()
    service.hang = {"stop_load"}
    async with running(service) as (app, press, _):
        await press("q", "y")
        assert service.names() == ["stop_load"]
        assert app.is_running
        await press("q")
        assert app.return_code == 0


async def test_the_load_test_of_a_comparison_is_not_taken_for_one_alone() -> None:
    service = comparing("running")
    service.load = loading().load
    async with running(service) as (app, press, _):
        await press("q")
        assert isinstance(app.screen, ConfirmScreen)
        assert "comparison" in app.screen.question
        await press("y")
        assert service.names() == ["stop_compare"]


async def test_quit_says_which_servers_live_on() -> None:
    service = FakeService(snapshot(ready(), failed(), foreign(), starting()))
    async with running(service) as (app, press, _):
        await press("q")
    assert app.left_running == (("baseline", "http://127.0.0.1:8000"), ("spec-ngram", "http://127.0.0.1:8001"))
    assert service.names() == []


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_every_quit_key_quits(key: str) -> None:
    service = FakeService()
    async with running(service) as (app, press, _):
        await press(key)
        assert app.return_code == 0


async def test_what_is_typed_after_q_opens_nothing() -> None:
    """A screen that opens while the others are taken down ended in a traceback on the terminal."""
    service = with_everything(FakeService(snapshot(ready())))
    app = VtopApp(service, DisplaySettings(paint_hz=4.0), clock=service.clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        opened: list[object] = []
        app.open_page = opened.append  # type: ignore[method-assign]
        for name in ("quit", "start", "explain", "runs", "quit"):
            app.act(name)
        await pilot.pause()
    assert opened == []
    assert app.return_code == 0


async def test_a_remedy_is_shown_before_it_is_applied() -> None:
    service = FakeService(snapshot(failed()))
    async with running(service) as (app, press, _):
        await press("f")
        assert isinstance(app.screen, ConfirmScreen)
        assert "max_model_len = 20960" in app.screen.detail
        await press("y")
    assert ("start_again", (snapshot(failed()).servers[0].status.name, {"max_model_len": "20960"})) in service.calls


async def test_forgetting_needs_a_dead_server_and_a_yes() -> None:
    service = FakeService(snapshot(ready(), failed()))
    async with running(service) as (_, press, _pilot):
        await press("X")
        assert service.names() == []
        await press("tab", "X", "y")
    assert service.names() == ["forget_server"]


async def test_errors_of_the_service_are_shown_and_end_nothing() -> None:
    service = FakeService(snapshot(ready()))
    service.errors["start_load"] = VtopError("model [/bold] is gone", "start it again")
    service.errors["stop_server"] = RuntimeError("a bug")
    async with running(service) as (app, press, _):
        await press("l")
        assert "model [/bold] is gone\nstart it again" in notices(app)
        await press("x", "y")
        assert "RuntimeError: a bug" in notices(app)
        assert app.is_running


async def test_the_selected_server_follows_through_the_screens() -> None:
    service = with_everything(FakeService(snapshot(ready(), failed())))
    async with running(service) as (app, press, _):
        await press("tab", "g")
        assert isinstance(app.screen, LogsScreen)
        assert app.screen._name == "awq"
        await press("escape", "e")
        text = "\n".join(line.text for line in app.screen.query_one("#body").lines)  # type: ignore[attr-defined]
        assert "kv" in text.lower()
        assert "20,960" in text


async def test_screens_are_never_stacked_twice() -> None:
    service = with_everything(FakeService(snapshot(ready())))
    async with running(service) as (app, press, _):
        await press("e", "question_mark", "e", "question_mark", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        await press("escape", "escape", "escape")
        assert isinstance(app.screen, Dashboard)


async def test_a_click_on_the_footer_does_what_the_key_does() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, _, pilot):
        start, _end, action = next(place for place in app.screen._places if place[2] == "start")  # type: ignore[attr-defined]
        assert action == "start"
        await pilot.click("#footer", offset=(start + 1, 0))
        await settle(pilot)
        assert isinstance(app.screen, StartScreen)


async def test_a_click_selects_a_server() -> None:
    service = FakeService(snapshot(ready(), failed()))
    async with running(service) as (app, _, pilot):
        await pilot.click("#servers", offset=(5, 2))
        await settle(pilot)
        assert app.view.server == "awq"


async def test_own_keys_replace_the_default_ones() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service, DisplaySettings(keys={"load": "f5", "nonsense": "f6"})) as (app, press, _):
        assert "nonsense" in notices(app)
        await press("l")
        assert "start_load" not in service.names()
        await press("f5")
        assert "start_load" in service.names()
        footer = app.screen_stack[0].query_one("#footer").lines[0].text  # type: ignore[attr-defined]
        assert "f5 Load test" in footer


def test_no_key_has_two_meanings() -> None:
    assert keymap_problems({}) == []


def test_every_action_can_be_done() -> None:
    """The table and the methods agree."""
    from vtop.ui.deeds import Deeds

    own = {"edit", "search", "search-next", "search-back", "follow", "export", "delete", "undo", "mark"}
    for action in ACTIONS:
        assert action.id in own or hasattr(Deeds, "do_" + action.id.replace("-", "_")), action.id


def test_readonly_leaves_only_what_looks() -> None:
    now = Situation(server=ready(), servers=1, readonly=True)
    assert not can_act(BY_ID["stop"], now)
    assert can_act(BY_ID["explain"], now)


async def test_typing_in_chat_is_text_and_escape_still_leaves() -> None:
    service = with_everything(FakeService(snapshot(ready())))
    async with running(service) as (app, press, _):
        await press("t", *"quit x", "enter")
        assert ("chat", ("baseline", "quit x")) in service.calls
        text = "\n".join(line.text for line in app.screen.query_one("#body").lines)  # type: ignore[attr-defined]
        assert "TTFT 81.0 ms" in text
        assert "13 out" in text
        await press("escape")
        assert isinstance(app.screen, Dashboard)


async def test_pause_stops_painting_and_not_the_keys() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, _):
        await press("p")
        assert "PAUSED" in app.screen.query_one("#header").lines[0].text  # type: ignore[attr-defined]
        service.publish(snapshot(ready("later"), sequence=2))
        app.tick()
        assert "later" not in "".join(line.text for line in app.screen.query_one("#servers").lines)  # type: ignore[attr-defined]
        await press("p")
        assert "later" in "".join(line.text for line in app.screen.query_one("#servers").lines)  # type: ignore[attr-defined]


async def test_window_goes_to_the_service() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (_, press, _pilot):
        await press("w")
    assert ("set_window", 30.0) in service.calls


async def test_a_prompt_of_several_lines_is_pasted_whole() -> None:
    """Only its first line was kept and sent."""
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, pilot):
        await press("t")
        line = app.screen.query_one("#prompt", Input)
        line.post_message(Paste("first line\nsecond line\r\nthird"))
        await settle(pilot)
        assert line.value == "first line second line third"


@pytest.mark.parametrize(
    ("now", "key", "then"), [(10.0, "plus", 10.0), (1.5, "plus", 2.0), (1.5, "minus", 1.0), (0.1, "minus", 0.1)]
)
async def test_plus_never_paints_less_often(now: float, key: str, then: float) -> None:
    """From a rate of one's own settings it went to the nearest of the list: from 10 a second to 4."""
    async with running(FakeService(snapshot(ready())), DisplaySettings(paint_hz=now)) as (app, press, _):
        await press(key)
        assert app.view.paint_hz == then


async def test_only_a_terminal_that_comes_back_in_its_size_is_painted_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For another size Textual paints by itself; a second time would cost a slow link a whole screen at each step."""
    async with running(FakeService(snapshot(ready())), size=(80, 24)) as (app, _, pilot):
        painted: list[bool] = []
        monkeypatch.setattr(app.screen, "refresh", lambda *_, **__: painted.append(True))
        for width, again in ((100, False), (100, True), (80, False)):
            painted.clear()
            await app.on_event(Resize(Size(width, 24), Size(width, 24)))
            assert bool(painted) is again, width
        monkeypatch.undo()
        await settle(pilot)
