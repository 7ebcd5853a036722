"""The physics of serving a model: bytes and FLOPs of one engine step, and the time that no engine can go below.

Everything here is arithmetic on a `ModelShape` and a card's peak figures. Sources: the transformer's own dimensions;
KV bytes as vLLM lays them out (one pair of vectors a token, layer and KV head; one latent vector with MLA; KV heads
are replicated when there are fewer than GPUs); the roofline rule that a step takes at least the longer of its memory
time and its arithmetic time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vtop.hardware import Card
from vtop.model_shapes import UNQUANTIZED, ModelShape, Quantization

ACTIVATION_BYTES = 2.0
"""Norms, biases, router, embedding and (usually) the head stay 16 bit."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A model as it is served: how its weights and its cache are stored, over how many GPUs."""

    shape: ModelShape
    quantization: Quantization = UNQUANTIZED
    kv_value_bytes: float = 2.0
    """Bytes of one cached value: 2, or 1 for an fp8 cache."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def gpus(self) -> int:
        """GPUs that hold one copy of the model."""
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one forward pass costs each GPU."""

    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    linear_flops: float
    """Multiplications with weights (2 a parameter and token)."""
    attention_flops: float
    link_bytes: float = 0.0
    """All-reduce traffic of tensor parallelism, out of each GPU."""

    @property
    def bytes(self) -> float:
        """DRAM traffic."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def flops(self) -> float:
        """Arithmetic."""
        return self.linear_flops + self.attention_flops


@dataclass(slots=True)
class Pass:
    """The tokens of one forward pass, request by request."""

    window: int | None = None
    """The model's sliding window, where it has one."""
    tokens: int = 0
    """Tokens computed."""
    sampled: int = 0
    """Positions whose logits are needed."""
    read: int = 0
    """Cached tokens read, summed over requests."""
    read_windowed: int = 0
    pairs: float = 0.0
    """Query-key pairs, summed over requests."""
    pairs_windowed: float = 0.0

    def add(self, context: int, tokens: int, sampled: int = 1) -> None:
        """Adds a request: `tokens` computed behind `context` cached ones (1 for decoding, more when verifying)."""
        self.tokens += tokens
        self.sampled += sampled
        self.read += context
        pairs = tokens * context + tokens * (tokens + 1) / 2
        self.pairs += pairs
        if self.window is not None:
            reach = min(context, self.window)
            self.read_windowed += reach
            self.pairs_windowed += min(pairs, float(tokens * self.window))


def linear_parameters(setup: Setup) -> float:
    """Parameters that the quantization applies to, all GPUs together."""
    shape = setup.shape
    experts = float(shape.expert_parameters)
    if setup.quantization.experts_only:
        return experts
    head = shape.head_parameters if setup.quantization.head and not shape.tied_embeddings else 0
    return experts + shape.attention_parameters + shape.dense_mlp_parameters + head


def weight_bytes(setup: Setup) -> float:
    """Bytes of the weights on each GPU."""
    shape = setup.shape
    quantized = linear_parameters(setup)
    rest = shape.parameters - quantized
    total = quantized * setup.quantization.bytes_per_weight + rest * ACTIVATION_BYTES
    return (total + _replicated_kv_bytes(setup)) / setup.gpus


def _replicated_kv_bytes(setup: Setup) -> float:
    """Key and value projections exist more than once when there are fewer KV heads than GPUs."""
    shape, tp = setup.shape, setup.tensor_parallel
    if shape.is_mla or tp <= shape.kv_heads:
        return 0.0
    extra_heads = tp - shape.kv_heads
    each = 2.0 * shape.layers * shape.hidden * shape.head_dim
    per_weight = ACTIVATION_BYTES if setup.quantization.experts_only else setup.quantization.bytes_per_weight
    return extra_heads * each * per_weight


def experts_touched(shape: ModelShape, tokens: float) -> float:
    """Distinct routed experts of a layer that a batch of tokens wakes, with uniform routing: E·(1-(1-k/E)^tokens)."""
    if not shape.is_moe:
        return 0.0
    missed = math.pow(1.0 - shape.experts_per_token / shape.experts, tokens)
    return shape.experts * (1.0 - missed)


def weight_read_bytes(setup: Setup, tokens: float) -> float:
    """Bytes of weights that one pass over `tokens` tokens reads on each GPU.

    All but the input embedding, and of the routed experts only those that are used.
    """
    shape = setup.shape
    per_linear = setup.quantization.bytes_per_weight
    dense_bytes = ACTIVATION_BYTES if setup.quantization.experts_only else per_linear
    dense = (shape.attention_parameters + shape.dense_mlp_parameters) * dense_bytes
    head = shape.head_parameters * (per_linear if setup.quantization.head else ACTIVATION_BYTES)
    rest = (shape.router_parameters + shape.small_parameters) * ACTIVATION_BYTES
    experts = 0.0
    if shape.is_moe:
        experts = shape.moe_layers * experts_touched(shape, tokens) * shape.one_expert_parameters * per_linear
    return (dense + head + rest + experts + _replicated_kv_bytes(setup)) / setup.gpus


def kv_bytes_per_token_layer(setup: Setup) -> float:
    """Cache bytes of one token in one layer on each GPU: 2·KV'·d·b, with MLA (c + r)·b."""
    shape = setup.shape
    if shape.is_mla:
        return (shape.kv_lora_rank + shape.qk_rope_head_dim) * setup.kv_value_bytes
    heads = max(1.0, shape.kv_heads / setup.tensor_parallel)
    return 2.0 * heads * shape.head_dim * setup.kv_value_bytes


def kv_bytes_per_token(setup: Setup) -> float:
    """Cache bytes of one more token on each GPU while every layer still sees the whole context."""
    layers = (setup.shape.layers - setup.shape.state_layers) / setup.pipeline_parallel
    return kv_bytes_per_token_layer(setup) * layers


def kv_bytes_for_context(setup: Setup, context: int) -> float:
    """Cache bytes of one request of `context` tokens on each GPU; sliding-window layers stop growing at the window."""
    shape = setup.shape
    each = kv_bytes_per_token_layer(setup) / setup.pipeline_parallel
    full = shape.layers - shape.sliding_layers - shape.state_layers
    reach = min(context, shape.sliding_window) if shape.sliding_window else context
    return each * (full * context + shape.sliding_layers * reach)


def step_cost(setup: Setup, work: Pass) -> StepCost:
    """Bytes and FLOPs of one forward pass on each GPU."""
    shape = setup.shape
    each = kv_bytes_per_token_layer(setup) / setup.pipeline_parallel
    full = shape.layers - shape.sliding_layers - shape.state_layers
    read = each * (full * work.read + shape.sliding_layers * work.read_windowed)
    written = each * (shape.layers - shape.state_layers) * work.tokens
    linear = 2.0 * (shape.active_parameters * work.tokens + shape.head_parameters * work.sampled)
    width = _attention_width(shape)
    attention = 2.0 * shape.heads * width * (full * work.pairs + shape.sliding_layers * work.pairs_windowed)
    return StepCost(
        weight_bytes=weight_read_bytes(setup, work.tokens) if work.tokens else 0.0,
        kv_read_bytes=read,
        kv_write_bytes=written,
        linear_flops=linear / setup.gpus,
        attention_flops=attention / setup.gpus,
        link_bytes=_all_reduce_bytes(setup, work.tokens),
    )


def _attention_width(shape: ModelShape) -> float:
    """Multiply-adds a query-key pair and head: the score and the weighted sum (MLA works in the latent space)."""
    if shape.is_mla:
        return 2.0 * shape.kv_lora_rank + shape.qk_rope_head_dim
    return 2.0 * shape.head_dim


def _all_reduce_bytes(setup: Setup, tokens: float) -> float:
    """Two all-reduces a layer; in a ring each GPU sends 2·(n-1)/n of the data."""
    count = setup.tensor_parallel
    if count == 1:
        return 0.0
    per_layer = 2.0 * tokens * setup.shape.hidden * ACTIVATION_BYTES
    return setup.shape.layers / setup.pipeline_parallel * per_layer * 2.0 * (count - 1) / count


def decode_pass(setup: Setup, batch: float, context: float, tokens_each: int = 1) -> Pass:
    """A pass in which `batch` requests of `context` tokens each compute `tokens_each` tokens."""
    one = Pass(window=setup.shape.sliding_window)
    one.add(round(context), tokens_each, tokens_each)
    return Pass(
        window=one.window,
        tokens=round(one.tokens * batch),
        sampled=round(one.sampled * batch),
        read=round(one.read * batch),
        read_windowed=round(one.read_windowed * batch),
        pairs=one.pairs * batch,
        pairs_windowed=one.pairs_windowed * batch,
    )


def decode_cost(setup: Setup, batch: float, context: float, tokens_each: int = 1) -> StepCost:
    """The cost of one decode step; see `decode_pass`."""
    return step_cost(setup, decode_pass(setup, batch, context, tokens_each))


def prefill_cost(setup: Setup, tokens: int, cached: int = 0) -> StepCost:
    """The cost of computing a prompt of `tokens` tokens of which `cached` are in the cache already."""
    work = Pass(window=setup.shape.sliding_window)
    work.add(cached, max(1, tokens - cached), 1)
    return step_cost(setup, work)


def peak_flops(card: Card, compute: str) -> float | None:
    """Dense peak of the tensor cores for what multiplies the weights; 16-bit where the card has no such unit."""
    if compute == "fp8" and card.fp8_flops:
        return card.fp8_flops
    if compute == "int8" and card.int8_ops:
        return card.int8_ops
    return card.bf16_flops


@dataclass(frozen=True, slots=True)
class StepTime:
    """The shortest time of one pass, by what it waits for."""

    memory_s: float
    compute_s: float
    link_s: float = 0.0
    """Tensor-parallel traffic; it waits for the layer before, so it adds."""

    @property
    def total_s(self) -> float:
        """Memory and arithmetic overlap, the link does not."""
        return max(self.memory_s, self.compute_s) + self.link_s

    @property
    def bound(self) -> str:
        """`bandwidth` or `compute`."""
        return "bandwidth" if self.memory_s >= self.compute_s else "compute"


def step_time(
    setup: Setup, card: Card, cost: StepCost, bandwidth_share: float = 1.0, compute_share: float = 1.0
) -> StepTime | None:
    """The time of a pass at a share of the card's peaks (1: the floor). None where a peak is unknown."""
    bandwidth = card.bandwidth_bytes_per_s
    linear_peak = peak_flops(card, setup.quantization.compute)
    attention_peak = card.bf16_flops
    if not bandwidth or not linear_peak or not attention_peak:
        return None
    compute = cost.linear_flops / linear_peak + cost.attention_flops / attention_peak
    link = cost.link_bytes / link_bytes_per_s(card) if cost.link_bytes else 0.0
    return StepTime(cost.bytes / (bandwidth * bandwidth_share), compute / compute_share, link)


PCIE4_X16_BYTES_PER_S = 25e9
"""What a PCIe 4.0 x16 link carries one way in practice (31.5 GB/s less protocol overhead)."""


def link_bytes_per_s(card: Card) -> float:
    """Between two such cards, one way: NVLink where the card has it (its rating counts both ways), else PCIe 4.0."""
    return card.nvlink_bytes_per_s / 2.0 if card.nvlink_bytes_per_s else PCIE4_X16_BYTES_PER_S


def tpot_floor_s(
    setup: Setup, card: Card, batch: float, context: float, acceptance_length: float = 1.0, drafted: int = 0
) -> float | None:
    """The least time per output token and request at this batch.

    With speculation one step computes `drafted` + 1 positions and yields `acceptance_length` tokens; the draft
    model's own time comes on top and is left out of the floor.
    """
    time = step_time(setup, card, decode_cost(setup, batch, context, drafted + 1))
    return None if time is None else time.total_s / max(1.0, acceptance_length)


def ttft_floor_s(setup: Setup, card: Card, prompt_tokens: int, cached: int = 0) -> float | None:
    """The least time to compute a prompt with the GPU to itself."""
    time = step_time(setup, card, prefill_cost(setup, prompt_tokens, cached))
    return None if time is None else time.total_s


def mbu(bytes_per_step: float, step_s: float, card: Card) -> float | None:
    """Model bandwidth utilization: bytes that the step must move over what the card could have moved meanwhile."""
    if not card.bandwidth_bytes_per_s or step_s <= 0:
        return None
    return bytes_per_step / step_s / card.bandwidth_bytes_per_s


def mfu(flops_per_step: float, step_s: float, card: Card, compute: str = "bf16") -> float | None:
    """Model FLOPs utilization."""
    peak = peak_flops(card, compute)
    return flops_per_step / step_s / peak if peak and step_s > 0 else None


def critical_batch(setup: Setup, card: Card) -> float | None:
    """The batch above which decoding at short context turns from bandwidth-bound to compute-bound."""
    peak = peak_flops(card, setup.quantization.compute)
    if not peak or not card.bandwidth_bytes_per_s:
        return None
    per_token = decode_cost(setup, 1, 1).linear_flops
    read = weight_read_bytes(setup, 1e9)
    return read / card.bandwidth_bytes_per_s / (per_token / peak)


# --- memory -------------------------------------------------------------------------------------------------------

NON_TORCH_BYTES = 0.5 * 2**30
"""CUDA context, NCCL and cuBLAS workspaces; about half a GiB on current drivers."""
GRAPH_BYTES = (0.3 * 2**30, 3.0 * 2**30)
"""What captured CUDA graphs take, from small models to large ones with many sizes."""


def activation_peak_bytes(setup: Setup, batched_tokens: int, sampled: int) -> float:
    """The largest moment of a pass: the MLP's two inner activations, residuals, and 32-bit logits."""
    shape = setup.shape
    inner = shape.intermediate if not shape.is_moe else shape.expert_intermediate * shape.experts_per_token
    inner = max(inner, shape.shared_intermediate)
    hidden = batched_tokens * (4 * shape.hidden + 2 * inner / setup.tensor_parallel) * ACTIVATION_BYTES
    return hidden + sampled * shape.vocab * 4.0


def graph_bytes(setup: Setup, eager: bool = False) -> float:
    """A middle estimate for CUDA graphs: it grows with the layers; nothing with `--enforce-eager`."""
    if eager:
        return 0.0
    return min(GRAPH_BYTES[1], GRAPH_BYTES[0] + setup.shape.layers * 12e6)


def kv_pool_bytes(
    setup: Setup,
    memory_bytes: float,
    utilization: float = 0.92,
    batched_tokens: int = 2048,
    max_seqs: int = 256,
    eager: bool = False,
) -> float:
    """Bytes left for the KV cache on each GPU; negative where the weights alone do not fit."""
    fixed = weight_bytes(setup) + activation_peak_bytes(setup, batched_tokens, max_seqs)
    return memory_bytes * utilization - fixed - NON_TORCH_BYTES - graph_bytes(setup, eager)


def kv_capacity_tokens(setup: Setup, pool_bytes: float, context: int | None = None) -> float:
    """Tokens that a pool holds: at `context` tokens a request where the model has sliding-window layers."""
    if pool_bytes <= 0:
        return 0.0
    if context and setup.shape.sliding_layers:
        return pool_bytes / kv_bytes_for_context(setup, context) * context
    return pool_bytes / kv_bytes_per_token(setup)


def kv_transfer_s(setup: Setup, card: Card, tokens: int) -> float:
    """Moving a prompt's cache to another server over the link, each GPU sending its share."""
    return kv_bytes_per_token(setup) * tokens / link_bytes_per_s(card)


# --- speculation --------------------------------------------------------------------------------------------------


def acceptance_length(acceptance: float, drafted: int) -> float:
    """Expected tokens a step when each drafted token is accepted with the same chance: (1-a^(k+1))/(1-a)."""
    if acceptance >= 1.0:
        return drafted + 1.0
    return (1.0 - acceptance ** (drafted + 1)) / (1.0 - acceptance)


@dataclass(frozen=True, slots=True)
class Speculation:
    """What speculation does to the time per token at one batch."""

    speedup: float
    """Above 1: faster."""
    step_s: float
    verify_s: float
    draft_s: float
    tokens_per_step: float
    break_even_length: float
    """Tokens a step below which it is slower than without."""


def speculation_gain(
    setup: Setup,
    card: Card,
    batch: float,
    context: float,
    drafted: int,
    acceptance: float,
    draft: Setup | None = None,
) -> Speculation | None:
    """Expected gain of drafting `drafted` tokens with this acceptance; `draft` None where guessing is free (n-gram)."""
    plain = step_time(setup, card, decode_cost(setup, batch, context))
    verify = step_time(setup, card, decode_cost(setup, batch, context, drafted + 1))
    if plain is None or verify is None:
        return None
    draft_s = 0.0
    if draft is not None:
        one = step_time(draft, card, decode_cost(draft, batch, context))
        draft_s = drafted * one.total_s if one else 0.0
    length = acceptance_length(acceptance, drafted)
    spent = verify.total_s + draft_s
    return Speculation(
        speedup=plain.total_s * length / spent,
        step_s=plain.total_s,
        verify_s=verify.total_s,
        draft_s=draft_s,
        tokens_per_step=length,
        break_even_length=spent / plain.total_s,
    )


def break_even_acceptance(speculation: Speculation, drafted: int) -> float | None:
    """The acceptance at which speculation neither helps nor hurts; None where not even full acceptance pays."""
    if speculation.break_even_length > drafted + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if acceptance_length(middle, drafted) < speculation.break_even_length:
            low = middle
        else:
            high = middle
    return high


def draft_head(shape: ModelShape, method: str, draft_vocab: int | None = None) -> ModelShape:
    """The shape of a drafter that is a part of the model.

    EAGLE is one layer fed by two hidden states, EAGLE-3 has a reduced vocabulary of 32,000 for its head, an MTP module
    is one more layer of the model; all use the model's own embedding.
    """
    fusion = shape.hidden * shape.hidden * (3 if method == "eagle3" else 2)
    vocab = draft_vocab or (min(32000, shape.vocab) if method == "eagle3" else shape.vocab)
    return replace(
        shape,
        name=f"{shape.name} {method} head",
        layers=1,
        vocab=vocab,
        tied_embeddings=True,
        moe_layers=1 if shape.is_moe and method == "mtp" else 0,
        sliding_layers=0,
        sliding_window=None,
        state_layers=0,
        small_parameters=fusion + 4 * shape.hidden,
    )
