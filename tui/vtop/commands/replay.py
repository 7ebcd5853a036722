"""`vtop replay FILE`: the dashboard on a recording."""

from __future__ import annotations

import argparse

from vtop.commands.dashboard import require_terminal
from vtop.service.replaying import ReplayService
from vtop.telemetry.recording import Replay


def run_replay(arguments: argparse.Namespace) -> int:
    """Shows it; space pauses as on the live screen."""
    replay = Replay(arguments.file)
    require_terminal()
    from vtop.ui.run import run_app

    service = ReplayService(replay, speed=arguments.speed)
    return run_app(service, mouse=not arguments.no_mouse, ascii_only=arguments.ascii)
