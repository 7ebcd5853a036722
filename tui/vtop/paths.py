"""Where vtop keeps its files. Every directory that may hold private data is created 0700."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from vtop.errors import VtopError


class FolderError(VtopError, OSError):
    """A folder of vtop's own cannot be made; an `OSError` too, for those who can do without that folder."""


def _private(path: Path, variable: str) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(
            f"cannot make the folder {path}: {error.strerror}", f"Make it writable, or name another one: {variable}=..."
        ) from error
    return path


def config_dir() -> Path:
    """Settings and user presets (`$VTOP_CONFIG_DIR`, else the platform's own place)."""
    return Path(os.environ.get("VTOP_CONFIG_DIR") or platformdirs.user_config_dir("vtop", appauthor=False))


def user_presets_dir() -> Path:
    """The user's own preset files; they shadow shipped ones of the same name."""
    return config_dir() / "presets"


def state_dir() -> Path:
    """State files and logs of servers (`$VTOP_STATE_DIR`); created 0700.

    Raises:
        FolderError: it cannot be made; so say those below.
    """
    base = os.environ.get("VTOP_STATE_DIR") or platformdirs.user_state_dir("vtop", appauthor=False)
    return _private(Path(base), "VTOP_STATE_DIR")


def servers_dir() -> Path:
    """One folder a server that vtop started: state, log, lock; created 0700."""
    return _private(state_dir() / "servers", "VTOP_STATE_DIR")


def runs_dir() -> Path:
    """One folder a load test or comparison (`$VTOP_RUNS_DIR`); created 0700."""
    base = os.environ.get("VTOP_RUNS_DIR") or str(Path(platformdirs.user_data_dir("vtop", appauthor=False)) / "runs")
    return _private(Path(base), "VTOP_RUNS_DIR")


def cache_dir() -> Path:
    """What can be made again: flags of vLLM installations, start-up durations."""
    base = os.environ.get("VTOP_CACHE_DIR") or platformdirs.user_cache_dir("vtop", appauthor=False)
    return _private(Path(base), "VTOP_CACHE_DIR")


def shipped_presets_dir() -> Path:
    """The presets that come with vtop: inside the wheel, or beside the checkout in an editable install.

    Raises:
        FileNotFoundError: neither place exists, so the installation is damaged.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "shipped_presets", package.parents[1] / "presets"):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"no shipped presets beside {package}; reinstall vllm-vtop")
