"""`vtop`: the dashboard."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from vtop.commands.console import note
from vtop.commands.session import options_from
from vtop.contract import Service
from vtop.errors import UsageError
from vtop.service import ServiceOptions
from vtop.service.on_demand import service_on_demand
from vtop.settings import load_settings

if TYPE_CHECKING:
    from vtop.ui.display import DisplaySettings


def in_browser() -> bool:
    """Whether `vtop web` runs this: the screen then speaks to a browser through pipes."""
    return os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver")


def can_show() -> bool:
    """Whether there is something to draw the screen on."""
    return in_browser() or (sys.stdin.isatty() and sys.stdout.isatty())


def require_terminal() -> None:
    """The screen needs one.

    Raises:
        UsageError: standard input or output is not a terminal.
    """
    if not can_show():
        raise UsageError("the dashboard needs a terminal", "`vtop status` prints the same once; --json for programs.")


def display_settings(window_s: float) -> DisplaySettings:
    """How the user's settings want the screen."""
    from vtop.ui.display import DisplaySettings

    said = load_settings()
    return DisplaySettings(
        **({"theme": said.theme} if said.theme else {}),
        ascii=said.ascii,
        paint_hz=said.paint_hz,
        window_s=window_s,
        keys=said.keymap,
        bell=said.bell,
        large=said.large,
    )


def show(
    options: ServiceOptions,
    arguments: argparse.Namespace,
    *,
    demo: bool = False,
    recording: Callable[[], Service] | None = None,
) -> NoReturn:
    """Runs the screen until it is left, and says which servers go on."""
    from vtop.ui.run import run_app

    code = run_app(
        service_on_demand(options),
        display_settings(options.window_s),
        mouse=not arguments.no_mouse,
        ascii_only=arguments.ascii,
        demo=demo,
        recording=recording,
        # Standard output belongs to the browser's protocol there.
        say=note if in_browser() else None,
    )
    leave(code)


def leave(code: int) -> NoReturn:
    """Ends the process at once: Python's own way out may wait for threads that hang, and the screen is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_dashboard(arguments: argparse.Namespace) -> int:
    """Everything on one screen."""
    require_terminal()
    return show(options_from(arguments), arguments)
