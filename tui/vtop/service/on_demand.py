"""The facade for the dashboard: its first frame is drawn before the facade and all that it puts together are imported.

That import is more than a third of the way to the first frame. It happens beside the screen once the screen stands,
or at once where something is asked that only the facade can answer.
"""

from __future__ import annotations

import asyncio
import importlib
import platform
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from vtop.clock import Clock, SystemClock
from vtop.contract import Service
from vtop.service.options import ServiceOptions
from vtop.telemetry.history import HistoryStore
from vtop.telemetry.snapshot import GpuStatus, HostReading, Snapshot

if TYPE_CHECKING:
    from vtop.load.progress import LoadProgress
    from vtop.results.comparison import CompareProgress
    from vtop.service.facade import VtopService

_FACADE = "vtop.service.facade"


def service_on_demand(options: ServiceOptions, clock: Clock | None = None) -> Service:
    """A facade with these options, which is not imported yet."""
    # The rest of the protocol is the facade's own, by `__getattr__`, which types do not see.
    return cast(Service, _OnDemand(options, clock or SystemClock()))


class _OnDemand:
    """Answers what a first frame asks; everything else is the facade's answer."""

    playback = None
    """It is no recording."""

    def __init__(self, options: ServiceOptions, clock: Clock) -> None:
        self.readonly = options.readonly
        self.simulated = options.simulated
        self._options = options
        self._clock = clock
        self._facade: VtopService | None = None
        self._subscribers: dict[object, Callable[[Snapshot], None]] = {}
        self._unsubscribe: dict[object, Callable[[], None]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._there(), name)

    def _there(self) -> VtopService:
        if self._facade is None:
            facade: VtopService = importlib.import_module(_FACADE).VtopService(self._options, clock=self._clock)
            self._facade = facade
            self._unsubscribe = {token: facade.subscribe(call) for token, call in self._subscribers.items()}
            self._subscribers.clear()
        return self._facade

    async def open(self) -> None:
        """See `contract.Service`."""
        # In a thread, so that keys are answered meanwhile.
        await asyncio.to_thread(importlib.import_module, _FACADE)
        await self._there().open()

    async def close(self) -> None:
        """See `contract.Service`."""
        if self._facade is not None:
            await self._facade.close()

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """See `contract.Service`."""
        if self._facade is not None:
            return self._facade.subscribe(callback)
        token = object()
        self._subscribers[token] = callback
        callback(self.snapshot())

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)
            if (end := self._unsubscribe.pop(token, None)) is not None:
                end()

        return unsubscribe

    def snapshot(self) -> Snapshot:
        """See `contract.Service`."""
        if self._facade is not None:
            return self._facade.snapshot()
        return Snapshot(
            sequence=0,
            at_s=self._clock.monotonic(),
            at_wall_s=self._clock.wall(),
            window_s=self._options.window_s,
            host=HostReading(platform.node()),
            gpu_status=GpuStatus(False, "looking for GPUs", simulated=self.simulated),
            gpus=(),
            servers=(),
            history=HistoryStore(),
            simulated=self.simulated,
        )

    def set_window(self, seconds: float) -> None:
        """See `contract.Service`."""
        self._options = replace(self._options, window_s=seconds)
        if self._facade is not None:
            self._facade.set_window(seconds)

    def load_progress(self) -> LoadProgress | None:
        """See `contract.Service`."""
        return self._facade.load_progress() if self._facade is not None else None

    def compare_progress(self) -> CompareProgress | None:
        """See `contract.Service`."""
        return self._facade.compare_progress() if self._facade is not None else None
