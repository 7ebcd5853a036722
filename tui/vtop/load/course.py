"""Which stages a load test runs, one after the other: one alone, a ladder, a search, or a rate that is found first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from vtop import units
from vtop.errors import UsageError, VtopError
from vtop.load import outcome
from vtop.load.ladder import Ladder
from vtop.load.outcome import Measured
from vtop.load.progress import LoadRequest, LoadStep
from vtop.load.search import RateSearch
from vtop.load.stats import RequestRecord
from vtop.load.workload import Shape, find_workload

PROBE_S = 10.0
"""How long a closed loop runs at most to find the rate that an open one takes a share of."""
SEARCH_RUN_S = 20.0

RunStage = Callable[[Shape, str], Awaitable[Measured]]
"""Runs one stage under a name for the screen."""


class Course:
    """One load test's stages."""

    def __init__(
        self, request: LoadRequest, shape: Shape, run_stage: RunStage, on_step: Callable[[LoadStep], None]
    ) -> None:
        self._request = request
        self._shape = shape
        self._run_stage = run_stage
        self._on_step = on_step
        self._workload = find_workload(shape.workload)
        self._sent = 0
        self.kind = "search" if request.search else "ladder" if self._workload.ladder else "load"
        self.notes: list[str] = []
        self.stopped = False
        """No further stage begins."""

    def check(self) -> None:
        """Refuses a course that cannot be run, before anything is sent.

        Raises:
            UsageError: a search without limits or with a number of requests, or a timed trace where vtop is to choose
                the times.
        """
        request = self._request
        limits = (request.slo_ttft_s, request.slo_tpot_s, request.slo_e2e_s)
        if request.search and all(limit is None for limit in limits):
            raise UsageError("a search needs limits to hold", "Give --slo-ttft or --slo-tpot, in seconds.")
        if request.search and request.requests is not None:
            raise UsageError(
                "a search sends each rate for a time, so a number of requests has no place in it",
                "Leave -n out; --duration says how long each rate is sent.",
            )
        if self._shape.trace and (request.search or self._workload.ladder or self._workload.rate_share is not None):
            what = "search" if request.search else self._workload.name
            raise UsageError(
                f"the times of the trace say when requests leave, so a {what} has nothing to choose",
                "Leave the timestamps out of the file, or run it as it is: vtop load --file FILE.",
            )

    async def run(self) -> Measured:
        """Runs the stages; the one that the result is about.

        Raises:
            VtopError: no request succeeded, or it was stopped before its first stage ended.
        """
        measured = await self._all()
        if self.stopped:
            measured.complete = False
        return measured

    async def _all(self) -> Measured:
        if self._request.search:
            return await self._search()
        if self._workload.ladder:
            return await self._climb()
        shape = self._shape
        if self._workload.rate_share is not None and shape.rate is None:
            rate = self._workload.rate_share * await self._probe()
            return await self._stage(
                replace(shape, rate=rate, concurrency=None), f"{units.significant(rate)} requests/s"
            )
        return await self._stage(shape, "")

    async def _stage(self, shape: Shape, phase: str) -> Measured:
        measured = await self._run_stage(replace(shape, skip=self._sent), phase)
        self._sent += 1 + max((record.place for record in measured.records), default=-1)
        if shape.file_prompts and self._sent > shape.file_prompts and not self.notes:
            self.notes.append(
                f"the file's {shape.file_prompts:,} prompts were too few for all steps: some were sent again, "
                "and the prefix cache may have known them"
            )
        return measured

    async def _probe(self) -> float:
        """Requests a second that a closed loop gets.

        Raises:
            VtopError: no request succeeded.
        """
        shape = self._shape
        measured = await self._stage(
            replace(
                shape,
                rate=None,
                requests=None,
                duration_s=min(PROBE_S, shape.duration_s or PROBE_S),
                concurrency=shape.concurrency or 16,
            ),
            "finding the rate",
        )
        step = outcome.step_of(measured, self._request)
        if not step.requests_per_s:
            raise VtopError("no request succeeded while the rate was sought", _first_words(measured.records))
        return step.requests_per_s

    async def _climb(self) -> Measured:
        shape = self._shape
        ladder = Ladder(shape.concurrency or 128)
        stages: list[Measured] = []
        while not self.stopped:
            concurrency = ladder.next()
            if concurrency is None:
                break
            step = replace(
                shape,
                concurrency=concurrency,
                # The shape has as many as the file holds; a step has as many as were asked for, else it ends by time.
                requests=self._request.requests if shape.file_prompts else shape.requests,
                warmup=min(shape.warmup, concurrency),
            )
            measured = await self._stage(step, f"{concurrency} at once")
            stages.append(measured)
            if not measured.complete:
                break
            ladder.add(outcome.step_of(measured, self._request))
            self._on_step(ladder.steps[-1])
        if not stages:
            raise VtopError("the ladder was stopped before its first step ended", "")
        if ladder.ended_because:
            self.notes.append(f"the ladder ended: {ladder.ended_because}")
        best = ladder.best()
        return stages[-1 if best is None else best]

    async def _search(self) -> Measured:
        shape = self._shape
        seconds = shape.duration_s or SEARCH_RUN_S
        search = RateSearch(shape.rate or 0.7 * await self._probe())
        best: Measured | None = None
        last: Measured | None = None
        while not self.stopped:
            rate = search.next()
            if rate is None:
                break
            step = replace(shape, rate=rate, requests=None, duration_s=seconds, concurrency=None)
            last = await self._stage(step, f"{units.significant(rate)} requests/s")
            if not last.complete:
                break
            search.add(outcome.step_of(last, self._request))
            self._on_step(search.steps[-1])
            if search.steps[-1].holds and rate == search.holds:
                best = last
        self.notes.append(f"search: {search.verdict()}")
        chosen = best or last
        if chosen is None:
            raise VtopError("the search was stopped before its first run ended", "")
        return chosen


def _first_words(records: Sequence[RequestRecord]) -> str:
    for record in records:
        if record.detail:
            return f"The server said: {record.detail}"
    return "Check the server's log."
