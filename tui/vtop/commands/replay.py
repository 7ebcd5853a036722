"""`vtop replay FILE`: the dashboard on a recording; `vtop replay demo` plays one that comes with vtop."""

from __future__ import annotations

import argparse
from pathlib import Path

from vtop.commands.dashboard import display_settings, require_terminal
from vtop.service.replaying import ReplayService

SHIPPED = "demo"
"""The word for the recording that comes with vtop: a real vLLM for CPU that starts, takes a load test and stops."""


def recording(word: str) -> Path:
    """The file that a word of the command line means; a file of that name comes first."""
    path = Path(word)
    if word == SHIPPED and not path.exists():
        return Path(__file__).resolve().parents[1] / "recordings" / "real-cpu.rec.gz"
    return path


def run_replay(arguments: argparse.Namespace) -> int:
    """Plays it on the screen."""
    service = ReplayService(recording(arguments.file), arguments.speed)
    require_terminal()
    from vtop.ui.run import run_app

    display = display_settings(service.snapshot().window_s)
    return run_app(service, display, mouse=not arguments.no_mouse, ascii_only=arguments.ascii)
