"""The times of a load at the roofline, and what a step of speculation costs there: only bytes and FLOPs count."""

from __future__ import annotations

from vtop.errors import UsageError, VtopError
from vtop.hardware import Card
from vtop.load.progress import LoadRequest
from vtop.load.workload import WORKLOADS, find_workload, resolve
from vtop.presets import ServerSpec
from vtop.results.comparison import CompareRequest, FloorTimes
from vtop.roofline import decode_cost, prefill_cost, speculation_gain, step_time
from vtop.setups import LOOK_UP_FREE, draft_setup, setup_for_spec

USUAL_BATCH, USUAL_PROMPT, USUAL_ANSWER = 16, 512, 150
"""For a load that says nothing of its shape (a file): requests at once, tokens of a prompt and of an answer."""
SENTENCE = 40
"""Tokens of a prompt that is a sentence and not made to a length, with its chat template."""


def _load_of(request: CompareRequest) -> tuple[int, float, int, int]:
    """(requests at once, tokens in the cache of one in the middle of its answer, tokens of a prompt, of an answer)."""
    workload = WORKLOADS.get(request.workload or "chat")
    if workload is None:
        batch, prompt, answer = USUAL_BATCH, USUAL_PROMPT, USUAL_ANSWER
    else:
        batch, answer = workload.concurrency or USUAL_BATCH, workload.max_tokens
        sized = workload.prefix_tokens + workload.prompt_tokens
        prompt = sized if workload.equal_lengths else SENTENCE
    answer = request.max_tokens or answer
    return request.concurrency or batch, prompt + answer / 2, prompt, answer


def check_load(request: CompareRequest) -> None:
    """Whether the load of a comparison is one that every configuration can be given alike.

    Raises:
        UsageError: there is no such workload, its values make no test, or it is not one load but a search.
    """
    name = request.workload or "chat"
    workload = find_workload(name)
    if workload.ladder or workload.rate_share is not None or name == "file":
        raise UsageError(
            f"a comparison cannot use the workload {name!r}",
            "It needs one load that is the same for all: chat, prefix, decode, long, repeat or random.",
        )
    resolve(
        LoadRequest(
            workload=name,
            requests=request.requests,
            concurrency=request.concurrency,
            max_tokens=request.max_tokens,
            warmup=request.warmup,
        )
    )


def floor_times(spec: ServerSpec, card: Card | None, request: CompareRequest) -> FloorTimes | None:
    """The least times of a preset under the load of a comparison; None where model or card is not known."""
    if card is None:
        return None
    try:
        setup = setup_for_spec(spec)
    except VtopError:
        return None
    if setup is None:
        return None
    batch, context, prompt, answer = _load_of(request)
    pair = spec.disaggregated
    together = min(batch, spec.max_num_seqs or batch)
    on_each = together / pair.decode if pair is not None else together
    step = step_time(setup, card, decode_cost(setup, on_each, context))
    prefill = step_time(setup, card, prefill_cost(setup, prompt))
    if step is None or prefill is None:
        return None
    return FloorTimes(
        batch=together,
        answer_tokens=answer,
        prefill_s=prefill.compute_s + prefill.link_s,
        step_s=step.total_s,
        prefill_servers=pair.prefill if pair is not None else 0,
    )


def speculation_step_cost(spec: ServerSpec, card: Card | None, request: CompareRequest) -> float | None:
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
    batch, context, _, _ = _load_of(request)
    together = min(batch, spec.max_num_seqs or batch)
    gain = speculation_gain(setup, card, together, context, speculative.num_tokens, 1.0, draft)
    return None if gain is None else gain.break_even_length
