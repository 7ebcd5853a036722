"""How long each preset took to start last time, by vLLM version; kept in the cache, lost without harm."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from vtop import paths


class StartDuration(msgspec.Struct, frozen=True):
    """One start."""

    total_s: float
    phases: list[tuple[str, float]] = []
    """Phases in order, with the seconds each took."""


def _path() -> Path:
    return paths.cache_dir() / "start-durations.json"


def _load() -> dict[str, StartDuration]:
    try:
        return msgspec.json.decode(_path().read_bytes(), type=dict[str, StartDuration])
    except (OSError, msgspec.MsgspecError):
        return {}


def _key(preset: str, version: str | None, simulated: bool) -> str:
    return f"{preset} {'simulated' if simulated else version or '?'}"


def last_start(preset: str, version: str | None, simulated: bool = False) -> StartDuration | None:
    """How the last start of a preset with that version went; None where it was never seen."""
    return _load().get(_key(preset, version, simulated))


def remember_start(
    preset: str, version: str | None, simulated: bool, total_s: float, phases: Sequence[tuple[str, float]]
) -> None:
    """Keeps a finished start for the next one's `expected_s`; a full disk is not an error here."""
    known = _load()
    known[_key(preset, version, simulated)] = StartDuration(round(total_s, 3), [(n, round(s, 3)) for n, s in phases])
    with contextlib.suppress(OSError):
        draft = _path().with_suffix(f".{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(known))
        os.replace(draft, _path())
