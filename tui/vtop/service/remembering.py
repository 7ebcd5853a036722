"""What a server was started from, kept beside its state: the preset with its overrides (presets hold no secrets)."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import msgspec

from vtop import paths
from vtop.presets import Preset
from vtop.results.store import write_atomically

_FILE = "preset.json"
_START = "start.json"
_SCRATCH = "scratch.json"


def remember_preset(name: str, preset: Preset) -> None:
    """Keeps it; a full disk must not stop a server that runs already."""
    with contextlib.suppress(OSError):
        write_atomically(paths.servers_dir() / name / _FILE, msgspec.json.encode(preset))


def recall_preset(name: str) -> Preset | None:
    """The preset of a server, or None where that is not known."""
    try:
        return msgspec.json.decode((paths.servers_dir() / name / _FILE).read_bytes(), type=Preset)
    except (OSError, msgspec.DecodeError):
        return None


class StartWords(msgspec.Struct, frozen=True, kw_only=True):
    """With which words a server was started, so that it can be started again with a change."""

    preset: str
    overrides: dict[str, str] = {}
    simulated: bool = False
    gpu: str | None = None
    """The simulated card."""
    vllm: str | None = None
    """The installation that was asked for."""


def remember_start(name: str, words: StartWords) -> None:
    """Keeps them; a full disk must not stop a server that runs already."""
    with contextlib.suppress(OSError):
        write_atomically(paths.servers_dir() / name / _START, msgspec.json.encode(words))


def recall_start(name: str) -> StartWords | None:
    """The words of a server's start, or None where they are not known."""
    try:
        return msgspec.json.decode((paths.servers_dir() / name / _START).read_bytes(), type=StartWords)
    except (OSError, msgspec.DecodeError):
        return None


def remember_scratch(name: str, folders: tuple[str, ...]) -> None:
    """Notes folders that a deployment fills while it runs (the KV cache that a prefill server hands over)."""
    if folders:
        with contextlib.suppress(OSError):
            write_atomically(paths.servers_dir() / name / _SCRATCH, msgspec.json.encode(folders))


def remove_scratch(name: str) -> None:
    """Deletes them after the stop; only what lies in vtop's own state directory."""
    note = paths.servers_dir() / name / _SCRATCH
    try:
        folders = msgspec.json.decode(note.read_bytes(), type=tuple[str, ...])
    except (OSError, msgspec.DecodeError):
        return
    own = paths.state_dir().resolve()
    for folder in folders:
        if own in Path(folder).resolve().parents:
            shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        note.unlink()
