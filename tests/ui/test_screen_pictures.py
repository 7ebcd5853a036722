"""Every screen in its main states, at three sizes, as pictures: `--snapshot-update` after looking at each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ui.looks import app_for, settle
from vtop.ui.display import DisplaySettings

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "160x45": (160, 45)}

SCREENS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dashboard": ("busy", ()),
    "dashboard-empty": ("empty", ()),
    "dashboard-starting": ("starting", ()),
    "dashboard-failed": ("failed", ()),
    "dashboard-stale": ("stale", ()),
    "dashboard-no-bandwidth": ("no-bandwidth", ()),
    "dashboard-simulated": ("simulated", ()),
    "dashboard-eight-gpus": ("eight-busy", ()),
    "dashboard-sixteen-gpus": ("sixteen", ()),
    "dashboard-hostile-names": ("hostile", ()),
    "dashboard-large": ("one", ("b",)),
    "chart-maximised": ("one", ("1",)),
    "start": ("presets", ("s",)),
    "start-refused": ("presets", ("s", "end", "up")),
    "load-warming": ("load-warming", ("l",)),
    "load-running": ("loading", ("l",)),
    "load-failures": ("load-failures", ("l",)),
    "result": ("loaded", ("r", "enter")),
    "logs": ("failed", ("g",)),
    "confirm": ("one", ("x",)),
    "help": ("one", ("question_mark",)),
    "explain": ("one", ("e",)),
    "compare-form": ("one", ("c", "space", "down", "space")),
    "compare-running": ("comparing", ("c",)),
    "compare-finished": ("compared", ("c",)),
    "compare-saved": ("one", ("r", "down", "enter")),
    "choose-load": ("one", ("L",)),
    "chat": ("one", ("t", "w", "h", "y", "enter")),
    "runs": ("one", ("r",)),
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("screen", SCREENS)
def test_screen(snap_compare: Callable[..., bool], screen: str, size: tuple[int, int]) -> None:
    state, keys = SCREENS[screen]

    async def press(pilot: Any) -> None:
        await settle(pilot)
        for key in keys:
            await pilot.press(key)
            await settle(pilot)

    assert snap_compare(app_for(state), terminal_size=size, run_before=press)


@pytest.mark.parametrize("theme", ["ansi-dark", "vtop-light"])
@pytest.mark.parametrize("screen", ["dashboard", "confirm", "load-running", "start"])
def test_theme(snap_compare: Callable[..., bool], screen: str, theme: str) -> None:
    state, keys = SCREENS[screen]

    async def press(pilot: Any) -> None:
        await settle(pilot)
        for key in keys:
            await pilot.press(key)
            await settle(pilot)

    app = app_for(state, DisplaySettings(theme=theme, paint_hz=4.0))
    assert snap_compare(app, terminal_size=(120, 40), run_before=press)


def test_guided_experiments(snap_compare: Callable[..., bool]) -> None:
    """One size is enough: the list and the box beside it are the start screen's."""

    async def press(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("i")
        await settle(pilot)

    assert snap_compare(app_for("one"), terminal_size=(120, 40), run_before=press)


def test_ascii_terminal(snap_compare: Callable[..., bool]) -> None:
    app = app_for("busy", DisplaySettings(ascii=True, paint_hz=4.0))
    assert snap_compare(app, terminal_size=(120, 40), run_before=settle)


def test_no_color(snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without colours, marks and words still tell the states apart."""
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(app_for("busy"), terminal_size=(80, 24), run_before=settle)


def test_smallest_terminal(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(app_for("busy"), terminal_size=(40, 10), run_before=settle)
