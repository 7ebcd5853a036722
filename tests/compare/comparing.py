"""A machine with pretended servers, for tests of the comparison's own work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from results.making_runs import a_run
from vtop.clock import FakeClock
from vtop.compare.runner import CompareRunner
from vtop.errors import VtopError
from vtop.load.progress import LoadProgress, LoadRequest, LoadResult
from vtop.results.comparison import CompareProgress, ConfigurationFacts
from vtop.servers.status import StopReport

SPEED = {"A": 100.0, "B": 150.0, "C": 148.0}


@dataclass
class Machine:
    """Servers by name; each preset answers with its own speed."""

    runs_dir: Path
    clock: FakeClock = field(default_factory=FakeClock)
    up: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    loads: list[LoadRequest] = field(default_factory=list)
    broken_starts: Mapping[str, str] = field(default_factory=dict)
    broken_loads: set[int] = field(default_factory=set)
    """Numbers of loads (from 1) that fail."""
    pause_in_load: int | None = None
    """Number of the load that never ends by itself."""
    pause_in_start: str | None = None
    stays: bool = False
    """Stops leave something behind."""
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[CompareProgress] = field(default_factory=list)

    def runner(self, **changes: object) -> CompareRunner:
        """A runner that drives this machine."""
        return CompareRunner(
            start_server=self.start,
            wait_ready=self.ready,
            stop_server=self.stop,
            run_load=self.load,
            describe=self.describe,
            clock=self.clock,
            runs_dir=self.runs_dir,
            on_progress=self.seen.append,
            **changes,  # type: ignore[arg-type]
        )

    async def start(self, preset: str, overrides: Mapping[str, str], name: str) -> str:
        self.log.append(f"start {preset}")
        self.up[name] = preset
        if self.pause_in_start == preset:
            self.paused.set()
            await asyncio.Event().wait()
        return name

    async def ready(self, name: str) -> None:
        preset = self.up[name]
        self.clock.advance(30)
        if preset in self.broken_starts:
            raise VtopError(self.broken_starts[preset], "Change it.")
        self.log.append(f"ready {preset}")

    async def stop(self, name: str) -> StopReport:
        preset = self.up.get(name)
        if preset is None:
            return StopReport(name, stopped=True, seconds=0)
        await asyncio.sleep(0)
        if self.stays:
            return StopReport(name, stopped=False, seconds=15, left=("pid 99 holds 20 GiB",))
        del self.up[name]
        self.log.append(f"stop {preset}")
        self.clock.advance(2)
        return StopReport(name, stopped=True, seconds=2)

    async def load(self, request: LoadRequest, follow: Callable[[LoadProgress], None]) -> LoadResult:
        assert request.server is not None
        preset = self.up[request.server]
        self.loads.append(request)
        number = len(self.loads)
        self.log.append(f"load {preset}")
        follow(LoadProgress("x", request, "warming-up"))
        follow(LoadProgress("x", request, "running", total=200, finished=50, output_tokens_per_s=90.0))
        if self.pause_in_load == number:
            self.paused.set()
            await asyncio.Event().wait()
        if number in self.broken_loads:
            raise VtopError("the server stopped answering", "Look at its log.")
        self.clock.advance(10)
        noise = 1 + (number * 7919 % 11 - 5) / 1000
        result = a_run(SPEED[preset] * noise, seed=request.seed)
        return replace(result, request=replace(result.request, warmup=request.warmup), simulated=request.simulated)

    async def describe(self, preset: str, name: str) -> ConfigurationFacts:
        return ConfigurationFacts(kv_capacity_tokens=1000.0)
