"""What the servers of a configuration did while it was loaded: the numbers behind the picture of an experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPicture:
    """One server under load, by its own page. None: it does not say."""

    role: str = ""
    """`prefill` or `decode` in a pair, else ""."""
    running: float | None = None
    """Requests in the batch."""
    waiting: float | None = None
    tokens_per_step: float | None = None
    prefix_hit_rate: float | None = None
    """Share 0..1 of the prompt tokens."""
    ttft_mean_s: float | None = None
    tpot_mean_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    """Between two tokens of a request: far above the p50 where prefills of others came in between."""
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    accepted_by_position: tuple[float, ...] = ()
    """Share 0..1 of the drafts whose token at each position was accepted."""
    acceptance_length: float | None = None
    """Tokens that a step with a draft yields."""
    kv_capacity_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPicture:
    """One GPU under load."""

    index: int
    bandwidth_percent: float | None = None
    bandwidth_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A configuration as it was last seen under load, and what is known of it."""

    preset: str
    servers: tuple[ServerPicture, ...] = ()
    gpus: tuple[GpuPicture, ...] = ()
    weights_bytes: float | None = None
    """On each GPU."""
    tpot_floor_s: float | None = None
    """Of a plain decode step at this load's batch, from bytes over bandwidth."""
    break_even_length: float | None = None
    """Tokens that a step with a draft must yield to pay, from bytes and FLOPs."""
