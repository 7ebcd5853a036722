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
from vtop.ui.listing import Picker
from vtop.ui.screens.confirm import ConfirmScreen
from vtop.ui.screens.start import StartScreen

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
    screen: list[str]
    """What happened to the terminal: `away` while the editor has it, `back` afterwards."""

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

    screen: list[str] = []

    @contextmanager
    def suspend() -> Iterator[None]:
        # As in Textual: an error that passes through leaves the terminal without a screen.
        screen.append("away")
        yield
        screen.append("back")

    # There is no terminal to give away under the test's driver.
    monkeypatch.setattr(app, "suspend", suspend)
    return Bench(shipped, editor, service, app, screen)


def fp8(bench: Bench) -> object:
    return next(preset for preset in bench.service.preset_list if preset.name == "fp8")


def taken(place: str) -> bytes:
    """What a kept edit holds; nothing of it stays in the temporary directory."""
    kept = Path(place)
    written = kept.read_bytes()
    kept.unlink()
    return written


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
    assert bench.screen == ["away", "back"]


async def test_an_edit_that_cannot_be_saved_is_kept(bench: Bench) -> None:
    bench.edits('echo \'summary = "mine"\' >> "$1"')
    paths.user_presets_dir().parent.mkdir(parents=True, exist_ok=True)
    paths.user_presets_dir().write_text("a file where the directory should be")
    async with bench.app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        with pytest.raises(VtopError, match="cannot write") as error:
            await edit_preset(bench.app, fp8(bench))  # type: ignore[arg-type]
    assert taken(error.value.remedy.rpartition(" is in ")[2]) == SHIPPED.encode() + b'summary = "mine"\n'


async def test_an_edit_in_another_encoding_is_kept(bench: Bench) -> None:
    bench.edits('printf "# caf\\351\\n" >> "$1"')
    async with bench.app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        with pytest.raises(VtopError, match="not UTF-8") as error:
            await edit_preset(bench.app, fp8(bench))  # type: ignore[arg-type]
    assert not (paths.user_presets_dir() / "fp8.toml").exists()
    kept = error.value.remedy.split(" is in ")[1].partition(";")[0]
    assert taken(kept) == SHIPPED.encode() + b"# caf\xe9\n"


async def test_a_key_that_is_pressed_twice_opens_one_editor(bench: Bench, tmp_path: Path) -> None:
    """Two editors shared the terminal, and the one that was closed last wrote over the other."""
    opened = tmp_path / "opened"
    bench.edits(f'echo once >> "{opened}"; sleep 0.2')
    async with bench.app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        bench.app.open_page(StartScreen())
        await settle(pilot)
        bench.app.screen.query_one("#list", Picker).choose("fp8")
        await settle(pilot)
        bench.app.act("edit")
        bench.app.act("edit")
        while bench.screen[-1:] != ["back"]:
            await settle(pilot)
        await settle(pilot)
    assert opened.read_text() == "once\n"
    assert bench.screen == ["away", "back"]


def test_editor_may_have_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "code --wait")
    assert editor_command() == ["code", "--wait"]
