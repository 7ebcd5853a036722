"""`vtop _complete KIND`: the names that a shell offers after TAB, one a line; imports as little as that kind needs."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from vtop import paths
from vtop.commands.console import say


def _files(*folders: Path) -> list[str]:
    return [file.stem for folder in folders for file in folder.glob("*.toml") if not file.name.startswith(".")]


def _presets() -> list[str]:
    return _files(paths.shipped_presets_dir(), paths.user_presets_dir())


def _shapes() -> list[str]:
    return _files(paths.shipped_presets_dir() / "load", paths.user_presets_dir() / "load")


def _folders(directory: Path) -> list[str]:
    return [entry.name for entry in os.scandir(directory) if entry.is_dir() and not entry.name.startswith(".")]


def _servers() -> list[str]:
    return _folders(paths.servers_dir())


def _running() -> list[str]:
    """Servers that a stop has something to do for: all but those whose record says that they are stopped."""
    found = []
    for name in _servers():
        try:
            state = json.loads((paths.servers_dir() / name / "state.json").read_bytes())["state"]
        except (OSError, ValueError, KeyError, TypeError):
            state = "unknown"
        if state != "stopped":
            found.append(name)
    return found


def _runs() -> list[str]:
    return _folders(paths.runs_dir())


def _workloads() -> Iterable[str]:
    from vtop.load.workload import WORKLOADS

    return WORKLOADS


def _experiments() -> Iterable[str]:
    from vtop.experiments import EXPERIMENTS

    return [experiment.name for experiment in EXPERIMENTS]


def _cards() -> Iterable[str]:
    from vtop.hardware import CARDS

    # A space would make two words of it in a shell; cards are found without it too.
    return [card.name.replace(" ", "-") for card in CARDS]


NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "presets": _presets,
    "shapes": _shapes,
    "servers": _servers,
    "running": _running,
    "runs": _runs,
    "workloads": _workloads,
    "experiments": _experiments,
    "cards": _cards,
}


def run__complete(arguments: argparse.Namespace) -> int:
    """Prints names; says nothing when something is amiss, since a person is typing."""
    try:
        for name in sorted(set(NAMES[arguments.kind]())):
            say(name)
    except (KeyError, OSError):
        return 1
    return 0
