"""What a load test is asked, how it stands, and what came out: frozen shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CONSTANT = 1e9
"""From this burstiness on arrivals are a constant rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One load test as asked for. None: the workload's own value."""

    workload: str = "demo"
    url: str = ""
    """Base address of the server, without /v1."""
    model: str = ""
    server: str | None = None
    """vtop's name of the server, where it has one."""
    api_key: str | None = None
    """A reference, `env:NAME` or `file:PATH`."""
    ca_file: str | None = None
    concurrency: int | None = None
    requests: int | None = None
    rate: float | None = None
    """Requests a second (open loop)."""
    burstiness: float | None = None
    """Shape of the gamma arrivals: 1 Poisson, `CONSTANT` (which infinity becomes) a constant rate."""
    max_tokens: int | None = None
    prompt_tokens: int | None = None
    prefix_tokens: int | None = None
    """Tokens that prompts share, where the workload has shared prefixes."""
    prefixes: int | None = None
    """How many different shared prefixes."""
    temperature: float | None = None
    ignore_eos: bool | None = None
    duration_s: float | None = None
    seed: int | None = None
    """None: fresh, and recorded."""
    warmup: int | None = None
    """Requests before the clock; None: as many as the concurrency."""
    endpoint: str | None = None
    """`chat` or `completions`."""
    file: str | None = None
    timeout_s: float | None = None
    processes: int | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    label: str = ""
    simulated: bool = False
    ramp_s: float | None = None
    """Closed loop: streams start evenly over this time; open loop: the rate rises over it."""
    choices: int | None = None
    """`n` of the API: answers per request."""
    search: bool = False
    """Find the highest rate that holds the SLOs."""
    measure_client: bool = True
    """Measure on a loopback server first what this client itself adds."""
    arrival: str | None = None
    """`burst`: every request at once (needs `requests`); None: closed loop, or by `rate`."""
    shape: str = ""
    """The load shape (a preset of `presets/load/`) that it came from; its values are in the other fields."""

    def __post_init__(self) -> None:
        """Infinity would be lost on the way to the client's process, and in every saved run: JSON has none."""
        if self.burstiness == math.inf:
            object.__setattr__(self, "burstiness", CONSTANT)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A client-side quantity over requests: linear between order statistics, as numpy's default."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class RequestPoint:
    """One finished request, for the live charts."""

    at_s: float
    """Seconds since the test's clock started."""
    ok: bool
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStep:
    """One step of a ladder or a search."""

    concurrency: int | None
    rate: float | None
    """Requests a second that were asked for; None for a closed loop."""
    requests: int
    failed: int
    output_tokens_per_s: float | None
    requests_per_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    holds: bool | None = None
    """Whether it kept the SLOs; None where there are none."""
    why: str = ""
    """Why it did not, or why the ladder ended here."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadProgress:
    """A running load test now."""

    run_id: str
    request: LoadRequest
    state: str
    """`preparing`, `warming-up`, `running`, `stopping`, `finished`, `cancelled`, `failed`."""
    concurrency: int | None = None
    total: int | None = None
    """Requests to send; None for a timed test."""
    finished: int = 0
    failed: int = 0
    in_flight: int = 0
    elapsed_s: float = 0.0
    remaining_s: float | None = None
    ttft: Percentiles = field(default_factory=lambda: Percentiles(0))
    tpot: Percentiles = field(default_factory=lambda: Percentiles(0))
    e2e: Percentiles = field(default_factory=lambda: Percentiles(0))
    output_tokens_per_s: float | None = None
    """Over the last seconds, all streams."""
    steady_tokens_per_s: float | None = None
    output_points: tuple[tuple[float, float], ...] = ()
    """(seconds since start, output tokens/s) per half second."""
    points: tuple[RequestPoint, ...] = ()
    client_overhead_s: float | None = None
    """What this client adds to TTFT, measured on a loopback mock at this concurrency."""
    client_capacity_tokens_per_s: float | None = None
    loop_lag_p99_s: float | None = None
    client_bound: bool = False
    failures: tuple[tuple[str, int], ...] = ()
    """(cause, count)."""
    message: str = ""
    phase: str = ""
    """For ladders and searches: which step is running."""
    steps: tuple[LoadStep, ...] = ()
    """Finished steps of a ladder or search."""
    started_s: float | None = None
    """When the clock of the test started, on the machine's monotonic clock."""
    warmup_done: int = 0
    """Warm-up requests answered; `remaining_s` is that of the warm-up while it goes on."""
    warmup_total: int | None = None
    """Warm-up requests to answer before the clock starts; None until the warm-up begins."""
    warmup_elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class LoadResult:
    """A finished (or cut) load test."""

    run_id: str
    directory: str
    request: LoadRequest
    complete: bool
    requests: int
    completed: int
    failed: int
    duration_s: float
    output_tokens: int
    prompt_tokens: int
    output_tokens_per_s: float | None
    steady_tokens_per_s: float | None
    requests_per_s: float | None
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    e2e: Percentiles
    goodput_per_s: float | None = None
    failures: tuple[tuple[str, int], ...] = ()
    warnings: tuple[str, ...] = ()
    """In words: client-bound, warm cache, unequal lengths, too few requests for a percentile."""
    comparable: bool = True
    not_comparable_because: str = ""
    simulated: bool = False
    server: Mapping[str, Any] = field(default_factory=dict)
    """The server's own numbers over the same window (ttft_mean_s, prefix_hit_rate, acceptance, ...)."""
    gpu: Mapping[str, Any] = field(default_factory=dict)
    repeat_command: str = ""
    """The exact command line that repeats it."""
    kind: str = "load"
    """`load`, `ladder`, `search`, or `imported`."""
    at_wall_s: float = 0.0
    """When the clock started, seconds since the epoch."""
    cancelled: int = 0
    """Requests cut by the end of the test or by the user; neither completed nor failed."""
    seed: int | None = None
    concurrency_mean: float | None = None
    """Requests in flight, weighted by time."""
    peak_tokens_per_s: float | None = None
    """The best whole second."""
    tokens_per_chunk: float | None = None
    """Above 1.05 the gaps between chunks are not the gaps between tokens."""
    steady_from_s: float | None = None
    steady_to_s: float | None = None
    """The longest span with at least 90 % of the wanted concurrency."""
    ttfo: Percentiles = field(default_factory=lambda: Percentiles(0))
    """Time to the first answer text, for requests that reasoned first."""
    e2e_from_schedule: Percentiles = field(default_factory=lambda: Percentiles(0))
    """Open loop: latency from the time the request should have left."""
    wait_before_send: Percentiles = field(default_factory=lambda: Percentiles(0))
    """Open loop: how much later than scheduled requests left."""
    asked_rate: float | None = None
    achieved_rate: float | None = None
    client_overhead_s: float | None = None
    client_capacity_tokens_per_s: float | None = None
    loop_lag_p99_s: float | None = None
    client_scheduling: str = ""
    """`real-time` (the client ran before other processes of its machine) or `normal`; "" for imported results."""
    client_bound: bool = False
    steps: tuple[LoadStep, ...] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """vLLM version, model, flags, GPU, driver, workload hash."""
    definitions: str = ""
    """For imported results: whose formulas the numbers follow."""
    sources: tuple[tuple[str, str], ...] = ()
    """(number, where it came from and what it means), for imported results."""
