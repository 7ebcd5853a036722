"""Output tokens a second at the roofline: what a configuration could reach if nothing but bytes and FLOPs counted."""

from __future__ import annotations

from vtop.errors import VtopError
from vtop.hardware import Card
from vtop.presets import ServerSpec
from vtop.roofline import decode_cost, step_time
from vtop.setups import setup_for_spec

CONTEXT = 600
"""Tokens in the cache of a request in the middle of its answer, for chat-like loads."""
CONCURRENCY = 16


def predicted_tokens_per_s(spec: ServerSpec, card: Card | None, concurrency: int | None = None) -> float | None:
    """The decode rate at the floor; None where model or card is not known, or where it depends on the text.

    Speculation and P/D pairs have no prediction: their gain depends on acceptance and on the prompts.
    """
    if card is None or spec.speculative is not None or spec.disaggregated is not None:
        return None
    try:
        setup = setup_for_spec(spec)
    except VtopError:
        return None
    if setup is None:
        return None
    batch = min(concurrency or CONCURRENCY, spec.max_num_seqs or 1_000_000)
    step = step_time(setup, card, decode_cost(setup, batch, CONTEXT))
    return batch / step.total_s if step is not None and step.total_s > 0 else None
