"""The first act of `vtop demo`: it plays by itself, with captions, until a key is pressed."""

from __future__ import annotations

from vtop import units
from vtop.load.progress import LoadRequest
from vtop.results.comparison import CompareRequest
from vtop.servers.status import ServerState
from vtop.ui.act import Act

FIRST = "baseline"
"""The preset that is started and loaded."""

COMPARED = ("baseline", "prefix-caching")
"""What is compared then."""

WORKLOAD = "prefix"
"""A load on which prefix caching can show something."""

LOAD_REQUESTS = 160
"""Enough for the captions to be read while the test runs."""


class Demo(Act):
    """Starts a simulated server, loads it, and compares an optimization with doing without."""

    async def course(self) -> None:
        """Start, load test, comparison."""
        from vtop.ui.screens.compare import CompareScreen
        from vtop.ui.screens.load import LoadScreen

        service = self.app.service
        await self.say("vtop starts, watches and measures vLLM servers. This one, and its GPU, are simulated.")
        name = FIRST
        if self.state(name) is not ServerState.READY:
            self.caption(f"s starts a server from a preset: here `{FIRST}`, with the phases of its start-up.")
            name = await service.start_server(FIRST)
        self.app.view.server = name
        await self.until(lambda: self.state(name) in (ServerState.READY, ServerState.FAILED))
        if self.state(name) is ServerState.FAILED:
            return
        await self.say("Ready: it has answered a real request. Now a load test, which is the key l.")
        await service.start_load(self._load_request(name))
        self.app.open_page(LoadScreen())
        await self.say(
            "Every finished request is a dot. A process of its own sends the load: drawing costs it nothing."
        )
        await self.say("At the left the client's numbers; at the bottom the server's own, of the same time.")
        self.app.deeds.do_back()
        self.caption("While it runs: the line with the arrow says what bounds this server, and what would help.")
        await self.until(lambda: not self.app.load_running())
        self.app.open_page(LoadScreen())
        await self.say("Done. enter opens the whole result with its distributions; it is saved under r, Runs.")
        self.app.deeds.do_back()
        self.caption("Does an optimization help on this card? Each preset is started, loaded and stopped in turn.")
        await service.stop_server(name)
        request = CompareRequest(
            COMPARED, WORKLOAD, repeats=2, simulated=service.simulated, requests=32, concurrency=16
        )
        await service.start_compare(request)
        self.app.open_page(CompareScreen(COMPARED))
        await self.until(lambda: not self.app.compare_running())
        best = self._best()
        if best:
            await self.say(best)
        await self.say("That is all of the first act: s, l and c do the same on a real GPU.")

    def _load_request(self, name: str) -> LoadRequest:
        view = self.view(name)
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
