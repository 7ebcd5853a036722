"""The simulated engine: takes requests, runs steps at the pace of the simulated GPU, counts what happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vtop.roofline import kv_bytes_per_token, kv_transfer_s
from vtop.sim.gpu import GpuLoad
from vtop.sim.kv_cache import BlockPool
from vtop.sim.language import Continuation, repetition
from vtop.sim.machine import Machine
from vtop.sim.metrics import EngineMetrics
from vtop.sim.scheduler import Outcome, Request, Scheduler, Step
from vtop.sim.step_time import StepClock
from vtop.sim.vocabulary import Vocabulary

MOST_LAG_S = 0.1
"""A simulator that the host holds up longer than this starts its clock again instead of catching up in a burst."""


class Engine:
    """One data-parallel rank."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary, load: GpuLoad) -> None:
        self.machine = machine
        self.vocabulary = vocabulary
        self.load = load
        self.frozen = False
        """Takes requests and never runs a step (a fault)."""
        self.late_s = 0.0
        """Time by which the host could not keep up."""
        self._speed = machine.options.speed
        self._clock = StepClock(machine.setup, machine.card, machine.options.enforce_eager, machine.speculation)
        self._wake = asyncio.Event()
        self._serial = 0
        self.reset()

    def reset(self) -> None:
        """Empty queues, empty cache, counters at zero."""
        machine = self.machine
        self.scheduler = Scheduler(
            machine.limits,
            BlockPool(machine.kv_blocks, machine.options.enable_prefix_caching),
            machine.setup.shape.sliding_window,
            machine.speculation,
        )
        drafted = machine.speculation.tokens if machine.speculation else 0
        self.metrics = EngineMetrics(machine.limits.max_model_len, drafted)

    def submit(
        self,
        prompt: list[int],
        text: str,
        deliver: Callable[[list[int], str | None], None],
        *,
        max_tokens: int,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        seed: int = 0,
        transferred_tokens: int = 0,
        want_transfer: bool = False,
        params_n: int = 1,
    ) -> Request:
        """Queues a request; its tokens come through `deliver`, step by step."""
        now = time.monotonic()
        tokens = list(prompt)
        self._serial += 1
        request = Request(
            request_id=f"sim-{self._serial}",
            tokens=tokens,
            prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            language=Continuation(tokens, repetition(prompt, text), seed),
            arrived_s=now,
            deliver=deliver,
            want_transfer=want_transfer,
            params_n=params_n,
        )
        if transferred_tokens:
            seconds = kv_transfer_s(self.machine.setup, self.machine.card, transferred_tokens)
            request.transferred_tokens = transferred_tokens
            request.ready_at_s = now + seconds / self._speed
            moved = kv_bytes_per_token(self.machine.setup) * self.machine.setup.gpus * transferred_tokens
            self.metrics.transfers["nixl_xfer_time_seconds"].observe(seconds)
            self.metrics.transfers["nixl_bytes_transferred"].observe(moved)
            self.metrics.external_queries += len(prompt)
            self.metrics.external_hits += transferred_tokens
        self.scheduler.add(request)
        self._gauges(now)
        self._wake.set()
        return request

    def abort(self, request: Request) -> None:
        """Ends a request whose client is gone."""
        if self.scheduler.abort(request):
            self.metrics.finished["abort"] += 1
            self._gauges(time.monotonic())

    def abort_all(self, reason: str = "abort") -> None:
        """Ends every request; its client is told the reason."""
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            self.abort(request)
            request.deliver([], reason)

    async def run(self) -> None:
        """Steps for ever; cancelled at shutdown."""
        deadline = time.monotonic()
        while True:
            if self.frozen or not self.scheduler.busy:
                self._gauges(time.monotonic())
                self._wake.clear()
                await self._wake.wait()
                deadline = time.monotonic()
                continue
            now = time.monotonic()
            step = self.scheduler.schedule(now)
            if not step.shares:
                deadline = await self._wait_for_transfer(now)
                continue
            span = self._clock.span(step.work, len(step.shares))
            lag = now - deadline
            if lag > MOST_LAG_S:
                self.late_s += lag
                deadline = now
            deadline += span.seconds / self._speed
            self.load.begin(span, now, deadline)
            self._gauges(now)
            delay = deadline - time.monotonic()
            # Giving way even when late keeps the server answering on a busy host.
            await asyncio.sleep(max(0.0, delay))
            now = time.monotonic()
            self.load.end()
            self._count(step, self.scheduler.finish_step(step, now), now)
            self._count_cost(step, span.cost.weight_bytes + span.cost.kv_read_bytes + span.draft_bytes,
                             span.cost.kv_write_bytes, span.flops)  # fmt: skip

    async def _wait_for_transfer(self, now: float) -> float:
        """Nothing can run: wait for KV on its way, or for something to change."""
        self._gauges(now)
        self._wake.clear()
        arrival = self.scheduler.next_arrival_s()
        timeout = max(0.0005, arrival - now) if arrival is not None else 0.05
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout)
        return time.monotonic()

    def _gauges(self, now: float) -> None:
        scheduler, metrics = self.scheduler, self.metrics
        metrics.running = len(scheduler.running)
        metrics.waiting_deferred = scheduler.deferred(now) if self.machine.options.kv_role == "decode" else 0
        metrics.waiting_capacity = len(scheduler.waiting) - metrics.waiting_deferred
        metrics.kv_usage = scheduler.pool.usage
        metrics.preemptions = scheduler.preemptions

    def _count(self, step: Step, outcomes: list[Outcome], now: float) -> None:
        metrics = self.metrics
        caching = self.scheduler.pool.caching
        for request in step.admitted:
            if caching:
                metrics.prefix_queries += request.prompt_tokens
                metrics.prefix_hits += request.cached_tokens
        generated = 0
        prompts = 0
        gaps: dict[float, int] = {}
        for outcome in outcomes:
            request = outcome.request
            count = len(outcome.tokens)
            generated += count
            if outcome.first:
                prompts += request.prompt_tokens
                self._count_first(request, now)
            elif request.last_token_s is not None:
                gap = now - request.last_token_s
                gaps[gap] = gaps.get(gap, 0) + 1
            if outcome.drafted:
                metrics.drafts += 1
                metrics.draft_tokens += outcome.drafted
                metrics.accepted_tokens += outcome.accepted
                for place in range(outcome.accepted):
                    metrics.accepted_at[place] += 1
            request.last_token_s = now
            if outcome.finish_reason is not None:
                self._count_finish(request, outcome.finish_reason, now)
            request.deliver(outcome.tokens, outcome.finish_reason)
        for gap, times in gaps.items():
            metrics.observe("inter_token_latency_seconds", gap, times)
        metrics.generation_tokens += generated
        metrics.observe("iteration_tokens_total", generated + prompts)

    def _count_first(self, request: Request, now: float) -> None:
        metrics = self.metrics
        metrics.observe("time_to_first_token_seconds", now - request.arrived_s)
        metrics.prompt_tokens += request.prompt_tokens
        transferred = min(request.transferred_tokens, request.prompt_tokens)
        cached = max(0, request.cached_tokens - transferred) if transferred else request.cached_tokens
        metrics.prompt_transferred += transferred
        metrics.prompt_cached += cached
        metrics.prompt_computed += request.prompt_tokens - transferred - cached

    def _count_finish(self, request: Request, reason: str, now: float) -> None:
        observe = self.metrics.observe
        self.metrics.finished[reason] += 1
        answer = request.answer_tokens
        first = request.first_token_s if request.first_token_s is not None else now
        scheduled = request.scheduled_s if request.scheduled_s is not None else first
        observe("request_prompt_tokens", request.prompt_tokens)
        observe("request_generation_tokens", answer)
        observe("request_max_num_generation_tokens", answer)
        observe("request_params_n", request.params_n)
        observe("request_params_max_tokens", request.max_tokens)
        observe("e2e_request_latency_seconds", now - request.arrived_s)
        observe("request_queue_time_seconds", scheduled - request.arrived_s)
        observe("request_prefill_time_seconds", first - scheduled)
        observe("request_decode_time_seconds", now - first)
        observe("request_inference_time_seconds", now - scheduled)
        observe("request_num_preemptions", request.preemptions)
        observe("request_prefill_kv_computed_tokens", request.prompt_tokens - request.cached_tokens)
        if answer > 1:
            observe("request_time_per_output_token_seconds", (now - first) / (answer - 1))

    def _count_cost(self, step: Step, read: float, written: float, flops: float) -> None:
        self.metrics.read_bytes += read
        self.metrics.write_bytes += written
        self.metrics.flops += flops

    def describe(self) -> dict[str, Any]:
        """For the simulator's own page."""
        return {
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting),
            "late_s": round(self.late_s, 6),
        }
