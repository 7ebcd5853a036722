"""Ladders and searches on the load screen: their steps as rows, and a chart of how they compare."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from ui.fake_service import FakeService
from ui.looks import load_progress, ready, settle, snapshot
from vtop.load.progress import LoadProgress, LoadStep
from vtop.ui.app import VtopApp
from vtop.ui.display import DisplaySettings
from vtop.ui.panels.load_steps import step_lines, steps_spec, steps_title


def step(*, concurrency: int | None = None, rate: float | None = None, **more: Any) -> LoadStep:
    given: dict[str, Any] = {
        "concurrency": concurrency,
        "rate": rate,
        "requests": 100,
        "failed": 0,
        "output_tokens_per_s": 100.0 * (concurrency or 5),
        "requests_per_s": 1.0,
        "ttft_p50_s": 0.08,
        "ttft_p95_s": 0.12,
        "tpot_p50_s": 0.010 + 0.001 * (concurrency or 0),
        "tpot_p95_s": 0.02,
        **more,
    }
    return LoadStep(**given)


def ladder(*concurrencies: int) -> LoadProgress:
    return replace(load_progress(), steps=tuple(step(concurrency=n) for n in concurrencies))


def search(*rates: tuple[float, bool]) -> LoadProgress:
    progress = load_progress()
    request = replace(progress.request, search=True, slo_ttft_s=0.2)
    return replace(progress, request=request, steps=tuple(step(rate=rate, holds=holds) for rate, holds in rates))


def test_a_ladder_is_drawn_as_throughput_over_tpot() -> None:
    spec = steps_spec(ladder(1, 2, 4), 60, 12)
    assert spec is not None
    ((points,),) = [item.runs for item in spec.traces]
    assert [(point.x, point.high) for point in points] == pytest.approx([(11.0, 100.0), (12.0, 200.0), (14.0, 400.0)])
    assert spec.x_high >= 14.0 and spec.y_top >= 400.0
    assert steps_title(ladder(1)).text == "tok/s over TPOT, step by step"


def test_steps_of_which_nothing_is_known_draw_no_point() -> None:
    unknown = step(concurrency=2, output_tokens_per_s=None, tpot_p50_s=None)
    assert steps_spec(replace(ladder(1), steps=(unknown,)), 60, 12) is None
    assert "–" in step_lines([unknown], 1)[0].text


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([(4.0, False)], "below 4"),
        ([(4.0, True)], "above 4"),
        ([(4.0, True), (6.0, False), (5.0, True)], "5.00 to 6.00"),
    ],
)
def test_a_search_says_between_which_rates_the_answer_lies(rates: list[tuple[float, bool]], words: str) -> None:
    assert words in steps_title(search(*rates)).text


def test_a_search_is_drawn_run_by_run_with_what_held_apart_from_what_broke() -> None:
    spec = steps_spec(search((4.0, True), (6.0, False), (5.0, True)), 60, 12)
    assert spec is not None
    points = {item.role: [(run[0].x, run[0].high) for run in item.runs] for item in spec.traces if item.dots}
    assert points == {"good": [(1, 4.0), (3, 5.0)], "bad": [(2, 6.0)]}
    (line,) = [item for item in spec.traces if item.level]
    assert line.runs[0][0].high == 5.0


def test_the_last_steps_are_the_ones_shown() -> None:
    lines = [line.text for line in step_lines(ladder(1, 2, 4, 8).steps, 2)]
    assert [line.split()[0] for line in lines] == ["4", "8"]
    assert [line.text.split()[-1] for line in step_lines(search((4.0, True), (6.0, False)).steps, 5)] == ["ok", "no"]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 45)], ids=str)
@pytest.mark.parametrize("progress", [ladder(1, 2, 4, 8), search((4.0, True), (6.0, False))], ids=["ladder", "search"])
async def test_the_load_screen_shows_them(progress: LoadProgress, size: tuple[int, int]) -> None:
    service = FakeService(snapshot(ready()))
    service.load = progress
    app = VtopApp(service, DisplaySettings(paint_hz=4.0), clock=service.clock)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        await pilot.press("l")
        await settle(pilot)
        await pilot.press("3")
        await settle(pilot)
        shown = "".join(re.findall(r"<text[^>]*>([^<]*)</text>", app.export_screenshot())).replace("&#160;", " ")
    assert steps_title(progress).text.split(",")[0] in shown
