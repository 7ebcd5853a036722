"""What bounds a server now: one sentence from the roofline and the readings, or why it cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vtop import units
from vtop.hardware import Card
from vtop.model_shapes import UNQUANTIZED, quantization_named
from vtop.presets import ServerSpec
from vtop.roofline import Setup, StepCost, critical_batch, decode_cost, kv_bytes_per_token, step_time
from vtop.servers.status import ServerState, ServerStatus
from vtop.setups import setup_for_spec
from vtop.telemetry.gpu.matching import gpus_of
from vtop.telemetry.snapshot import GpuReading, ServerView, Verdict
from vtop.vllm.reading import EngineReading

BANDWIDTH_BOUND_PERCENT = 55.0
"""Of peak while the GPU works. The practical ceiling of weight-streaming kernels is 80 to 92 %; attention, sampling and
gaps between steps pull a decode loop that is nothing but memory-bound down to some 60 %."""
COMPUTE_BOUND_PERCENT = 45.0
"""Of the tensor peak while the GPU works; large matrix products reach 65 to 85 %."""
BUSY_PERCENT = 60.0
"""GPU-Util below which the GPU is waiting for work and not working."""
KV_FULL = 0.9
"""Share of KV blocks in use at which a new request may not find enough."""
BUDGET_FULL = 0.8
"""Mean tokens a step over the token budget, at which prefills take turns."""
MEASURED = frozenset({"gpm", "dcgm", "simulated"})


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of a server beyond its page. None: not known."""

    setup: Setup | None = None
    card: Card | None = None
    speculative: bool | None = None
    prefix_caching: bool | None = None
    eager: bool | None = None
    why_no_setup: str = "the model's shape is not known"


def facts_for_spec(spec: ServerSpec, card: Card | None) -> ServerFacts:
    """The facts of a server that vtop started.

    Raises:
        VtopError: the model is a folder whose config.json cannot be used.
    """
    return ServerFacts(
        setup=setup_for_spec(spec),
        card=card,
        speculative=spec.speculative is not None,
        # vLLM's default has been on since its V1 engine; versions before say so in their page.
        prefix_caching=spec.prefix_caching,
        eager=bool(spec.enforce_eager),
    )


@dataclass(frozen=True, slots=True)
class _Scene:
    """Everything that the rules look at."""

    view: ServerView
    engine: EngineReading
    gpus: tuple[GpuReading, ...]
    facts: ServerFacts
    running: float
    waiting: float
    cost: StepCost | None
    floor_s: float | None
    tpot_s: float | None
    batch: float
    context: float
    drafted: int
    length: float
    """Tokens a step and request (1 without speculation)."""


def verdict(
    view: ServerView,
    gpus: Sequence[GpuReading],
    facts: ServerFacts,
    client: str = "",
) -> Verdict:
    """Says what bounds a server.

    Args:
        view: the server with its newest reading.
        gpus: readings of all GPUs; those of the server are picked out where it is known which they are.
        facts: model, card and settings where they are known.
        client: why a load test that runs against this server is the limit itself, or "".
    """
    refusal = _no_reading(view)
    if refusal:
        return Verdict("unknown", f"Cannot tell: {refusal}.")
    engine = view.engine
    assert engine is not None
    scene = _scene(view, engine, gpus_of(view.status, gpus), facts)
    answer = _lost(scene) or _judge(scene, client, bool(gpus))
    return replace(answer, tpot_floor_s=scene.floor_s, terms=_terms(scene))


def _no_reading(view: ServerView) -> str:
    state = view.status.state
    if state in {ServerState.STARTING, ServerState.STOPPING, ServerState.STOPPED, ServerState.FAILED, ServerState.LOST}:
        return f"the server is {state.value}"
    if view.scrape.state != "ok":
        return view.scrape.message.rstrip(".") or f"its metrics are {view.scrape.state}"
    engine = view.engine
    if engine is None:
        return "it shows no engine metrics"
    if engine.running is None or engine.waiting is None:
        return "it does not say how many requests run and wait"
    if engine.window_s <= 0:
        return engine.missing.get("generation_tokens_per_s") or "not enough data yet"
    return ""


def _lost(scene: _Scene) -> Verdict | None:
    """A server whose GPU is gone may still answer /metrics for a while; its figures then mean nothing."""
    gone = next((gpu for gpu in scene.gpus if gpu.lost), None)
    if gone is None:
        return None
    why = gone.missing.get("lost", "it does not answer")
    return Verdict("unknown", f"Cannot tell: GPU {gone.index}, which this server uses, is lost: {why}.")


def _scene(view: ServerView, engine: EngineReading, gpus: tuple[GpuReading, ...], facts: ServerFacts) -> _Scene:
    running = engine.running or 0.0
    batch = max(1.0, running / max(1, engine.engines))
    context = 0.0
    if engine.kv_usage is not None and engine.kv_capacity_tokens and running > 0:
        context = engine.kv_usage * engine.kv_capacity_tokens / running
    speculation = engine.speculation
    drafted = len(speculation.per_position) if speculation else 0
    length = speculation.mean_length if speculation and speculation.mean_length else 1.0
    cost = floor = None
    if facts.setup is not None:
        cost = decode_cost(facts.setup, batch, context, drafted + 1)
        if facts.card is not None:
            time = step_time(facts.setup, facts.card, cost)
            floor = time.total_s / max(1.0, length) if time else None
    return _Scene(
        view=view,
        engine=engine,
        gpus=gpus,
        facts=facts,
        running=running,
        waiting=engine.waiting or 0.0,
        cost=cost,
        floor_s=floor,
        tpot_s=_tpot(engine, running),
        batch=batch,
        context=context,
        drafted=drafted,
        length=length,
    )


def _tpot(engine: EngineReading, running: float) -> float | None:
    """The time per output token now; without finished requests by Little's law, running over tokens/s."""
    tpot = engine.tpot
    if tpot is not None and tpot.mean_s is not None and tpot.age_s == 0 and tpot.count > 0:
        return tpot.mean_s
    if engine.generation_tokens_per_s and running >= 1:
        return running / engine.generation_tokens_per_s
    return None


def _judge(scene: _Scene, client: str, any_gpus: bool) -> Verdict:
    engine = scene.engine
    idle = scene.running == 0 and scene.waiting == 0
    # A model that only embeds reads prompts and generates nothing.
    if idle and not engine.generation_tokens_per_s and not engine.prompt_tokens_per_s:
        return Verdict("idle", "Idle: no request is running.")
    if client:
        return Verdict(
            "client", f"Client-bound: {client}.", "Use more client processes (--processes) or fewer streams."
        )
    queued = _queue(scene)
    if queued is not None:
        return queued
    if not scene.gpus:
        return Verdict("unknown", f"Cannot tell: {_why_no_gpu(scene.view.status, any_gpus)}.{_floor_words(scene)}")
    return _gpu(scene)


# --- queues -------------------------------------------------------------------------------------------------------


def _queue(scene: _Scene) -> Verdict | None:
    engine, waiting = scene.engine, scene.waiting
    deferred = engine.waiting_by_reason.get("deferred", 0.0)
    waiting -= deferred
    usage = engine.kv_usage_max if engine.kv_usage_max is not None else engine.kv_usage
    if engine.preemptions or (waiting >= 1 and usage is not None and usage >= KV_FULL):
        return _queue_kv(scene, waiting, usage)
    if waiting < 1:
        return None
    status = scene.view.status
    limit = status.max_num_seqs
    if limit is not None and scene.running >= limit * engine.engines:
        return _queue_seqs(scene, waiting, limit)
    budget = status.max_num_batched_tokens
    if budget is not None and engine.tokens_per_step is not None and engine.tokens_per_step >= BUDGET_FULL * budget:
        return Verdict(
            "queue-tokens",
            f"Queue-bound: {_requests(waiting)} for their prefill; steps are full, "
            f"{units.count(engine.tokens_per_step)} of {units.count(budget)} tokens.",
            _token_suggestion(scene, budget),
        )
    return None


def _requests(count: float) -> str:
    return f"{units.count(count)} request{'s' if round(count) != 1 else ''} wait{'s' if round(count) == 1 else ''}"


def _queue_kv(scene: _Scene, waiting: float, usage: float | None) -> Verdict:
    engine, setup = scene.engine, scene.facts.setup
    of = f" of {units.count(engine.kv_capacity_tokens)} tokens" if engine.kv_capacity_tokens is not None else ""
    used = f"{units.percent(usage)}{of} in use"
    preempted = f"{units.count(engine.preemptions)} preempted" if engine.preemptions else ""
    if waiting >= 1:
        headline = f"{_requests(waiting)} for KV cache; {used}" + (f", {preempted}" if preempted else "")
    else:
        headline = f"{preempted} for want of KV cache in the last {engine.window_s:.0f} s; {used} now"
    suggestion = "Try: raise --gpu-memory-utilization, or lower --max-model-len."
    if setup is not None and setup.kv_value_bytes >= 2:
        half = kv_bytes_per_token(replace(setup, kv_value_bytes=1.0))
        suggestion = (
            f"Try: --kv-cache-dtype fp8 ({kv_bytes_per_token(setup):,.0f} → {half:,.0f} B a token, twice the capacity)."
        )
    return Verdict("queue-kv", f"Queue-bound: {headline}.", suggestion)


def _queue_seqs(scene: _Scene, waiting: float, limit: int) -> Verdict:
    wanted = 1
    while wanted < scene.running + waiting:
        wanted *= 2
    headline = (
        f"Queue-bound: {_requests(waiting)} while {units.count(scene.running)} "
        f"{'runs' if scene.running == 1 else 'run'}, all that --max-num-seqs {limit} "
        "allows."
    )
    return Verdict(
        "queue-seqs", headline, f"Try: --max-num-seqs {wanted}; a step reads the weights once for all of them."
    )


def _token_suggestion(scene: _Scene, budget: int) -> str:
    if scene.facts.prefix_caching is False:
        return "Try: --enable-prefix-caching where prompts share their beginning."
    return f"Try: --max-num-batched-tokens {2 * budget}; running requests then wait longer for each token."


# --- the GPU ------------------------------------------------------------------------------------------------------


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _why_no_gpu(status: ServerStatus, any_gpus: bool) -> str:
    reason = status.gpu_reason.rstrip(".")
    if "+cpu" in (status.version or "") and reason:
        return reason
    if not any_gpus:
        return "no GPU is read here"
    return "which GPU it uses is not known" + (f" ({reason})" if reason else "")


def _gpu(scene: _Scene) -> Verdict:
    bands = [gpu.bandwidth for gpu in scene.gpus if gpu.bandwidth is not None]
    sources = {band.source for band in bands}
    if not bands:
        return Verdict("unknown", f"Cannot tell: no bandwidth is known on this card.{_floor_words(scene)}")
    if len(sources) > 1:
        return Verdict("unknown", "Cannot tell: its GPUs report bandwidth from different sources.")
    source = sources.pop()
    if source == "busy":
        share = _mean([band.percent for band in bands])
        return Verdict(
            "unknown",
            "Cannot tell: bandwidth unknown on this card; memory busy "
            f"{units.percent_of_100(share)} of the time.{_floor_words(scene)}",
        )
    percent = _mean([band.percent for band in bands])
    if percent is None:
        return Verdict("unknown", f"Cannot tell: no bandwidth reading yet.{_floor_words(scene)}")
    util = _mean([gpu.gpu_util_percent for gpu in scene.gpus])
    if util is not None and util < BUSY_PERCENT:
        return _not_busy(scene, util)
    moved = _mean([band.bytes_per_s for band in bands])
    estimated = "" if source in MEASURED else " (estimated)"
    compute = _compute_percent(scene)
    if percent >= BANDWIDTH_BOUND_PERCENT and percent >= (compute or 0.0):
        return _bandwidth_bound(scene, percent, moved, estimated)
    if compute is not None and compute >= COMPUTE_BOUND_PERCENT:
        return _compute_bound(scene, compute, percent)
    if compute is None:
        return Verdict(
            "unknown",
            f"Cannot tell: {units.percent_of_100(percent)} of the bandwidth is used{estimated}, and tensor activity is "
            f"not known here.{_floor_words(scene)}",
        )
    # A MIG instance does not say how much of the time it works.
    works = f"works {units.percent_of_100(util)} of the time and " if util is not None else ""
    return Verdict(
        "overhead",
        f"Overhead-bound: the GPU {works}uses "
        f"{units.percent_of_100(percent)} of its bandwidth and {units.percent_of_100(compute)} of its tensor peak.",
        _overhead_suggestion(scene),
    )


def _not_busy(scene: _Scene, util: float) -> Verdict:
    if scene.running >= 1:
        return Verdict(
            "overhead",
            f"Overhead-bound: {units.count(scene.running)} running, yet the GPU works only "
            f"{units.percent_of_100(util)} of the time; it waits for the CPU.",
            _overhead_suggestion(scene),
        )
    return Verdict(
        "idle",
        f"Mostly idle: nothing runs at this moment, the GPU works {units.percent_of_100(util)} of the time; TTFT and "
        f"TPOT are of the last {scene.engine.window_s:.0f} s.",
    )


def _overhead_suggestion(scene: _Scene) -> str:
    if scene.facts.eager:
        return "Try: without --enforce-eager, so that CUDA graphs launch a step at once."
    return "Look at CPU load and clocks of this host; a larger batch spreads the overhead."


def _compute_percent(scene: _Scene) -> float | None:
    """Share of the tensor peak: measured, else from vLLM's FLOP counter."""
    measured = _mean([gpu.tensor_percent for gpu in scene.gpus])
    if measured is not None:
        return measured
    card, flops = scene.facts.card, scene.engine.flops_per_s
    return flops / card.bf16_flops * 100.0 if card is not None and flops is not None else None


def _floor_words(scene: _Scene) -> str:
    if scene.floor_s is None or scene.tpot_s is None:
        return ""
    return (
        f" TPOT {units.duration(scene.tpot_s)} is {scene.tpot_s / scene.floor_s:.2f}x its floor of "
        f"{units.duration(scene.floor_s)}."
    )


def _bandwidth_bound(scene: _Scene, percent: float, moved: float | None, estimated: str) -> Verdict:
    reads = f"decoding reads {units.bytes_decimal(scene.cost.bytes)} a step and " if scene.cost is not None else ""
    speed = f"moves {units.bytes_per_s(moved)}, " if moved is not None else "uses "
    ratio = ""
    if scene.floor_s is not None and scene.tpot_s is not None:
        ratio = f"; TPOT is {scene.tpot_s / scene.floor_s:.2f}x its floor"
    headline = f"Bandwidth-bound: {reads}{speed}{units.percent_of_100(percent)} of peak{estimated}{ratio}."
    return Verdict("bandwidth", headline, _bandwidth_suggestion(scene))


def _bandwidth_suggestion(scene: _Scene) -> str:
    setup, card, cost = scene.facts.setup, scene.facts.card, scene.cost
    if setup is None or card is None or cost is None or scene.floor_s is None:
        return "Try: --speculative-config for repetitive text." if scene.facts.speculative is False else ""
    if cost.kv_read_bytes > cost.weight_bytes and setup.kv_value_bytes >= 2:
        return _change(scene, "--kv-cache-dtype fp8", replace(setup, kv_value_bytes=1.0))
    if setup.quantization.name == UNQUANTIZED.name:
        scheme = quantization_named("fp8")
        if card.fp8_flops and scheme is not None:
            return _change(scene, "--quantization fp8", replace(setup, quantization=scheme))
        scheme = quantization_named("awq")
        if scheme is not None:
            return _change(scene, "an AWQ checkpoint with --quantization awq", replace(setup, quantization=scheme))
    if not scene.facts.speculative:
        return "Try: --speculative-config for repetitive text; a step then yields several tokens for one read."
    return f"Try: --tensor-parallel-size {2 * setup.tensor_parallel}; each card then reads half."


def _change(scene: _Scene, flag: str, other: Setup) -> str:
    assert scene.facts.card is not None
    time = step_time(other, scene.facts.card, decode_cost(other, scene.batch, scene.context, scene.drafted + 1))
    if time is None:
        return f"Try: {flag}."
    return f"Try: {flag} (floor {units.duration(scene.floor_s)} → {units.duration(time.total_s / scene.length)})."


def _compute_bound(scene: _Scene, compute: float, percent: float) -> Verdict:
    engine = scene.engine
    prompt, generated = engine.prompt_tokens_per_s or 0.0, engine.generation_tokens_per_s or 0.0
    computed = prompt * (engine.prompt_computed_share if engine.prompt_computed_share is not None else 1.0)
    what = "decoding a large batch"
    if computed > 2 * generated:
        what = f"prefill computes {units.rate(computed, 'prompt tok/s')}"
    headline = (
        f"Compute-bound: {what}; {units.percent_of_100(compute)} of the tensor peak, "
        f"{units.percent_of_100(percent)} of the bandwidth."
    )
    if scene.drafted and computed <= 2 * generated:
        return Verdict(
            "compute", headline, "Try: without --speculative-config; guesses cost arithmetic that is used up."
        )
    if computed > 2 * generated and scene.facts.prefix_caching is False:
        return Verdict("compute", headline, "Try: --enable-prefix-caching where prompts share their beginning.")
    setup, card = scene.facts.setup, scene.facts.card
    if setup is not None and card is not None and card.fp8_flops and setup.quantization.compute == "bf16":
        return Verdict("compute", headline, "Try: --quantization fp8; it doubles the tensor peak.")
    return Verdict("compute", headline)


# --- Explain ------------------------------------------------------------------------------------------------------


def _terms(scene: _Scene) -> tuple[tuple[str, str], ...]:
    engine, facts = scene.engine, scene.facts
    setup, card, cost = facts.setup, facts.card, scene.cost
    found = [("running", f"{units.count(scene.running)} requests, {units.count(scene.waiting)} waiting")]
    status = scene.view.status
    if status.max_num_seqs is not None:
        found.append(("sequence limit", f"{units.count(status.max_num_seqs)} (--max-num-seqs)"))
    if engine.tokens_per_step is not None:
        limit = status.max_num_batched_tokens
        of = f" of {units.count(limit)} (--max-num-batched-tokens)" if limit is not None else ""
        found.append(("tokens a step", f"{units.count(engine.tokens_per_step)}{of}"))
    if engine.kv_usage is not None:
        found.append(
            ("KV cache", f"{units.percent(engine.kv_usage)} of {units.count(engine.kv_capacity_tokens)} tokens")
        )
    if setup is None or cost is None:
        found.append(("model", facts.why_no_setup))
    else:
        found += _model_terms(scene, setup, cost)
        if card is None:
            found.append(("floor", "the peaks of this card are not known"))
        else:
            found += _card_terms(scene, setup, card, cost)
    for gpu in scene.gpus:
        band = gpu.bandwidth
        if band is not None:
            peak = (
                f" of {units.bytes_per_s(band.peak_bytes_per_s)} ({band.peak_source})" if band.peak_bytes_per_s else ""
            )
            found.append(
                (
                    f"GPU {gpu.index} DRAM",
                    f"{units.percent_of_100(band.percent)}, {units.bytes_per_s(band.bytes_per_s)}{peak}; "
                    f"source {band.source}",
                )
            )
    found.append(
        (
            "limits used",
            f"bandwidth-bound from {BANDWIDTH_BOUND_PERCENT:.0f} %, compute-bound from {COMPUTE_BOUND_PERCENT:.0f} %, "
            f"KV full from {KV_FULL * 100:.0f} %",
        )
    )
    return tuple(found)


def _model_terms(scene: _Scene, setup: Setup, cost: StepCost) -> list[tuple[str, str]]:
    shape = setup.shape
    over = f", over {setup.gpus} GPUs" if setup.gpus > 1 else ""
    requests = "request" if scene.batch == 1 else "requests"
    return [
        ("model", f"{shape.name}, {shape.parameters / 1e9:.2f} billion parameters, {setup.quantization.name}{over}"),
        ("weights read a step", f"{units.bytes_decimal(cost.weight_bytes)} on each GPU (all but the embedding)"),
        (
            "KV read a step",
            f"{units.count(scene.batch)} {requests} x {units.count(scene.context)} tokens x "
            f"{kv_bytes_per_token(setup):,.0f} B = {units.bytes_decimal(cost.kv_read_bytes)}",
        ),
        ("step", f"{units.bytes_decimal(cost.bytes)} and {cost.flops / 1e9:.3g} GFLOP on each GPU"),
    ]


def _card_terms(scene: _Scene, setup: Setup, card: Card, cost: StepCost) -> list[tuple[str, str]]:
    time = step_time(setup, card, cost)
    if time is None or scene.floor_s is None:
        return [("floor", f"the peaks of {card.name} are not known")]
    found = [
        ("memory time", f"{units.bytes_decimal(cost.bytes)} / {units.bytes_per_s(card.bandwidth_bytes_per_s)} = "
                        f"{units.duration(time.memory_s)}"),
        ("arithmetic time", units.duration(time.compute_s)),
    ]  # fmt: skip
    if time.link_s:
        found.append(
            ("link time", f"{units.bytes_decimal(cost.link_bytes)} of all-reduce: {units.duration(time.link_s)}")
        )
    floor = units.duration(scene.floor_s)
    if scene.length > 1:
        floor = f"{units.duration(time.total_s)} / {scene.length:.2f} tokens a step = {floor}"
    found.append(("TPOT floor", floor))
    if scene.tpot_s is not None:
        found.append(("TPOT now", f"{units.duration(scene.tpot_s)}, {scene.tpot_s / scene.floor_s:.2f}x the floor"))
    ridge = critical_batch(setup, card)
    if ridge is not None:
        found.append(("ridge", f"compute-bound above about {ridge:.0f} requests"))
    return found
