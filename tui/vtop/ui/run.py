"""Starts the screen and ends it: environment before Textual is imported, signals, an exit that waits for nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from vtop.contract import Service
from vtop.ui.display import DisplaySettings, terminal_environment

if TYPE_CHECKING:
    from vtop.ui.app import VtopApp

LEAVE_WITHIN_S = 0.02
"""How long tasks that were cancelled may take to end before they are left."""

END_WITHIN_S = 3.0
"""How long the exit may take after the terminal went away; then the process ends as it is."""

HANGUP_CODE = 128 + 1
"""Exit code after the terminal went away."""


def run_app(
    service: Service,
    settings: DisplaySettings | None = None,
    *,
    mouse: bool = True,
    ascii_only: bool = False,
    demo: bool = False,
    recording: Callable[[], Service] | None = None,
    say: Callable[[str], None] | None = None,
) -> int:
    """Shows the dashboard until the person leaves.

    Args:
        service: the facade, not yet opened; the application opens and closes it.
        settings: how to draw; `resolved` for this terminal here.
        mouse: False leaves the mouse to the terminal (its own selection).
        ascii_only: no braille, blocks or box lines, whatever the settings say.
        demo: plays the demonstration until a key is pressed.
        recording: makes the facade of a recording that the demonstration ends with, and that a key shows.
        say: where the line about servers that keep running goes; None: standard output.

    Returns:
        The exit code: 0, or 129 when the terminal went away.
    """
    # Read once by Textual when it is imported, so they must be there before.
    os.environ.update(terminal_environment())
    from vtop.ui.app import VtopApp

    chosen = settings or DisplaySettings()
    if ascii_only:
        chosen = replace(chosen, ascii=True)
    app = VtopApp(service, chosen, demo=demo, recording=recording)
    loop = asyncio.new_event_loop()
    hung_up = False

    def leave(signum: int, frame: object) -> None:
        nonlocal hung_up
        if signum == signal.SIGHUP:
            hung_up = True
            _let_go_of_terminal()
            # Nobody is left to see or stop a screen that cannot end itself.
            last_resort = threading.Timer(END_WITHIN_S, os._exit, (HANGUP_CODE,))
            last_resort.daemon = True
            last_resort.start()
        loop.call_soon_threadsafe(app.leave, HANGUP_CODE if hung_up else 0)

    with _screen_on_terminal(), _handled((signal.SIGHUP, signal.SIGTERM), leave):
        try:
            code = loop.run_until_complete(app.run_async(mouse=mouse))
        finally:
            _close(loop)
    if not hung_up:
        _say_what_runs(app, say)
    return HANGUP_CODE if hung_up else int(code if code is not None else app.return_code or 0)


def _say_what_runs(app: VtopApp, say: Callable[[str], None] | None) -> None:
    write = say or (lambda text: print(text, file=sys.stdout))  # noqa: T201
    for name, url in app.left_running:
        write(f"{name} keeps running at {url}; `vtop stop {name}` stops it.")


def _let_go_of_terminal() -> None:
    """Points the standard streams at nothing: writes to a terminal that is gone fail, and would block the exit."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)


@contextlib.contextmanager
def _screen_on_terminal() -> Iterator[None]:
    """Textual writes to standard error; with `2> file` the screen still belongs on the terminal."""
    errors, output = sys.__stderr__, sys.__stdout__
    if errors is None or output is None or errors.isatty() or not output.isatty():
        yield
        return
    sys.__stderr__ = output  # type: ignore[misc]
    try:
        yield
    finally:
        sys.__stderr__ = errors  # type: ignore[misc]


@contextlib.contextmanager
def _handled(signals: tuple[int, ...], handler: Callable[[int, object], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Ends the loop without waiting for calls that do not come back; `asyncio.run` would wait for each."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
        # A task that is left behind is not worth a message on the person's terminal.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=LEAVE_WITHIN_S))
    loop.close()
