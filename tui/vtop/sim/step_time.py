"""How long a simulated step takes: the roofline's time at practical shares of the peaks, plus what no roofline knows.

None of these constants is fitted to a wanted result; each is a round figure from the middle of what is measured on
real kernels, with its reason beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from vtop.hardware import Card
from vtop.roofline import Pass, Setup, StepCost, decode_cost, step_cost, step_time
from vtop.sim.speculation import SpeculationPlan

BANDWIDTH_SHARE = 0.85
"""Of the DRAM's rated bandwidth: refresh and row changes leave about 92 % to a plain copy, and kernels that stream
weights for a small batch reach 80 to 92 %."""

COMPUTE_SHARE = 0.75
"""Of the dense tensor peak: large 16-bit matrix products reach 65 to 85 % under the power limit."""

STEP_OVERHEAD_S = 0.0006
"""Sampling, input preparation and launching captured graphs; asynchronous scheduling hides most of the rest."""

REQUEST_OVERHEAD_S = 5e-6
"""A request's own share of a step: sampler rows, detokenizing, output queues."""

EAGER_LAYER_S = 60e-6
"""Launching some twelve kernels of a layer one by one at about 5 µs each, when CUDA graphs are off."""

SYNCHRONOUS_OVERHEAD_S = 0.0009
"""N-gram look-up runs on the CPU between two steps and switches asynchronous scheduling off."""

ALL_REDUCE_LATENCY_S = 8e-6
"""Start-up time of one small all-reduce inside a node; two a layer with tensor parallelism."""


@dataclass(frozen=True, slots=True)
class StepSpan:
    """The time of one step and what each GPU does in it."""

    seconds: float
    cost: StepCost
    draft_bytes: float
    draft_flops: float
    memory_s: float
    """Time the DRAM needs for the traffic at its full rated speed."""
    compute_s: float
    busy_s: float
    """Time in which kernels run."""

    @property
    def bytes(self) -> float:
        """DRAM traffic of target and draft."""
        return self.cost.bytes + self.draft_bytes

    @property
    def flops(self) -> float:
        """Arithmetic of target and draft."""
        return self.cost.flops + self.draft_flops


@dataclass(frozen=True, slots=True)
class StepClock:
    """Works out step times for one model on one card."""

    setup: Setup
    card: Card
    eager: bool = False
    speculation: SpeculationPlan | None = None

    def span(self, work: Pass, requests: int) -> StepSpan:
        """The time of a pass over `work` in which `requests` requests take part."""
        cost = step_cost(self.setup, work)
        busy, memory, compute = self._kernel_time(self.setup, cost)
        overhead = STEP_OVERHEAD_S + requests * REQUEST_OVERHEAD_S
        draft_bytes = draft_flops = 0.0
        plan = self.speculation
        if plan is not None and plan.looks_up:
            overhead += SYNCHRONOUS_OVERHEAD_S
        elif plan is not None and plan.draft is not None:
            for draft_cost, times in self._draft_costs(plan, plan.draft, work, requests):
                each, draft_memory, draft_compute = self._kernel_time(plan.draft, draft_cost)
                busy += each * times
                memory += draft_memory * times
                compute += draft_compute * times
                draft_bytes += draft_cost.bytes * times
                draft_flops += draft_cost.flops * times
        return StepSpan(busy + overhead, cost, draft_bytes, draft_flops, memory, compute, busy)

    def _kernel_time(self, setup: Setup, cost: StepCost) -> tuple[float, float, float]:
        """Kernel time, and the memory and arithmetic parts of it at full peak."""
        floor = step_time(setup, self.card, cost)
        if floor is None:
            raise ValueError(f"the peaks of {self.card.name} are not known")
        kernels = max(floor.memory_s / BANDWIDTH_SHARE, floor.compute_s / COMPUTE_SHARE)
        layers = setup.shape.layers / setup.pipeline_parallel
        if self.eager:
            kernels = max(kernels, layers * EAGER_LAYER_S)
        if setup.tensor_parallel > 1:
            kernels += floor.link_s + 2 * layers * ALL_REDUCE_LATENCY_S
        return kernels * setup.pipeline_parallel, floor.memory_s, floor.compute_s

    def _draft_costs(
        self, plan: SpeculationPlan, draft: Setup, work: Pass, requests: int
    ) -> list[tuple[StepCost, int]]:
        """The drafter first follows the tokens of the step, then guesses one token a pass (Medusa: all in one)."""
        passes = [(step_cost(draft, work), 1)]
        more = 0 if plan.method == "medusa" else plan.tokens - 1
        if more and requests:
            passes.append((decode_cost(draft, requests, work.read / requests), more))
        return passes
