"""What one server's /metrics page says, in one shape for every vLLM version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

EMPTY: Mapping[str, str] = MappingProxyType({})


NOTHING_FINISHED = "nothing finished while vtop watched"
"""Reason in `missing` of a latency that the server counts, and that had nothing to count yet."""

MEASURING = "measuring: needs two looks at the page"
"""Reason in `missing` of what takes a second look."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile from a histogram: the interpolated value and the bucket that it lies in."""

    value_s: float | None
    """Linear inside the bucket; None where the rank falls into +Inf."""
    low_s: float
    """Lower edge of the bucket: `> low_s` where `high_s` is None."""
    high_s: float | None
    """Upper edge; None for the +Inf bucket."""


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency over the window."""

    mean_s: float | None
    """Exact: sum over count."""
    count: int
    p50: Quantile | None = None
    p95: Quantile | None = None
    p99: Quantile | None = None
    age_s: float = 0.0
    """0: of this window. Else nothing finished in this window and this is the last value, so many seconds old."""


@dataclass(frozen=True, slots=True)
class SpeculationReading:
    """Speculative decoding over the window."""

    acceptance: float | None
    """Accepted over drafted tokens, 0..1."""
    mean_length: float | None
    """Mean acceptance length: 1 + accepted / drafts (tokens that one step yields)."""
    per_position: tuple[float, ...] = ()
    """Share of drafts whose token at each position was accepted."""
    drafted_tokens_per_s: float | None = None
    wasted_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class KvTransferReading:
    """KV cache moved between servers (NIXL and its kind) over the window."""

    tokens_per_s: float | None = None
    """Prompt tokens whose KV came from another server."""
    bytes_per_s: float | None = None
    mean_transfer_s: float | None = None
    failed: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EngineReading:
    """One model on one server over one window. None: unknown, with the reason in `missing`."""

    model_name: str
    window_s: float
    """The span that the rates and latencies really cover."""
    engines: int = 1
    """Data-parallel engines summed here."""
    server_kind: str = "vllm"
    """`vllm`, or what else answers (`sglang`, `llama.cpp`, `tgi`, `router`)."""
    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    swapped: float | None = None
    kv_usage: float | None = None
    """Mean share 0..1 over the engines."""
    kv_usage_max: float | None = None
    kv_capacity_tokens: float | None = None
    kv_cache_dtype: str | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    """Finished well: stop and length."""
    finished_by_reason: Mapping[str, float] = field(default_factory=dict)
    """Requests finished in the window, by reason."""
    rejected: float | None = None
    """Refused at admission in the window."""
    preemptions: float | None = None
    """In the window."""
    prompt_computed_share: float | None = None
    prompt_cached_share: float | None = None
    prompt_transferred_share: float | None = None
    prefix_hit_rate: float | None = None
    prefix_hit_rate_since_start: float | None = None
    """What engine V0 gives instead: an average since the server started, so never a live value."""
    external_hit_rate: float | None = None
    ttft: Latency | None = None
    tpot: Latency | None = None
    """Per request: (last - first) / (n - 1)."""
    itl: Latency | None = None
    """Between engine steps of a request; what versions before 0.11 call time_per_output_token."""
    e2e: Latency | None = None
    queue: Latency | None = None
    prefill: Latency | None = None
    decode: Latency | None = None
    tokens_per_step: float | None = None
    speculation: SpeculationReading | None = None
    kv_transfer: KvTransferReading | None = None
    lora_running: tuple[str, ...] = ()
    lora_waiting: tuple[str, ...] = ()
    lora_max: int | None = None
    sleep_state: str | None = None
    read_bytes_per_s: float | None = None
    """vLLM's own estimate per GPU (--enable-mfu-metrics)."""
    write_bytes_per_s: float | None = None
    flops_per_s: float | None = None
    generation_tokens_total: float | None = None
    """The raw counter, summed over engines, for cross-checks."""
    prompt_tokens_total: float | None = None
    missing: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """Field name -> why this server does not say it."""
    notes: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """Field name -> what the value means here where that is not plain: derived, or under an older name."""
    restarted: bool = False
    """Counters began again inside this window: rates cover the time since."""


@dataclass(frozen=True, slots=True)
class ScrapeStatus:
    """How the last look at /metrics went."""

    state: str
    """`ok`, `pending`, `unreachable`, `timeout`, `needs-key`, `not-found`, `not-metrics`, `other-server`, `empty`,
    `no-vllm-series`, `http-error`, `malformed`, `redirect-refused`."""
    message: str = ""
    """One line for the screen; never holds a secret."""
    last_ok_age_s: float | None = None
    """Seconds since the last good page; None: never."""
    duration_s: float | None = None
    """How long the last scrape took."""
