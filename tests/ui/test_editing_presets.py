"""Editing a preset: the shipped file is never written, and a mistake costs nothing."""

from __future__ import annotations

import stat
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from ui.fake_service import PRESETS, FakeService, ready, snapshot
from ui.looks import settle
from vtop import paths
from vtop.contract import PresetProblem
from vtop.errors import VtopError
from vtop.ui.app import VtopApp
from vtop.ui.display import DisplaySettings
from vtop.ui.editing import edit_preset, editor_command
from vtop.ui.screens.confirm import ConfirmScreen

if TYPE_CHECKING:
    from collections.abc import Iterator

SHIPPED = 'title = "FP8 weights"\n'


@dataclass
class Bench:
    """A shipped preset, an editor that does what the test says, and the application."""

    shipped: Path
    editor: Path
    service: FakeService
    app: VtopApp

    def edits(self, script: str) -> None:
        """The editor's whole program; `$1` is the file."""
        self.editor.write_text(f"#!/bin/sh\n{script}\n")
        self.editor.chmod(self.editor.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    shipped = tmp_path / "shipped" / "fp8.toml"
    shipped.parent.mkdir()
    shipped.write_text(SHIPPED)
    service = FakeService(snapshot(ready()))
    service.preset_list = tuple(
        msgspec.structs.replace(preset, source=str(shipped)) if preset.name == "fp8" else preset for preset in PRESETS
    )
    editor = tmp_path / "editor.sh"
    monkeypatch.setenv("EDITOR", str(editor))
    app = VtopApp(service, DisplaySettings(paint_hz=4.0), clock=service.clock)

    @contextmanager
    def suspend() -> Iterator[None]:
        yield

    # There is no terminal to give away under the test's driver.
    monkeypatch.setattr(app, "suspend", suspend)
    return Bench(shipped, editor, service, app)


def fp8(bench: Bench) -> object:
    return next(preset for preset in bench.service.preset_list if preset.name == "fp8")


async def test_an_edit_becomes_a_user_preset(bench: Bench) -> None:
    bench.edits('echo \'summary = "mine"\' >> "$1"')
    async with bench.app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await edit_preset(bench.app, fp8(bench))  # type: ignore[arg-type]
    saved = paths.user_presets_dir() / "fp8.toml"
    assert saved.read_text() == SHIPPED + 'summary = "mine"\n'
    assert bench.shipped.read_text() == SHIPPED


async def test_closing_without_a_change_writes_nothing(bench: Bench) -> None:
    bench.edits("true")
    async with bench.app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await edit_preset(bench.app, fp8(bench))  # type: ignore[arg-type]
    assert not (paths.user_presets_dir() / "fp8.toml").exists()


async def test_a_mistake_is_told_and_can_be_dropped(bench: Bench) -> None:
    bench.edits('echo broken > "$1"')
    saved = paths.user_presets_dir() / "fp8.toml"
    bench.service.problems = (PresetProblem(str(saved), "fp8.toml: no value in line 1", "write key = value"),)
    async with bench.app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        task = bench.app.calls.run(edit_preset(bench.app, fp8(bench)), "edit fp8")  # type: ignore[arg-type]
        for _ in range(50):
            await settle(pilot)
            if isinstance(bench.app.screen, ConfirmScreen):
                break
        assert isinstance(bench.app.screen, ConfirmScreen)
        assert "no value in line 1" in bench.app.screen.detail
        assert not saved.exists()
        await pilot.press("n")
        await task
    assert not saved.exists()


async def test_an_editor_that_fails_changes_nothing(bench: Bench) -> None:
    bench.edits('echo x > "$1"; exit 3')
    async with bench.app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        with pytest.raises(VtopError, match="ended with code 3"):
            await edit_preset(bench.app, fp8(bench))  # type: ignore[arg-type]
    assert not (paths.user_presets_dir() / "fp8.toml").exists()


async def test_no_editor_is_said_with_a_remedy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "/nowhere/editor")
    async with bench.app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        with pytest.raises(VtopError, match="cannot run /nowhere/editor") as error:
            await edit_preset(bench.app, fp8(bench))  # type: ignore[arg-type]
    assert error.value.remedy


def test_editor_may_have_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "code --wait")
    assert editor_command() == ["code", "--wait"]
