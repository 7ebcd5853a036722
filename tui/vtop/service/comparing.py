"""Comparisons over the facade: each step starts, loads and stops a real server through the same doors as a person."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx

from vtop.compare.record import last_times_s, load_record
from vtop.compare.runner import CompareRunner
from vtop.errors import VtopError
from vtop.fit import fit
from vtop.hardware import Card, find_card
from vtop.load.progress import LoadProgress, LoadRequest, LoadResult
from vtop.presets import ServerSpec
from vtop.results import store
from vtop.results.comparability import SIMULATION_LATE_S
from vtop.results.comparison import CompareProgress, CompareRequest, ConfigurationFacts
from vtop.servers.status import StopReport
from vtop.service.measuring import COMPARISON, Claim
from vtop.service.picturing import picture_of
from vtop.service.predicting import check_load, floor_times, speculation_step_cost

if TYPE_CHECKING:
    from vtop.service.facade import VtopService

READY_WITHIN_S = 1800.0
SIMULATED_START_S = "1.0"


class Comparisons:
    """One comparison at a time."""

    def __init__(self, service: VtopService) -> None:
        self._service = service
        self._runner: CompareRunner | None = None
        self._request: CompareRequest | None = None
        self._ending: asyncio.Future[None] | None = None
        self._releasing: asyncio.Task[None] | None = None

    def _make(self, request: CompareRequest) -> CompareRunner:
        self._request = request
        starts, loads = last_times_s(request)
        return CompareRunner(
            start_server=self._start,
            wait_ready=self._wait,
            stop_server=self._stop,
            run_load=self._load,
            describe=self._describe,
            observe=lambda label, server, facts: picture_of(label, server, self._service.snapshot(), facts),
            last_starts_s=starts,
            last_loads_s=loads,
        )

    async def _check(self, request: CompareRequest) -> None:
        """Names, overrides, load and card are checked before anything is started."""
        for preset in request.presets:
            self._service.launcher.preset(preset, request.overrides)
        await asyncio.to_thread(check_load, request)
        if (request.simulated or self._service.simulated) and request.gpu:
            from vtop.sim.machine import find_machine_card

            find_machine_card(request.gpu)

    async def plan(self, request: CompareRequest) -> CompareProgress:
        """The steps and their time."""
        await self._check(request)
        return (await asyncio.to_thread(self._make, request)).plan(request)

    async def start(self, request: CompareRequest) -> str:
        """Begins."""
        self._must_be_idle()
        await self._check(request)
        return await self._run(request, lambda runner: runner.start(request))

    async def resume(self, run_id: str) -> str:
        """Goes on with one that was cut."""
        self._must_be_idle()
        directory = store.run_directory(run_id)
        record = load_record(directory)
        request = record.request
        if any(step.state not in ("done", "failed") for step in record.steps):
            # A run that cannot be made any more would count as failed, and could not be gone on with.
            await self._check(request)
        return await self._run(request, lambda runner: runner.resume(directory))

    async def _run(self, request: CompareRequest, begin: Callable[[CompareRunner], str]) -> str:
        """Begins, with everything that will be measured claimed until the end."""
        claim = await asyncio.to_thread(
            self._service.measurements.claim, COMPARISON, ", ".join(request.presets), gpus=self._gpus(request)
        )
        try:
            runner = await asyncio.to_thread(self._make, request)
            run_id = begin(runner)
        except BaseException:
            claim.release()
            raise
        self._runner = runner
        self._releasing = asyncio.create_task(_release_after(runner, claim))
        return run_id

    def _gpus(self, request: CompareRequest) -> list[str] | None:
        """UUIDs of the GPUs that its servers will use; None where that is decided at each start, or it is the CPU."""
        frame = None if request.simulated or self._service.simulated else self._service.launcher.gpu_frame()
        by_index = {gpu.index: gpu.uuid for gpu in frame.gpus} if frame is not None else {}
        found: list[str] = []
        for name in request.presets:
            wanted = self._service.launcher.preset(name, request.overrides).server.gpus
            if not isinstance(wanted, list) or not by_index:
                return None
            found += [by_index.get(gpu, "") if isinstance(gpu, int) else gpu for gpu in wanted]
        return found if all(found) else None

    @property
    def running(self) -> bool:
        """Whether one is on."""
        return self._runner is not None and self._runner.running

    def _must_be_idle(self) -> None:
        if self.running:
            raise VtopError("a comparison is running already", "Wait for its end, or stop it.")
        if self._service.load_running:
            raise VtopError("a load test is running", "Wait for its end, or stop it: both would measure each other.")

    def progress(self) -> CompareProgress | None:
        """The running or last one."""
        return self._runner.progress() if self._runner is not None else None

    async def wait(self) -> CompareProgress:
        """Its end.

        Raises:
            VtopError: none was started.
        """
        found = await self._runner.wait() if self._runner is not None else None
        if found is None:
            raise VtopError("no comparison was started")
        return found

    async def stop(self) -> None:
        """Ends it; its server is stopped."""
        if self._runner is not None:
            await self._runner.stop()

    async def close(self) -> None:
        """Ends it without waiting: the next vtop finds the server and the record, and can go on."""
        if self._runner is not None and self.running:
            self._ending = asyncio.ensure_future(self._runner.stop())

    # What the runner drives

    async def _start(self, preset: str, overrides: Mapping[str, str], name: str) -> str:
        request = self._request
        assert request is not None
        choices: dict[str, Any] = {"gpu": request.gpu} if request.gpu else {}
        if request.simulated:
            choices["simulated"] = True
            # Nobody learns from waiting for a start that is not real, and its port is of no concern: a free one is in
            # nobody's way. A person's own wish still wins.
            overrides = {"port": "auto", "args.startup-s": SIMULATED_START_S, **overrides}
        return await self._service.start_server(preset, overrides, name, **choices)

    async def _wait(self, name: str) -> None:
        await self._service.supervisor.wait_ready(name, READY_WITHIN_S)

    async def _stop(self, name: str) -> StopReport:
        if all(status.name != name for status in self._service.supervisor.statuses()):
            return StopReport(name, True, 0.0)
        report = await self._service.supervisor.stop(name)
        if report.stopped:
            await self._service.supervisor.forget(name)
        return report

    async def _load(self, request: LoadRequest, follow: Callable[[LoadProgress], None]) -> LoadResult:
        unfollow = self._service.follow_load(follow)
        aimed = self._service.aim(request)
        late_before_s = await simulation_late_s(aimed.url) if aimed.simulated else None
        try:
            await self._service.start_aimed_load(aimed)
            result = await self._service.wait_load()
            if late_before_s is None or (late_s := await simulation_late_s(aimed.url)) is None:
                return result
            return replace(result, server={**result.server, SIMULATION_LATE_S: late_s - late_before_s})
        except asyncio.CancelledError:
            await self._service.stop_load()
            raise
        finally:
            unfollow()

    async def _describe(self, preset: str, server: str) -> ConfigurationFacts:
        request = self._request
        assert request is not None
        chosen = self._service.launcher.preset(preset, request.overrides)
        spec = chosen.server
        card = self._card(request)
        capacity = None
        for view in self._service.snapshot().servers:
            if view.status.name == server and view.engine is not None:
                capacity = view.engine.kv_capacity_tokens
        return ConfigurationFacts(
            model=spec.model,
            prefix_caching=spec.prefix_caching,
            speculative=spec.speculative is not None,
            optimization=chosen.optimization,
            kv_capacity_tokens=capacity,
            weights_bytes=_weights(spec, card),
            floor=floor_times(spec, card, request),
            drafted_per_step=spec.speculative.num_tokens if spec.speculative is not None else None,
            step_cost=speculation_step_cost(spec, card, request),
            command=self._service.command_of(server),
            compare_with=chosen.compare_with,
        )

    def _card(self, request: CompareRequest) -> Card | None:
        if request.simulated or self._service.simulated:
            return find_card(request.gpu or self._service.options.gpu)
        return self._service.launcher.card()


async def simulation_late_s(url: str) -> float | None:
    """Time by which the host has held a simulated server up so far; None where that is not said."""
    try:
        async with httpx.AsyncClient(timeout=2.0) as client:
            page = (await client.get(f"{url.rstrip('/')}/vtop/sim/gpu")).json()
        return max(float(engine["late_s"]) for engine in page["engines"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


async def _release_after(runner: CompareRunner, claim: Claim) -> None:
    try:
        await runner.wait()
    finally:
        claim.release()


def _weights(spec: ServerSpec, card: Card | None) -> float | None:
    if card is None:
        return None
    try:
        return fit(None, spec, card).weights_bytes
    except VtopError:
        return None
