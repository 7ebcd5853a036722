"""Does a model fit a card, how fast can it be there, what is worth turning on, and is vLLM the right engine at all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vtop import units
from vtop.errors import VtopError
from vtop.hardware import Card
from vtop.known_models import known_shape
from vtop.model_shapes import UNQUANTIZED, ModelShape, Quantization, quantization_named
from vtop.presets import ServerSpec
from vtop.roofline import (
    GRAPH_BYTES,
    NON_TORCH_BYTES,
    Setup,
    Speculation,
    activation_peak_bytes,
    break_even_acceptance,
    critical_batch,
    decode_cost,
    graph_bytes,
    kv_bytes_for_context,
    kv_bytes_per_token,
    kv_capacity_tokens,
    kv_transfer_s,
    prefill_cost,
    speculation_gain,
    step_time,
    tpot_floor_s,
    ttft_floor_s,
    weight_bytes,
)
from vtop.setups import draft_setup, kv_value_bytes, scheme_of, setup_for_spec

DEFAULT_UTILIZATION = 0.92
DEFAULT_CONTEXT = 4096
DEFAULT_CONCURRENCY = 16
DEFAULT_BATCHED_TOKENS = 2048
WORTH = 1.05
"""A predicted gain below this is within what the arithmetic leaves out."""
SUPPOSED_ACCEPTANCE = 0.65
"""For a draft model of the same family on chat text, until it has been measured."""


@dataclass(frozen=True, slots=True)
class OptimizationAdvice:
    """One optimization for this load on this card."""

    name: str
    pays: bool | None
    """None: it depends on the text, see `why`."""
    gain: float | None
    """Predicted ratio of output tokens/s (or of TTFT where `why` says so); above 1 is better."""
    why: str
    flag: str = ""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Everything that `vtop fit` says. Bytes are on each GPU."""

    setup: Setup
    card: Card
    context: int
    concurrency: int
    fits: bool
    """The weights and the wanted cache fit, by the middle estimate."""
    sure: bool
    """It would still be so (or still not) at the other end of the uncertainty."""
    memory_bytes: float
    """What vLLM may use of the card."""
    weights_bytes: float
    kv_wanted_bytes: float
    """For `concurrency` requests of `context` tokens."""
    overhead_bytes: float
    overhead_low_bytes: float
    overhead_high_bytes: float
    kv_capacity_tokens: float
    kv_capacity_low_tokens: float
    kv_capacity_high_tokens: float
    requests_at_once: float
    """How many requests of `context` tokens the cache holds."""
    batch: float
    """Requests decoded together in the floors below: what the cache holds, or all wanted ones where it holds none."""
    tpot_floor_s: float | None
    tpot_floor_alone_s: float | None
    """With one request."""
    ttft_floor_s: float | None
    """For a prompt of the whole context with the GPU to itself."""
    output_ceiling_tokens_per_s: float | None
    advice: tuple[OptimizationAdvice, ...]
    arithmetic: tuple[tuple[str, str], ...]
    """Each term written out."""
    selection: tuple[str, ...]
    """Which engine for what, in words; the first is the answer for this case."""
    warnings: tuple[str, ...] = ()


def fit(
    shape: ModelShape | None,
    spec: ServerSpec,
    card: Card,
    context: int | None = None,
    concurrency: int | None = None,
) -> FitReport:
    """Works out whether and how well a preset's model runs on a card.

    Args:
        shape: the model's; None: found by the preset's model name or folder.
        spec: how it is to be served.
        card: on what.
        context: tokens of a request, prompt and answer together.
        concurrency: requests at once.

    Raises:
        VtopError: the model's shape or quantization is not known.
    """
    setup = _setup(shape, spec)
    longest = spec.max_model_len or setup.shape.max_positions or DEFAULT_CONTEXT
    context = min(context or DEFAULT_CONTEXT, longest)
    concurrency = concurrency or spec.max_num_seqs or DEFAULT_CONCURRENCY
    utilization = spec.gpu_memory_utilization or DEFAULT_UTILIZATION
    memory = card.memory_bytes * utilization
    guess = spec.speculative
    draft = draft_setup(setup, guess.method, guess.model) if guess else None
    weights = weight_bytes(setup) + (weight_bytes(draft) if draft else 0.0)
    low, middle, high = _overhead(setup, spec)
    own = kv_bytes_for_context(setup, context)
    each = own + (kv_bytes_for_context(draft, context) if draft else 0.0)
    wanted = each * concurrency
    pools = [float(spec.kv_cache_memory_bytes or memory - weights - overhead) for overhead in (high, middle, low)]
    fitting = [wanted <= pool for pool in pools]
    if spec.kv_cache_memory_bytes:
        # Told the size of its cache, vLLM does not look at the share: the whole card is the limit.
        rooms = [card.memory_bytes - weights - overhead for overhead in (high, middle, low)]
        fitting = [fits and pool <= room for fits, pool, room in zip(fitting, pools, rooms, strict=True)]
    pool = pools[1]
    # A draft model's cache lies in the same pool.
    low_tokens, tokens, high_tokens = (kv_capacity_tokens(setup, size, context) * own / each for size in pools)
    at_once = max(0.0, pool) / each
    batch = min(concurrency, at_once) if at_once >= 1 else float(concurrency)
    alone = tpot_floor_s(setup, card, 1, context)
    floor = tpot_floor_s(setup, card, batch, context)
    report = FitReport(
        setup=setup,
        card=card,
        context=context,
        concurrency=concurrency,
        fits=fitting[1],
        sure=len(set(fitting)) == 1,
        memory_bytes=memory,
        weights_bytes=weights,
        kv_wanted_bytes=wanted,
        overhead_bytes=middle,
        overhead_low_bytes=low,
        overhead_high_bytes=high,
        kv_capacity_tokens=tokens,
        kv_capacity_low_tokens=low_tokens,
        kv_capacity_high_tokens=high_tokens,
        requests_at_once=at_once,
        batch=batch,
        tpot_floor_s=floor,
        tpot_floor_alone_s=alone,
        ttft_floor_s=ttft_floor_s(setup, card, context),
        output_ceiling_tokens_per_s=batch / floor if floor else None,
        advice=(),
        arithmetic=(),
        selection=(),
        warnings=_warnings(setup, spec, card, weights, memory),
    )
    return replace(
        report,
        advice=_advice(report, spec, draft),
        arithmetic=_arithmetic(report),
        selection=_selection(report),
    )


def _setup(shape: ModelShape | None, spec: ServerSpec) -> Setup:
    found = setup_for_spec(spec) if shape is None else _with_shape(shape, spec)
    if found is None:
        raise VtopError(
            f"the shape of {spec.model} is not known, or its quantization is not",
            "Give a folder that holds its config.json, or a model of the built-in table.",
        )
    return found


def _with_shape(shape: ModelShape, spec: ServerSpec) -> Setup | None:
    scheme = scheme_of(shape, spec.quantization)
    if scheme is None:
        return None
    return Setup(
        shape, scheme, kv_value_bytes(spec.kv_cache_dtype), spec.tensor_parallel or 1, spec.pipeline_parallel or 1
    )


def _overhead(setup: Setup, spec: ServerSpec) -> tuple[float, float, float]:
    """Activations, graphs and what the driver takes: low, middle, high."""
    sampled = min(spec.max_num_seqs or 256, 256)
    fixed = activation_peak_bytes(setup, spec.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS, sampled)
    eager = bool(spec.enforce_eager)
    low_graph, high_graph = (0.0, 0.0) if eager else GRAPH_BYTES
    return (
        fixed + NON_TORCH_BYTES * 0.6 + low_graph,
        fixed + NON_TORCH_BYTES + graph_bytes(setup, eager),
        fixed + NON_TORCH_BYTES * 2.0 + high_graph,
    )


def _warnings(setup: Setup, spec: ServerSpec, card: Card, weights: float, memory: float) -> tuple[str, ...]:
    found = []
    if weights >= memory:
        found.append(f"the weights alone need {units.gib(weights)} of {units.gib(memory)} on each GPU")
    if setup.shape.heads % setup.tensor_parallel:
        found.append(f"{setup.shape.heads} attention heads do not divide by tensor_parallel = {setup.tensor_parallel}")
    if setup.quantization.compute == "fp8" and not card.fp8_flops:
        found.append(f"{card.name} has no fp8 units: fp8 weights save memory and bandwidth, not arithmetic")
    longest = setup.shape.max_positions
    if spec.max_model_len and longest and spec.max_model_len > longest:
        found.append(f"max_model_len {spec.max_model_len} is more than the model's {longest}")
    return tuple(found)


# --- what pays ----------------------------------------------------------------------------------------------------


def _floor(setup: Setup, card: Card, batch: float, context: int) -> float | None:
    time = step_time(setup, card, decode_cost(setup, batch, context))
    return time.total_s if time else None


def _advice(report: FitReport, spec: ServerSpec, draft: Setup | None) -> tuple[OptimizationAdvice, ...]:
    setup, card, context = report.setup, report.card, report.context
    batch = report.batch
    floor, alone = report.tpot_floor_s, report.tpot_floor_alone_s
    if floor is None or alone is None:
        return ()
    return (
        _batching(batch, alone, floor),
        _prefix(report),
        *_speculation(report, spec, batch, draft),
        *_quantization(setup, card, batch, context, floor, report),
        _fp8_cache(setup, card, batch, context, floor),
        _tensor_parallel(setup, card, batch, context, floor, report),
        _disaggregation(report, batch),
    )


def _batching(batch: float, alone: float, floor: float) -> OptimizationAdvice:
    gain = batch * alone / floor
    why = (
        f"{units.significant(batch, 2)} requests share one read of the weights: a step takes "
        f"{units.duration(floor)} instead of {units.duration(alone)} and gives that many tokens"
    )
    return OptimizationAdvice("continuous batching", gain > WORTH, gain, why, "on by itself; --max-num-seqs limits it")


def _prefix(report: FitReport) -> OptimizationAdvice:
    prompt = max(16, report.context * 3 // 4)
    whole = ttft_floor_s(report.setup, report.card, prompt)
    shared = ttft_floor_s(report.setup, report.card, prompt, cached=prompt * 9 // 10 // 16 * 16)
    gain = whole / shared if whole and shared else None
    why = (
        f"a prompt of {prompt} tokens computes for at least {units.duration(whole)}; when 90 % of it was seen before, "
        f"{units.duration(shared)} (gain in TTFT). Prompts that share nothing gain nothing, and it costs nothing"
    )
    return OptimizationAdvice("prefix caching", None, gain, why, "--enable-prefix-caching")


def _speculation(
    report: FitReport, spec: ServerSpec, batch: float, draft: Setup | None
) -> tuple[OptimizationAdvice, ...]:
    plan = spec.speculative
    drafted = plan.num_tokens if plan else 4
    found = []
    free = speculation_gain(report.setup, report.card, batch, report.context, drafted, SUPPOSED_ACCEPTANCE)
    if free is not None:
        found.append(
            _speculation_advice(
                "n-gram speculation",
                free,
                drafted,
                "the text repeats itself (code, edits); its look-up costs about 1 ms a step",
            )
        )
    if draft is None and plan is None:
        draft = _small_sibling(report.setup)
    if draft is not None:
        gain = speculation_gain(report.setup, report.card, batch, report.context, drafted, SUPPOSED_ACCEPTANCE, draft)
        if gain is not None:
            found.append(
                _speculation_advice(
                    f"speculation with {draft.shape.name}", gain, drafted, "the draft is of the same family"
                )
            )
    return tuple(found)


def _small_sibling(setup: Setup) -> Setup | None:
    name = setup.shape.name.rsplit("/", 1)[-1].lower()
    for family, sibling in (
        ("qwen2.5", "Qwen/Qwen2.5-0.5B"),
        ("qwen3", "Qwen/Qwen3-0.6B"),
        ("llama-3", "meta-llama/Llama-3.2-1B"),
    ):
        if family in name:
            shape = known_shape(sibling)
            if shape is not None and shape.parameters * 4 < setup.shape.parameters:
                return Setup(shape, tensor_parallel=setup.tensor_parallel)
    return None


def _speculation_advice(name: str, gain: Speculation, drafted: int, when: str) -> OptimizationAdvice:
    even = break_even_acceptance(gain, drafted)
    if even is None:
        why = f"even if every guess were right, {drafted + 1} tokens a step would not pay for the longer step"
        return OptimizationAdvice(name, False, gain.speedup, why, "--speculative-config")
    above = f"above {even * 100:.0f} % acceptance" if even >= 0.005 else "at any acceptance"
    why = (
        f"pays {above} of {drafted} guesses (break-even {gain.break_even_length:.2f} tokens a step); "
        f"{gain.speedup:.2f}x at a supposed {SUPPOSED_ACCEPTANCE * 100:.0f} %, where {when}"
    )
    pays = None if even < 0.8 else False
    return OptimizationAdvice(name, pays, gain.speedup, why, "--speculative-config")


def _quantization(
    setup: Setup, card: Card, batch: float, context: int, floor: float, report: FitReport
) -> tuple[OptimizationAdvice, ...]:
    if setup.quantization.name != UNQUANTIZED.name:
        plain = _floor(replace(setup, quantization=UNQUANTIZED), card, batch, context)
        gain = plain / floor if plain else None
        why = f"already on: the 16-bit floor would be {units.duration(plain)}"
        return (OptimizationAdvice(f"quantization ({setup.quantization.name})", True, gain, why),)
    found = []
    for word, flag in (("fp8", "--quantization fp8"), ("awq", "an AWQ checkpoint")):
        scheme = quantization_named(word)
        if scheme is None:
            continue
        found.append(_one_quantization(setup, scheme, flag, card, batch, context, floor, report))
    return tuple(found)


def _one_quantization(
    setup: Setup,
    scheme: Quantization,
    flag: str,
    card: Card,
    batch: float,
    context: int,
    floor: float,
    report: FitReport,
) -> OptimizationAdvice:
    other = replace(setup, quantization=scheme)
    quantized = _floor(other, card, batch, context)
    saved = weight_bytes(setup) - weight_bytes(other)
    gain = floor / quantized if quantized else None
    more = saved / kv_bytes_per_token(setup)
    why = (
        f"weights {units.gib(weight_bytes(setup))} → {units.gib(weight_bytes(other))}, TPOT floor "
        f"{units.duration(floor)} → {units.duration(quantized)}, room for {units.count(more)} more cached tokens"
    )
    if report.fits and gain is not None and gain < WORTH:
        why += "; memory suffices here, so leave the weights as they are"
    pays = (gain is not None and gain > WORTH) or not report.fits
    return OptimizationAdvice(f"{scheme.name} weights", pays, gain, why, flag)


def _fp8_cache(setup: Setup, card: Card, batch: float, context: int, floor: float) -> OptimizationAdvice:
    if setup.kv_value_bytes < 2:
        return OptimizationAdvice("fp8 KV cache", True, None, "already on", "--kv-cache-dtype fp8")
    other = replace(setup, kv_value_bytes=1.0)
    halved = _floor(other, card, batch, context)
    gain = floor / halved if halved else None
    why = (
        f"KV {units.bytes_decimal(kv_bytes_per_token(setup))} → {units.bytes_decimal(kv_bytes_per_token(other))} a "
        f"token: twice the capacity; TPOT floor {units.duration(floor)} → {units.duration(halved)}"
    )
    return OptimizationAdvice("fp8 KV cache", gain is not None and gain > WORTH, gain, why, "--kv-cache-dtype fp8")


def _tensor_parallel(
    setup: Setup, card: Card, batch: float, context: int, floor: float, report: FitReport
) -> OptimizationAdvice:
    count = 2 * setup.tensor_parallel
    split = _floor(replace(setup, tensor_parallel=count), card, batch, context)
    gain = floor / split if split else None
    link = "NVLink" if card.nvlink_bytes_per_s else "PCIe"
    why = (
        f"over {count} cards by {link}: TPOT floor {units.duration(floor)} → {units.duration(split)}; for twice the "
        "cards, so it pays for latency or where one card is too small, not for throughput a card"
    )
    pays = True if not report.fits else None
    return OptimizationAdvice("tensor parallelism", pays, gain, why, f"--tensor-parallel-size {count}")


def _disaggregation(report: FitReport, batch: float) -> OptimizationAdvice:
    prompt = max(16, report.context * 3 // 4)
    prefill = ttft_floor_s(report.setup, report.card, prompt)
    moved = kv_transfer_s(report.setup, report.card, prompt)
    why = (
        f"a prompt of {prompt} tokens holds every decoding request up for {units.duration(prefill)}; on a server of "
        f"its own it does not, at the price of moving its KV ({units.duration(moved)}) and a second set of cards. It "
        "evens out TPOT and does not raise throughput: for large installations"
    )
    return OptimizationAdvice("P/D disaggregation", False if batch < 64 else None, None, why, "--kv-transfer-config")


# --- in words -----------------------------------------------------------------------------------------------------


def _arithmetic(report: FitReport) -> tuple[tuple[str, str], ...]:
    setup, card = report.setup, report.card
    shape = setup.shape
    step = decode_cost(setup, report.batch, report.context)
    prompt = prefill_cost(setup, report.context)
    ridge = critical_batch(setup, card)
    bandwidth = units.bytes_per_s(card.bandwidth_bytes_per_s)
    return (
        ("model", f"{shape.name}: {shape.parameters / 1e9:.2f} billion parameters ({shape.source})"),
        ("card", f"{card.name}: {units.gib(card.memory_bytes)}, {bandwidth}, {card.bf16_flops / 1e12:.0f} TFLOPS"),
        (
            "weights",
            f"{setup.quantization.name}, {setup.quantization.bytes_per_weight:.3g} B a linear weight, over "
            f"{_gpus(setup)}: {units.gib(report.weights_bytes)} each",
        ),
        (
            "KV cache",
            f"{kv_bytes_per_token(setup):,.0f} B a token x {report.context} tokens x "
            f"{report.concurrency} requests = {units.gib(report.kv_wanted_bytes)}",
        ),
        (
            "overhead",
            f"activations, CUDA graphs, driver: {units.gib(report.overhead_bytes)} "
            f"({units.gib(report.overhead_low_bytes)} to {units.gib(report.overhead_high_bytes)})",
        ),
        (
            "capacity",
            f"{units.gib(report.memory_bytes)} usable - {units.gib(report.weights_bytes)} weights - "
            f"{units.gib(report.overhead_bytes)} overhead = room for {units.count(report.kv_capacity_tokens)} tokens, "
            f"{report.requests_at_once:.1f} requests of this context",
        ),
        (
            "decode step",
            f"weights {units.bytes_decimal(step.weight_bytes)} (all but the input embedding) + KV "
            f"{units.bytes_decimal(step.kv_read_bytes)} of {_requests(report.batch)}, over {bandwidth}: TPOT floor "
            f"{units.duration(report.tpot_floor_s)}",
        ),
        (
            "prefill",
            f"{prompt.linear_flops / 1e12:.1f} TFLOP (2 a parameter and token) + {prompt.attention_flops / 1e12:.1f} "
            f"TFLOP attention, over the card's peak: TTFT floor {units.duration(report.ttft_floor_s)}",
        ),
        (
            "ridge",
            f"decoding turns compute-bound above about {ridge:.0f} requests" if ridge else "unknown",
        ),
    )


def _gpus(setup: Setup) -> str:
    return "1 GPU" if setup.gpus == 1 else f"{setup.gpus} GPUs"


def _requests(count: float) -> str:
    return "1 request" if count == 1 else f"{count:.3g} requests"


_GUIDE = (
    "development on one machine: Ollama starts with one command; vLLM's batching has nothing to batch there",
    "production API: vLLM with continuous batching and prefix caching",
    "lowest latency: vLLM with speculation, judged by its acceptance on your text; then tensor parallelism",
    "very large scale: vLLM on several machines with P/D disaggregation",
    "CPU or edge, or a model larger than the GPU: llama.cpp with a GGUF file; not vLLM",
)


def _selection(report: FitReport) -> tuple[str, ...]:
    if report.weights_bytes >= report.memory_bytes:
        name = report.card.name
        first = (
            f"Does not fit {name}: quantize, split over more cards, or run it with llama.cpp, which can use the CPU's "
            "memory too."
        )
    elif report.requests_at_once < 1:
        first = (
            "The weights fit, one request of this context does not: shorten the context or quantize weights or cache."
        )
    elif report.concurrency <= 1 and report.fits:
        first = (
            "One request at a time: Ollama or llama.cpp serve that as well with less to set up; vLLM earns its place "
            "with concurrent requests, or with speculation."
        )
    elif not report.fits and report.requests_at_once >= report.concurrency:
        first = "Weights and a cache of that size do not fit together: lower kv_cache_memory_bytes, or leave it out."
    elif not report.fits:
        first = (
            f"vLLM, but only {report.requests_at_once:.0f} of {report.concurrency} such requests run at once; the rest "
            "wait: fp8 KV cache, quantized weights or more cards."
        )
    else:
        first = "vLLM with continuous batching, and prefix caching where prompts share their beginning."
    return (first, *_GUIDE)
