"""What a server was started from, kept beside its state: the preset with its overrides (presets hold no secrets)."""

from __future__ import annotations

import contextlib

import msgspec

from vtop import paths
from vtop.presets import Preset
from vtop.results.store import write_atomically

_FILE = "preset.json"


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
