"""`vtop`: the dashboard."""

from __future__ import annotations

import argparse
import os
import sys

from vtop.commands.console import note
from vtop.errors import UsageError
from vtop.service import ServiceOptions
from vtop.settings import load_settings


def require_terminal() -> None:
    """The screen needs one.

    Raises:
        UsageError: standard input or output is not a terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the dashboard needs a terminal", "`vtop status` prints the same once; --json for programs.")


def show(options: ServiceOptions, arguments: argparse.Namespace, *, tour: bool = False) -> int:
    """Runs the screen until it is left, and says which servers go on."""
    settings = load_settings()
    # Textual reads its environment while it is imported.
    from vtop.ui.run import prepare_environment, run_app

    prepare_environment(os.environ, settings)
    from vtop.service import VtopService

    outcome = run_app(
        VtopService(options),
        settings,
        mouse=not arguments.no_mouse,
        ascii_only=arguments.ascii or settings.ascii,
        tour=tour,
    )
    for line in outcome.farewell:
        note(line)
    return outcome.exit_code


def run_dashboard(arguments: argparse.Namespace) -> int:
    """Everything on one screen."""
    from vtop.commands.session import options_from

    require_terminal()
    return show(options_from(arguments), arguments)
