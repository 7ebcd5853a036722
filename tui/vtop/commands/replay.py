"""`vtop replay FILE`: the dashboard on a recording."""

from __future__ import annotations

import argparse

from vtop.commands.dashboard import require_terminal
from vtop.service.replaying import ReplayService


def run_replay(arguments: argparse.Namespace) -> int:
    """Plays it on the screen."""
    service = ReplayService(arguments.file, arguments.speed)
    require_terminal()
    from vtop.ui.run import run_app

    return run_app(service, mouse=not arguments.no_mouse, ascii_only=arguments.ascii)
