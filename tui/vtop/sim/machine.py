"""What the options amount to on the simulated card: weights, KV blocks, limits; or why it cannot start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vtop.errors import VtopError
from vtop.hardware import Card, find_card
from vtop.known_models import find_shape
from vtop.model_shapes import UNQUANTIZED, Quantization, quantization_named
from vtop.roofline import Setup, kv_bytes_per_token, kv_pool_bytes, weight_bytes
from vtop.setups import LOOK_UP_FREE, draft_setup
from vtop.sim.kv_cache import BLOCK_TOKENS
from vtop.sim.options import Options
from vtop.sim.scheduler import Limits
from vtop.sim.speculation import SpeculationPlan


class StartFailure(Exception):
    """The simulated server cannot start, in vLLM's own words.

    Attributes:
        kind: Python's name of the error.
        phase: how far the start comes before it fails.
    """

    def __init__(self, kind: str, text: str, phase: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.phase = phase


@dataclass(frozen=True, slots=True)
class Machine:
    """A server as configured on a card."""

    options: Options
    setup: Setup
    card: Card
    limits: Limits
    speculation: SpeculationPlan | None
    kv_blocks: int
    weights_bytes: float
    """On each GPU, draft model included."""
    kv_bytes: float
    """Of the pool on each GPU."""

    @property
    def kv_tokens(self) -> int:
        """Capacity of one engine's cache."""
        return self.kv_blocks * BLOCK_TOKENS

    @property
    def memory_used_bytes(self) -> int:
        """On each GPU once it serves: vLLM takes its whole share."""
        return round(self.card.memory_bytes * self.options.gpu_memory_utilization)


def default_limits(memory_bytes: float) -> tuple[int, int]:
    """vLLM's defaults of batched tokens and sequences for an API server, by GPU memory."""
    gib = memory_bytes / 2**30
    if gib >= 160:
        return 16384, 1024
    if gib >= 70:
        return 8192, 1024
    return 2048, 256


def find_machine_card(name: str) -> Card:
    """The card to simulate.

    Raises:
        VtopError: it is unknown, or its peaks are.
    """
    card = find_card(name)
    if card is None:
        raise VtopError(f"no such GPU to simulate: {name}", "Name one that vtop knows, such as 'RTX 4090' or 'H100'.")
    if not card.bandwidth_bytes_per_s or not card.bf16_flops or not card.memory_bytes:
        raise VtopError(f"the peaks of {card.name} are not known", "Simulate another GPU, such as 'RTX 4090'.")
    return card


def resolve_setup(options: Options) -> Setup:
    """Model, quantization and parallelism.

    Raises:
        StartFailure: unknown model or scheme, or heads that do not divide.
    """
    try:
        shape = find_shape(options.model)
    except VtopError as error:
        raise StartFailure("ValueError", error.what, "config") from error
    if shape is None:
        raise StartFailure(
            "OSError", f"Invalid repository ID or local directory specified: '{options.model}'", "config"
        )
    quantization = shape.quantization
    if options.quantization:
        quantization = _asked_quantization(options.quantization, quantization)
    if quantization is None:
        raise StartFailure("ValueError", f"Unknown quantization method: {options.quantization or 'unknown'}.", "config")
    tp = options.tensor_parallel_size
    if shape.heads % tp:
        raise StartFailure(
            "ValueError",
            f"Total number of attention heads ({shape.heads}) must be divisible by tensor parallel size ({tp}).",
            "config",
        )
    return Setup(
        shape,
        quantization,
        kv_value_bytes=1.0 if options.kv_cache_dtype.startswith(("fp8", "int8")) else 2.0,
        tensor_parallel=tp,
        pipeline_parallel=options.pipeline_parallel_size,
    )


def _asked_quantization(word: str, stored: Quantization | None) -> Quantization | None:
    asked = quantization_named(word)
    if stored is not None and stored is not UNQUANTIZED and stored.name != "bf16":
        return stored
    if asked is not None and asked.name in {"awq", "gptq"}:
        raise StartFailure("ValueError", f"Cannot find the config file for {asked.name}", "config")
    return asked


def build_machine(options: Options) -> Machine:
    """Works everything out.

    Raises:
        StartFailure: it does not fit, with the text that vLLM prints.
        VtopError: the card is unknown.
    """
    card = find_machine_card(options.gpu)
    setup = resolve_setup(options)
    limits = _limits(options, setup, card)
    plan = _speculation(options.speculative_config, setup)
    weights = weight_bytes(setup)
    draft_kv = 0.0
    if plan is not None and plan.draft is not None:
        weights += weight_bytes(plan.draft)
        draft_kv = kv_bytes_per_token(plan.draft)
    if weights > card.memory_bytes * 0.985:
        raise StartFailure("torch.OutOfMemoryError", _out_of_memory(card, weights, setup), "weights")
    extra = weights - weight_bytes(setup)
    pool = options.kv_cache_memory_bytes or (
        kv_pool_bytes(
            setup,
            card.memory_bytes,
            options.gpu_memory_utilization,
            limits.max_num_batched_tokens,
            min(limits.max_num_seqs, 256),
            options.enforce_eager,
        )
        - extra
    )
    per_token = kv_bytes_per_token(setup) + draft_kv
    blocks = int(pool // (per_token * BLOCK_TOKENS)) if pool > 0 else 0
    if blocks <= 0:
        raise StartFailure(
            "ValueError",
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
            "engine.",
            "kv-cache",
        )
    if blocks * BLOCK_TOKENS < limits.max_model_len:
        raise StartFailure("ValueError", _context_too_long(limits.max_model_len, per_token, pool, blocks), "kv-cache")
    return Machine(options, setup, card, limits, plan, blocks, weights, float(pool))


def _limits(options: Options, setup: Setup, card: Card) -> Limits:
    batched, seqs = default_limits(card.memory_bytes)
    derived = setup.shape.max_positions or 32768
    length = options.max_model_len or derived
    if length > derived:
        raise StartFailure(
            "ValueError",
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len "
            f"(max_position_embeddings={derived}.0 or model_max_length=None in model's config.json).",
            "config",
        )
    budget = options.max_num_batched_tokens or batched
    if not options.enable_chunked_prefill:
        if options.max_num_batched_tokens and options.max_num_batched_tokens < length:
            raise StartFailure(
                "ValueError",
                f"max_num_batched_tokens ({budget}) is smaller than max_model_len ({length}).",
                "config",
            )
        budget = max(budget, length)
    return Limits(options.max_num_seqs or seqs, budget, length, options.enable_chunked_prefill)


def _speculation(config: dict[str, Any] | None, setup: Setup) -> SpeculationPlan | None:
    if not config:
        return None
    model = config.get("model")
    method = str(config.get("method") or ("draft_model" if model else "ngram"))
    tokens = int(config.get("num_speculative_tokens") or 3)
    maximum = config.get("prompt_lookup_max")
    minimum = config.get("prompt_lookup_min")
    low = int(minimum or maximum or 5)
    high = int(maximum or minimum or 5)
    try:
        draft = draft_setup(setup, method, str(model) if model else None)
    except VtopError as error:
        raise StartFailure("ValueError", error.what, "config") from error
    if draft is None and method not in LOOK_UP_FREE:
        raise StartFailure("OSError", f"Invalid repository ID or local directory specified: '{model}'", "config")
    return SpeculationPlan(method, tokens, min(low, high), high, draft)


def _out_of_memory(card: Card, weights: float, setup: Setup) -> str:
    total = card.memory_bytes / 2**30
    free = 0.35
    asked = max(0.1, setup.shape.hidden * setup.shape.intermediate * 2 / 2**30)
    return (
        f"CUDA out of memory. Tried to allocate {asked:.2f} GiB. GPU 0 has a total capacity of {total:.2f} GiB of "
        f"which {free:.2f} GiB is free. Including non-PyTorch memory, this process has {total - free:.2f} GiB memory "
        f"in use. (The weights need {weights / 2**30:.2f} GiB on each GPU.)"
    )


def _context_too_long(length: int, per_token: float, pool: float, blocks: int) -> str:
    return (
        f"To serve at least one request with the model's max seq len ({length}), "
        f"({length * per_token / 2**30:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({pool / 2**30:.2f} GiB). Based on the available memory, the estimated maximum model length is "
        f"{blocks * BLOCK_TOKENS}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine."
    )
