"""How the simulated server guesses the next tokens: a real n-gram look-up, or a draft model with an acceptance rate."""

from __future__ import annotations

from dataclasses import dataclass

from vtop.roofline import Setup
from vtop.setups import LOOK_UP_FREE

ACCEPTANCE: dict[str, float] = {
    "draft_model": 0.65,
    "eagle": 0.62,
    "eagle3": 0.72,
    "mtp": 0.80,
    "medusa": 0.55,
    "mlp_speculator": 0.50,
}
"""Chance that one more drafted token is right on ordinary text. This is data about models, not physics: round figures
in the middle of what the methods' authors report for chat (mean acceptance lengths of about 2.5 to 3 with 3 to 5
drafted tokens). The simulator says so wherever it shows an acceptance."""

ACCEPTANCE_ON_COPIED_TEXT = 0.95
"""Text that repeats earlier text is easy for any drafter that sees the context."""


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """What to guess with."""

    method: str
    tokens: int
    lookup_min: int = 5
    lookup_max: int = 5
    draft: Setup | None = None
    """The draft model as it is served beside the target; None for look-ups, which cost no GPU time."""

    @property
    def looks_up(self) -> bool:
        """Guesses come from the request's own tokens."""
        return self.method in LOOK_UP_FREE


class NgramIndex:
    """Finds what followed the last few tokens when they occurred before, longest match first."""

    __slots__ = ("_indexed", "_last", "_maximum", "_minimum")

    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self._last: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def propose(self, tokens: list[int], count: int) -> list[int]:
        """Up to `count` tokens that followed the longest matching end of `tokens` at its latest earlier place."""
        self._extend(tokens)
        size = len(tokens)
        for length in range(self._maximum, self._minimum - 1, -1):
            if length >= size:
                continue
            place = self._last.get(tuple(tokens[size - length :]))
            if place is not None:
                return tokens[place : place + count]
        return []

    def _extend(self, tokens: list[int]) -> None:
        """Indexes every n-gram that ends before the last token; its value is the place right behind it."""
        size = len(tokens)
        for end in range(max(self._indexed, 1), size):
            for length in range(self._minimum, self._maximum + 1):
                if length <= end:
                    self._last[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, size)


def is_accepted(method: str, draw: float, copied: bool) -> bool:
    """Whether a drafted token with this draw is right."""
    return draw < (ACCEPTANCE_ON_COPIED_TEXT if copied else ACCEPTANCE.get(method, 0.5))
