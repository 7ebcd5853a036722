"""Logs longer than what the screen holds: the cause is found, and the place that is read stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ui.fake_service import FakeService, failed, ready, snapshot
from ui.looks import settle
from ui.pressing import running
from vtop.ui.app import VtopApp
from vtop.ui.listing import Pager
from vtop.ui.screens.logs import LINES, LogsScreen, gone


def numbered(first: int, last: int) -> list[str]:
    return [f"line {number}" for number in range(first, last + 1)]


def body(app: VtopApp) -> Pager:
    return app.screen.query_one("#body", Pager)


async def test_the_log_of_a_server_that_ran_for_long_opens_at_its_cause() -> None:
    """The line number counts in the lines that were diagnosed, which are more than those of a running server."""
    view = failed()
    assert view.status.diagnosis is not None
    cause = replace(view.status.diagnosis, line_number=2990)
    service = FakeService(snapshot(replace(view, status=replace(view.status, diagnosis=cause))))
    service.logs["awq"] = numbered(1, 3000)
    async with running(service, size=(80, 24)) as (app, press, _):
        await press("g")
        chosen = [line.text.strip() for line in body(app).lines if line.cursor]
    assert [row.split("  ")[0] for row in chosen] == ["line 2990"]


async def test_the_place_that_is_read_stays_while_lines_are_dropped_and_added() -> None:
    service = FakeService(snapshot(ready()))
    service.logs["baseline"] = [*numbered(1, 1000), "the words", *numbered(1001, LINES)]
    async with running(service, size=(80, 24)) as (app, press, pilot):
        await press("g", "slash", *"the words", "enter")
        page = app.screen
        assert isinstance(page, LogsScreen)
        before = [line.text for line in body(app).lines][:10]
        assert any("the words" in text for text in [line.text for line in body(app).lines])
        service.logs["baseline"] += numbered(LINES + 1, LINES + 300)
        page._read()
        await settle(pilot)
        await settle(pilot)
        assert page._lines[-1] == f"line {LINES + 300}"
        after = body(app).lines
        assert [line.text.split(" │")[0].split(" ┃")[0].strip() for line in after][:10] == [
            text.split(" │")[0].split(" ┃")[0].strip() for text in before
        ]
        assert ["the words" in line.text for line in after if line.cursor] == [True]
        assert "1 of 1" in page.heading()


@pytest.mark.parametrize(
    ("after", "dropped"),
    [
        (["a", "b", "c"], 0),
        (["a", "b", "c, whole", "d"], 0),
        (["b", "c", "d", "e"], 1),
        (["x", "y"], 3),
        ([], 3),
    ],
)
def test_how_many_lines_went(after: list[str], dropped: int) -> None:
    assert gone(["a", "b", "c"], after) == dropped


def test_nothing_went_from_a_log_that_was_empty() -> None:
    assert gone([], ["a"]) == 0
