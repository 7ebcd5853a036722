"""`vtop`: the dashboard."""

from __future__ import annotations

import argparse
import sys

from vtop.commands.session import options_from
from vtop.errors import UsageError
from vtop.service import ServiceOptions, VtopService
from vtop.settings import load_settings


def require_terminal() -> None:
    """The screen needs one.

    Raises:
        UsageError: standard input or output is not a terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the dashboard needs a terminal", "`vtop status` prints the same once; --json for programs.")


def show(options: ServiceOptions, arguments: argparse.Namespace, *, demo: bool = False) -> int:
    """Runs the screen until it is left, and says which servers go on."""
    from vtop.ui.display import DisplaySettings
    from vtop.ui.run import run_app

    said = load_settings()
    display = DisplaySettings(
        **({"theme": said.theme} if said.theme else {}),
        ascii=said.ascii,
        paint_hz=said.paint_hz,
        window_s=options.window_s,
        keys=said.keymap,
        bell=said.bell,
        large=said.large,
    )
    return run_app(
        VtopService(options),
        display,
        mouse=not arguments.no_mouse,
        ascii_only=arguments.ascii,
        demo=demo,
    )


def run_dashboard(arguments: argparse.Namespace) -> int:
    """Everything on one screen."""
    require_terminal()
    return show(options_from(arguments), arguments)
