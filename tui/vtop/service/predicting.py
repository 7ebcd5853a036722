"""The decode rate at the roofline, and what a step of speculation costs there: nothing but bytes and FLOPs counts."""

from __future__ import annotations

from vtop.errors import VtopError
from vtop.hardware import Card
from vtop.load.workload import WORKLOADS
from vtop.presets import ServerSpec
from vtop.results.comparison import CompareRequest
from vtop.roofline import decode_cost, speculation_gain, step_time
from vtop.setups import LOOK_UP_FREE, draft_setup, setup_for_spec

USUAL_CONTEXT, USUAL_BATCH = 600.0, 16
"""For a load that says neither: tokens in the cache in the middle of an answer, requests at once."""


def load_shape(request: CompareRequest) -> tuple[int, float]:
    """(requests at once, tokens in the cache of one in the middle of its answer) of the load that will run."""
    workload = WORKLOADS.get(request.workload or "chat")
    if workload is None:
        return request.concurrency or USUAL_BATCH, USUAL_CONTEXT
    answer = request.max_tokens or workload.max_tokens
    context = workload.prefix_tokens + workload.prompt_tokens + answer / 2
    return request.concurrency or workload.concurrency or USUAL_BATCH, context


def predicted_tokens_per_s(spec: ServerSpec, card: Card | None, batch: int, context: float) -> float | None:
    """The decode rate at the floor, without speculation; None where model or card is not known, and for P/D pairs.

    A P/D pair has no prediction: what it gains is the interference that it takes away.
    """
    if card is None or spec.disaggregated is not None:
        return None
    try:
        setup = setup_for_spec(spec)
    except VtopError:
        return None
    if setup is None:
        return None
    together = min(batch, spec.max_num_seqs or batch)
    step = step_time(setup, card, decode_cost(setup, together, context))
    return together / step.total_s if step is not None and step.total_s > 0 else None


def speculation_step_cost(spec: ServerSpec, card: Card | None, batch: int, context: float) -> float | None:
    """Time of a step that drafts and checks, over the time of a plain one: the tokens that it must yield to pay.

    None without speculation, and where model, drafter or card is not known.
    """
    speculative = spec.speculative
    if card is None or speculative is None:
        return None
    try:
        setup = setup_for_spec(spec)
        if setup is None:
            return None
        draft = draft_setup(setup, speculative.method, speculative.model)
    except VtopError:
        return None
    if draft is None and speculative.method not in LOOK_UP_FREE:
        return None
    together = min(batch, spec.max_num_seqs or batch)
    gain = speculation_gain(setup, card, together, context, speculative.num_tokens, 1.0, draft)
    return None if gain is None else gain.break_even_length
