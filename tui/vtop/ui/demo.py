"""The first act of `vtop demo`: it plays by itself, with captions, until a key is pressed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from vtop import units
from vtop.contract import CompareRequest
from vtop.load.progress import LoadRequest
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import ServerView

if TYPE_CHECKING:
    from vtop.ui.app import VtopApp

FIRST = "baseline"
"""The preset that is started and loaded."""

COMPARED = ("baseline", "prefix-caching")
"""What is compared then."""

WORKLOAD = "prefix"
"""A load on which prefix caching can show something."""

LOAD_REQUESTS = 160
"""Enough for the captions to be read while the test runs."""

POLL_S = 0.25
PATIENCE_S = 600.0
"""Longest wait for one step; then the demonstration ends and says so."""


class Demo:
    """Plays the act as calls of the service and changes of the screen, each of which a person could make.

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
            self._caption("")

    async def play(self) -> None:
        """The whole act; returns early once it is taken over.

        Raises:
            VtopError: a step failed; what it says is shown like any other error.
        """
        try:
            await self._act()
        except _TakenOver:
            return
        finally:
            self._caption("")

    async def _act(self) -> None:
        from vtop.ui.screens.compare import CompareScreen
        from vtop.ui.screens.load import LoadScreen

        service = self.app.service
        await self._say("vtop starts, watches and measures vLLM servers. This one, and its GPU, are simulated.")
        name = FIRST
        if self._state(name) is not ServerState.READY:
            self._caption(f"s starts a server from a preset: here `{FIRST}`, with the phases of its start-up.")
            name = await service.start_server(FIRST)
        self.app.view.server = name
        await self._until(lambda: self._state(name) in (ServerState.READY, ServerState.FAILED))
        if self._state(name) is ServerState.FAILED:
            return
        await self._say("Ready: it has answered a real request. Now a load test, which is the key l.")
        await service.start_load(self._load_request(name))
        self.app.open_page(LoadScreen())
        await self._say(
            "Every finished request is a dot. A process of its own sends the load: drawing costs it nothing."
        )
        await self._say("At the left the client's numbers; at the bottom the server's own, of the same time.")
        self.app.deeds.do_back()
        self._caption("While it runs: the line with the arrow says what bounds this server, and what would help.")
        await self._until(lambda: not self.app.load_running())
        self.app.open_page(LoadScreen())
        await self._say("Done. enter opens the whole result with its distributions; it is saved under r, Runs.")
        self.app.deeds.do_back()
        self._caption("Does an optimization help on this card? Each preset is started, loaded and stopped in turn.")
        await service.stop_server(name)
        request = CompareRequest(
            COMPARED, WORKLOAD, repeats=2, simulated=service.simulated, requests=32, concurrency=16
        )
        await service.start_compare(request)
        self.app.open_page(CompareScreen(COMPARED))
        await self._until(lambda: not self.app.compare_running())
        best = self._best()
        if best:
            await self._say(best)
        await self._say(
            "That is all: s, l and c do the same on a real GPU. Next: `vtop replay demo`, a real vLLM under load."
        )

    def _load_request(self, name: str) -> LoadRequest:
        view = self._view(name)
        assert view is not None
        status = view.status
        model = status.model or (view.engine.model_name if view.engine else "")
        return LoadRequest(url=status.url, model=model, server=name, simulated=status.simulated, requests=LOAD_REQUESTS)

    def _best(self) -> str:
        progress = self.app.service.compare_progress()
        rows = [row for row in progress.rows if row.ratio] if progress else []
        if not rows:
            return ""
        best = max(rows, key=lambda row: row.ratio or 0.0)
        gain = f"{best.preset}: {units.rate(best.output_tokens_per_s, 'tok/s')}, {best.ratio:.2f}x the first"
        return f"{gain}, {best.verdict}. A verdict needs repeats; without them there is none."

    # Waiting.

    def _view(self, name: str) -> ServerView | None:
        return next((view for view in self.app.snapshot.servers if view.status.name == name), None)

    def _state(self, name: str) -> ServerState | None:
        view = self._view(name)
        return view.status.state if view else None

    def _caption(self, text: str) -> None:
        self.app.view.demo_caption = "" if self.taken_over else text
        self.app.paint_soon()

    async def _say(self, text: str) -> None:
        self._caption(text)
        end = time.monotonic() + self.pace_s
        await self._until(lambda: time.monotonic() >= end)

    async def _until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not done():
            if self.taken_over:
                raise _TakenOver
            if time.monotonic() > end:
                self.app.notify("the demonstration waited too long for this step", severity="warning", markup=False)
                raise _TakenOver
            await asyncio.sleep(min(POLL_S, self.pace_s))
        if self.taken_over:
            raise _TakenOver


class _TakenOver(Exception):
    """The person pressed a key."""
