"""Saved runs, comparisons, experiments and the palette: what their keys do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ui.fake_service import FakeService, failed, ready, snapshot
from ui.looks import comparing, comparison, settle, with_everything
from ui.pressing import notices, running
from vtop.presets import Preset, ServerSpec
from vtop.ui.listing import Picker
from vtop.ui.screens.compare import CompareScreen
from vtop.ui.screens.comparison import ComparisonScreen
from vtop.ui.screens.confirm import ConfirmScreen
from vtop.ui.screens.experiments import ExperimentsScreen
from vtop.ui.screens.result import ResultScreen
from vtop.ui.screens.runs import RunsScreen

if TYPE_CHECKING:
    pass


async def test_runs_open_export_delete_and_come_back() -> None:
    service = with_everything(FakeService(snapshot(ready())))
    async with running(service) as (app, press, _):
        await press("r")
        assert isinstance(app.screen, RunsScreen)
        await press("u")
        assert "restore_run" not in service.names()
        await press("D")
        assert ("delete_run", "r4") in service.calls
        assert "deleted r4; u brings it back" in notices(app)
        assert "u Undo" in app.screen.query_one("#footer").lines[0].text  # type: ignore[attr-defined]
        await press("u")
        assert ("restore_run", "r4") in service.calls
        assert [run.run_id for run in service.run_list].count("r4") == 1
        await press("D")
        await press("enter")
        assert isinstance(app.screen, ResultScreen)
        await press("o")
        assert "/runs/r2/report.html" in notices(app)


async def test_a_deleted_run_comes_back_after_the_list_was_left() -> None:
    service = with_everything(FakeService(snapshot(ready())))
    async with running(service) as (app, press, _):
        await press("r", "D", "escape", "r")
        assert "u Undo" in app.screen.query_one("#footer").lines[0].text  # type: ignore[attr-defined]
        await press("u")
        assert ("restore_run", "r4") in service.calls


async def test_after_a_deletion_the_neighbour_is_chosen() -> None:
    """It was the first of the list, so that a second `D` deleted the newest run."""
    service = with_everything(FakeService(snapshot(ready())))
    names = [run.run_id for run in service.run_list]
    async with running(service) as (app, press, _):
        await press("r", "down", "D")
        assert app.screen.query_one("#list", Picker).chosen == names[2]
        await press("end", "D")
        assert app.screen.query_one("#list", Picker).chosen == service.run_list[-1].run_id


async def test_two_marked_runs_are_laid_side_by_side() -> None:
    service = with_everything(FakeService(snapshot(ready())))
    async with running(service) as (app, press, _):
        await press("r", "space", "down", "space", "enter")
        text = "\n".join(line.text for line in app.screen.query_one("#body").lines)  # type: ignore[attr-defined]
        assert "second / first" in text
        assert "1.00x" in text
        assert "not a verdict" in text


async def test_a_saved_comparison_opens_as_its_table() -> None:
    service = with_everything(FakeService(snapshot(ready())))
    async with running(service) as (app, press, _):
        await press("r", "down", "enter")
        assert isinstance(app.screen, ComparisonScreen)
        text = "\n".join(line.text for line in app.screen.query_one("#body").lines)  # type: ignore[attr-defined]
        assert "prefix-caching" in text and "1.28x" in text and "1.24–1.33" in text
        await press("o")
        assert "/runs/r3/report.csv" in notices(app)
        await press("enter")
    assert "resume_compare" not in service.names()


async def test_a_comparison_that_was_cut_can_be_gone_on_with() -> None:
    service = with_everything(FakeService(snapshot(ready())))
    service.saved_comparisons["r3"] = replace(comparison("cancelled"), run_id="r3")
    async with running(service) as (app, press, _):
        await press("r", "down", "enter")
        assert "enter Go on with it" in app.screen.query_one("#footer").lines[0].text  # type: ignore[attr-defined]
        await press("enter")
        assert isinstance(app.screen, CompareScreen)
    assert ("resume_compare", "r3") in service.calls


async def test_readonly_does_not_offer_to_go_on_with_a_comparison() -> None:
    service = with_everything(FakeService(snapshot(ready()), readonly=True))
    service.saved_comparisons["r3"] = replace(comparison("cancelled"), run_id="r3")
    async with running(service) as (app, press, _):
        await press("r", "down", "enter")
        assert "Go on with it" not in app.screen.query_one("#footer").lines[0].text  # type: ignore[attr-defined]
        await press("enter")
        assert "it cannot be gone on with: not possible with --readonly" in notices(app)
    assert "resume_compare" not in service.names()


async def test_a_run_that_cannot_be_read_says_so_on_its_screen() -> None:
    service = with_everything(FakeService(snapshot(ready())))
    service.saved_comparisons.clear()
    async with running(service) as (app, press, _):
        await press("r", "down", "enter")
        text = "\n".join(line.text for line in app.screen.query_one("#body").lines)  # type: ignore[attr-defined]
        assert "there is no run r3" in text


async def test_a_comparison_is_not_laid_beside_a_load_test() -> None:
    service = with_everything(FakeService(snapshot(ready())))
    async with running(service) as (app, press, _):
        await press("r", "space", "space", "enter")
        assert isinstance(app.screen, RunsScreen)
        assert "a comparison is a table of its own" in notices(app)


async def test_a_comparison_is_planned_then_started() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, _):
        await press("c")
        assert isinstance(app.screen, CompareScreen)
        await press("enter")
        assert "pick two presets" in notices(app)
        await press("space", "down", "space")
        text = "\n".join(line.text for line in app.screen.query_one("#plan").lines)  # type: ignore[attr-defined]
        assert "6 runs under the chat load, about" in text
        await press("enter")
    (request,) = [argument for name, argument in service.calls if name == "start_compare"]
    assert request.presets == ("baseline", "prefix-caching")
    assert request.repeats == 3


async def test_stopping_a_comparison_is_asked_about() -> None:
    service = comparing("running")
    async with running(service) as (_, press, _pilot):
        await press("c", "x", "n")
        assert "stop_compare" not in service.names()
        await press("x", "y")
    assert service.names() == ["stop_compare"]


async def test_palette_starts_and_stops_by_name() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, pilot):
        await press("ctrl+p", *"start fp8")
        await pilot.pause(0.3)
        await press("enter")
        await settle(pilot)
        assert ("start_server", ("fp8", {})) in service.calls
        await press("ctrl+p", *"stop baseline")
        await pilot.pause(0.3)
        await press("enter")
        await settle(pilot)
        assert isinstance(app.screen, ConfirmScreen)


async def test_names_in_the_palette_are_never_markup() -> None:
    service = FakeService(snapshot(ready("[/bold] x"), failed()))
    service.preset_list = (
        Preset(name="odd", title="[/bold] [@click=app.quit]x[/] [red]", optimization="none", source="x", summary="",
               server=ServerSpec(model="m")),
    )  # fmt: skip
    async with running(service) as (app, press, pilot):
        await press("ctrl+p", *"start odd")
        await pilot.pause(0.3)
        await press("enter")
        assert app.is_running
        assert ("start_server", ("odd", {})) in service.calls


async def test_an_experiment_compares_its_two_presets_under_the_chosen_load() -> None:
    service = FakeService(snapshot(ready()))
    async with running(service) as (app, press, _):
        await press("i")
        assert isinstance(app.screen, ExperimentsScreen)
        await press("down", "down", "enter")
        assert isinstance(app.screen, CompareScreen)
    (request,) = [argument for name, argument in service.calls if name == "start_compare"]
    assert (request.presets, request.workload) == (("baseline", "prefix-caching"), "prefix")
    assert (request.requests, request.max_tokens) == (None, None), "a real server gets the whole load"


async def test_an_experiment_does_not_start_beside_a_running_comparison() -> None:
    service = comparing("running")
    async with running(service) as (app, press, _):
        await press("i", "enter")
        assert isinstance(app.screen, CompareScreen)
    assert "start_compare" not in service.names()
