"""The times of a load at the roofline, and what a step of speculation costs there: only bytes and FLOPs count."""

from __future__ import annotations

from vtop.compare.asked_load import load_of
from vtop.errors import UsageError, VtopError
from vtop.hardware import Card
from vtop.load.files import open_file
from vtop.load.workload import find_workload, resolve
from vtop.presets import ServerSpec
from vtop.results.comparison import CompareRequest, FloorTimes
from vtop.roofline import decode_cost, prefill_cost, speculation_gain, step_time
from vtop.setups import LOOK_UP_FREE, draft_setup, setup_for_spec

USUAL_BATCH, USUAL_PROMPT, USUAL_ANSWER = 16, 512, 150
"""For a load that says nothing of its shape (a file): requests at once, tokens of a prompt and of an answer."""
SENTENCE = 40
"""Tokens of a prompt that is a sentence and not made to a length, with its chat template."""


def _load_of(request: CompareRequest) -> tuple[int, float, int, int]:
    """(sequences at once, tokens in the cache of one in the middle of its answer, tokens of a prompt, of an answer)."""
    load = load_of(request)
    shape = resolve(load)
    if load.file is not None:
        prompt, answer = USUAL_PROMPT, load.max_tokens or USUAL_ANSWER
    else:
        answer = shape.max_tokens
        prompt = shape.prefix_tokens + shape.prompt_tokens if shape.made_to_length else SENTENCE
    # A burst is there all at once, and never are more at once than there are; each brings as many answers as `n` says.
    at_once = [count for count in (shape.concurrency, shape.requests) if count is not None]
    if shape.concurrency is None and not shape.burst:
        at_once = [USUAL_BATCH]
    return min(at_once) * shape.choices, prompt + answer / 2, prompt, answer


def check_load(request: CompareRequest) -> None:
    """Whether the load of a comparison is one that every configuration can be given alike.

    Raises:
        UsageError: there is no such workload, its values make no test, it is not one load but a search, or its file
            cannot be read.
    """
    load = load_of(request)
    shape = resolve(load)
    workload = find_workload(shape.workload)
    if workload.ladder or workload.rate_share is not None or load.search:
        raise UsageError(
            f"a comparison cannot use the load {load.shape or shape.workload!r}: it finds its own rate for each server",
            "It needs one load that is the same for all: chat, prefix, decode, long, repeat, random, a file of "
            "prompts, or a load shape of one of these.",
        )
    if shape.file is not None:
        open_file(shape)


def _spread(spec: ServerSpec, batch: int) -> tuple[int, float]:
    """Requests that decode together, in all and on each of the servers (or data-parallel copies) that share them."""
    copies = spec.replicas * (spec.data_parallel or 1)
    if spec.disaggregated is not None:
        copies = spec.disaggregated.decode
    together = min(batch, (spec.max_num_seqs or batch) * copies)
    return together, max(1.0, together / copies)


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
    together, on_each = _spread(spec, batch)
    step = step_time(setup, card, decode_cost(setup, on_each, context))
    prefill = step_time(setup, card, prefill_cost(setup, prompt))
    if step is None or prefill is None:
        return None
    return FloorTimes(
        batch=together,
        answer_tokens=answer,
        # Several whole servers prefill side by side; those of a pair are counted apart.
        prefill_s=(prefill.compute_s + prefill.link_s) / (1 if pair is not None else together / on_each),
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
    _, on_each = _spread(spec, batch)
    gain = speculation_gain(setup, card, on_each, context, speculative.num_tokens, 1.0, draft)
    return None if gain is None else gain.break_even_length
