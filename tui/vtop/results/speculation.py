"""What speculation did in a run, from the server's counters, and the gain that bytes and FLOPs predict for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Guessing:
    """Speculation over a run."""

    guessed_share: float
    """Share of a sequence's steps that had a draft to check, 0..1."""
    tokens_per_step: float
    """Tokens that a step yielded, with and without a draft."""

    def gain(self, step_cost: float) -> float:
        """Expected output against the same server without speculation, above 1: faster.

        Args:
            step_cost: time of a step that checks a draft, over that of a plain one. Steps without a draft cost 1; in a
                batch where some sequences have a draft, the step's time is taken as linear in their share.
        """
        return self.tokens_per_step / (1 + self.guessed_share * (step_cost - 1))


def guessing(server: Mapping[str, Any], drafted_per_step: int | None = None) -> Guessing | None:
    """From the server's own numbers over the run; None where it does not count them all.

    Each step of a sequence yields one token of the model's own and the accepted ones, so the steps are the generated
    tokens less the accepted ones. Drafts are the drafted tokens over the tokens of one draft, which the mean acceptance
    length gives: 1 + accepted / drafts.

    Args:
        server: as in `LoadResult.server`.
        drafted_per_step: the setting, for servers that do not count drafts.
    """
    generated, drafted, acceptance = (_number(server, n) for n in ("generation_tokens", "drafted_tokens", "acceptance"))
    if generated is None or drafted is None or not generated:
        return None
    if not drafted:
        return Guessing(0.0, 1.0)
    if acceptance is None:
        return None
    accepted = drafted * acceptance
    steps = generated - accepted
    if steps <= 0:
        return None
    length = _number(server, "acceptance_length")
    if length is not None and length > 1:
        drafts = accepted / (length - 1)
    elif drafted_per_step:
        drafts = drafted / drafted_per_step
    else:
        return None
    return Guessing(min(1.0, drafts / steps), generated / steps)


def _number(server: Mapping[str, Any], name: str) -> float | None:
    value = server.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
