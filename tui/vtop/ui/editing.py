"""Edit a preset in $EDITOR while measuring goes on, and check what came out before it counts."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from vtop import paths
from vtop.errors import VtopError
from vtop.presets import Preset
from vtop.ui.calls import aside
from vtop.ui.screens.confirm import ConfirmScreen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vtop.ui.app import VtopApp


def editor_command() -> list[str]:
    """What the user edits with: $VISUAL, $EDITOR, else vi.

    Raises:
        VtopError: the variable cannot be split into words.
    """
    text = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        return shlex.split(text)
    except ValueError as error:
        raise VtopError(f"$EDITOR cannot be read as a command: {text}", "set EDITOR=nano, for example") from error


async def edit_preset(app: VtopApp, preset: Preset) -> None:
    """Opens the preset; on a mistake, asks whether to edit again or to drop the edit.

    A shipped preset is never written: the edit becomes a user preset of the same name, which shadows it.

    Raises:
        VtopError: no editor, no terminal to suspend, or the file cannot be written.
    """
    target = paths.user_presets_dir() / f"{preset.name}.toml"
    before = _read(Path(preset.source))
    original = _read(target) if _exists(target) else None
    text = before
    while True:
        text = await _edited(app, text, preset.name)
        if text == before:
            return
        try:
            _write(target, text)
        except VtopError as error:
            kept = _kept(text.encode(), preset.name)
            raise VtopError(error.what, f"{error.remedy}; what you wrote is in {kept}") from error
        _, problems = app.service.presets()
        problem = next((p for p in problems if Path(p.file).name == target.name), None)
        if problem is None:
            app.notify(f"saved {target}", title=preset.name, markup=False)
            return
        _restore(target, original)
        question = ConfirmScreen(
            f"{preset.name}: the edit has a mistake", f"{problem.what}\n{problem.remedy}", "Edit again", "Drop the edit"
        )
        if not await app.push_screen_wait_here(question):
            return


def _exists(path: Path) -> bool:
    return path.exists()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise VtopError(f"cannot read {path}: {error.strerror}", "check the file's permissions") from error


def _write(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise VtopError(f"cannot write {target}: {error.strerror}", "check the directory's permissions") from error


def _restore(target: Path, original: str | None) -> None:
    if original is None:
        target.unlink(missing_ok=True)
    else:
        _write(target, original)


async def _edited(app: VtopApp, text: str, name: str) -> str:
    """The text after the editor closed."""
    command = editor_command()
    code, failure = 0, None
    with _draft(text, name) as path:
        try:
            with _nothing_painted(app), app.suspend(), _interrupt_is_the_editors():
                try:
                    # Beside the event loop: servers are watched on while the editor is open.
                    code = await aside(lambda: subprocess.call([*command, str(path)]))
                except OSError as error:
                    # Told once the screen is back: what leaves `suspend` as an error leaves the terminal without one.
                    failure = error
        except SuspendNotSupported as error:
            raise VtopError(
                "an editor needs a terminal, and this is not one", f"edit {paths.user_presets_dir()}/{name}.toml"
            ) from error
        if failure is not None:
            raise VtopError(
                f"cannot run {command[0]}: {failure.strerror}", "set EDITOR to an editor you have"
            ) from failure
        if code != 0:
            raise VtopError(f"{command[0]} ended with code {code}; nothing was changed")
        try:
            return _read(path)
        except UnicodeDecodeError as error:
            kept = _kept(path.read_bytes(), name)
            raise VtopError(
                "the edit is not UTF-8; nothing was changed", f"what you wrote is in {kept}; save it as UTF-8"
            ) from error


def _kept(written: bytes, name: str) -> Path:
    """Puts an edit that could not be used where its writer finds it again."""
    handle, place = tempfile.mkstemp(prefix=f"vtop-{name}-", suffix=".toml")
    with os.fdopen(handle, "wb") as file:
        file.write(written)
    return Path(place)


@contextlib.contextmanager
def _draft(text: str, name: str) -> Iterator[Path]:
    """The text in a file of its own, gone afterwards."""
    handle, place = tempfile.mkstemp(prefix=f"vtop-{name}-", suffix=".toml")
    path = Path(place)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _nothing_painted(app: VtopApp) -> Iterator[None]:
    was = app.view.paused
    app.view.paused = True
    try:
        with app.batch_update():
            yield
    finally:
        app.view.paused = was


@contextlib.contextmanager
def _interrupt_is_the_editors() -> Iterator[None]:
    """^C in the editor's terminal reaches this process too; it is meant for the editor."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
