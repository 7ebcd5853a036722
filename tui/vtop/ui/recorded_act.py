"""The second act of `vtop demo`: a recording of a real vLLM, with captions that follow what it shows."""

from __future__ import annotations

from vtop import units
from vtop.servers.status import ServerState
from vtop.ui.act import Act
from vtop.ui.words import latency_mean

GONE = (ServerState.STOPPING, ServerState.STOPPED, None)
"""States after which nothing more happens in a recording."""


class RecordedAct(Act):
    """Plays the recording that the application was given; nothing in it can be started or stopped."""

    async def course(self) -> None:
        """From its start to its stop."""
        await self.say(
            "Second act: a RECORDING of a real vLLM, on a machine without a GPU. Nothing of it is simulated."
        )
        if not self.app.play_recording():
            return
        await self.until(lambda: self.state() is not None)
        await self.say("A start as it really goes: these phases are read from the log of the server.")
        self.caption(
            "There is no GPU in this machine, so there is no bandwidth to show: what is not known is never drawn as 0."
        )
        await self.until(lambda: self.state() is not ServerState.STARTING)
        if self.state() is ServerState.READY:
            self.caption("Ready: it has answered a real request. In a moment a load test begins.")
            await self.until(lambda: self._loaded() or self.state() in GONE)
        if self._loaded():
            await self.say(
                "Load: the numbers are the server's own, from its /metrics page, over the window at the top right."
            )
            await self.until(self._told_until_gone)
        await self.say(
            "The server stops, and with it ends the recording. The next vtop would have found it, had it gone on."
        )
        await self.say(
            "v goes back to the simulated demo, and v plays this again. `vtop --record FILE` makes your own."
        )

    def _told_until_gone(self) -> bool:
        if self.state() in GONE:
            return True
        numbers = self._numbers()
        if numbers != self.app.view.demo_caption:
            self.caption(numbers)
        return False

    def _loaded(self) -> bool:
        view = self.view()
        engine = view.engine if view else None
        return engine is not None and bool(engine.generation_tokens_per_s)

    def _numbers(self) -> str:
        view = self.view()
        engine = view.engine if view else None
        if engine is None:
            return ""
        return (
            f"A small model on a CPU: {units.rate(engine.generation_tokens_per_s, 'tok/s')}, TTFT mean "
            f"{latency_mean(engine.ttft)}, TPOT mean {latency_mean(engine.tpot)}."
        )
