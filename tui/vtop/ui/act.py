"""Something that plays by itself on the screen, with captions, until a key is pressed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import ServerView

if TYPE_CHECKING:
    from vtop.ui.app import VtopApp

POLL_S = 0.25
PATIENCE_S = 600.0
"""Longest wait for one step; then the act ends and says so."""


class Act:
    """Changes of the screen and calls of the service, each of which a person could make.

    Args:
        app: the application to play in.
        pace_s: seconds that a caption stands alone.
    """

    def __init__(self, app: VtopApp, pace_s: float = 5.0) -> None:
        self.app = app
        self.pace_s = pace_s
        self.taken_over = False

    def take_over(self) -> None:
        """The person plays from here on; nothing that runs is stopped."""
        if not self.taken_over:
            self.taken_over = True
            self.caption("")

    async def play(self) -> None:
        """The whole act; returns early once it is taken over.

        Raises:
            VtopError: a step failed; what it says is shown like any other error.
        """
        try:
            await self.course()
        except TakenOver:
            return
        finally:
            self.caption("")

    async def course(self) -> None:
        """What happens, in order."""

    def view(self, name: str | None = None) -> ServerView | None:
        """The server of that name as the screen has it; without a name the first one."""
        return next((view for view in self.app.snapshot.servers if name in (None, view.status.name)), None)

    def state(self, name: str | None = None) -> ServerState | None:
        """Its state; None while there is no such server."""
        view = self.view(name)
        return view.status.state if view else None

    def caption(self, text: str) -> None:
        """Shows a caption until the next one."""
        self.app.view.demo_caption = "" if self.taken_over else text
        self.app.paint_soon()

    async def say(self, text: str) -> None:
        """Shows a caption for as long as it takes to read.

        Raises:
            TakenOver: a key was pressed.
        """
        self.caption(text)
        end = time.monotonic() + self.pace_s
        await self.until(lambda: time.monotonic() >= end)

    async def until(self, done: Callable[[], bool]) -> None:
        """Waits for something to have happened.

        Raises:
            TakenOver: a key was pressed, or it took too long.
        """
        end = time.monotonic() + PATIENCE_S
        while not done():
            if self.taken_over:
                raise TakenOver
            if time.monotonic() > end:
                self.app.notify("the demonstration waited too long for this step", severity="warning", markup=False)
                raise TakenOver
            await asyncio.sleep(min(POLL_S, self.pace_s))
        if self.taken_over:
            raise TakenOver


class TakenOver(Exception):
    """The person pressed a key."""
