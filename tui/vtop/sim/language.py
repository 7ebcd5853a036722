"""What the simulated model says: deterministic pseudo-text that repeats itself about as much as its prompt does."""

from __future__ import annotations

import math
import random
import re
import zlib
from array import array
from collections.abc import Sequence

from vtop.sim.vocabulary import COMMA, FULL_STOP, WORDS

COPY_RUN_TOKENS = 24
"""Mean length of a passage that an answer takes over word for word ..."""
ASKED_COPY_RUN_TOKENS = 60
"""... and when it was asked to do just that."""
LEAST_REPETITION = 0.05
"""Any answer takes over names and phrases."""
MOST_REPETITION = 0.95
ASKED_TO_REPEAT = 0.9
"""Share of the answer that is taken from the prompt when the prompt asks for just that."""
_ASKS = re.compile(
    r"\b(repeat|copy|verbatim|word for word|rewrite|proofread|correct the|reformat|edit the|quote|return the same)\b",
    re.I,
)
_GRAM = 4

NATURAL_LENGTH_MEDIAN = 220
NATURAL_LENGTH_SIGMA = 0.5
"""Answers that may end by themselves do so after a log-normal number of tokens, as chat answers roughly do."""


def repeated_share(tokens: Sequence[int]) -> float:
    """Share of a prompt's four-token sequences that occurred in it before."""
    total = len(tokens) - _GRAM + 1
    if total < 2:
        return 0.0
    seen = {tuple(tokens[start : start + _GRAM]) for start in range(total)}
    return 1.0 - len(seen) / total


def repetition(tokens: Sequence[int], text: str) -> float:
    """How much of the answer will be taken over from what is already there, 0..1."""
    asked = ASKED_TO_REPEAT if text and _ASKS.search(text) else 0.0
    return min(MOST_REPETITION, max(LEAST_REPETITION, repeated_share(tokens), asked))


class Continuation:
    """The true next tokens of one request; speculation guesses them and can never change them."""

    __slots__ = ("_copy_from", "_random", "_since_stop", "_start", "_stop", "_tokens", "copied", "natural_length")

    def __init__(self, tokens: list[int], share: float, seed: int) -> None:
        self._tokens = tokens
        self._random = random.Random(zlib.crc32(array("q", tokens).tobytes()) ^ seed)
        self._stop = 1.0 / (ASKED_COPY_RUN_TOKENS if share >= ASKED_TO_REPEAT else COPY_RUN_TOKENS)
        # Two states with these chances of changing spend `share` of the time in the copying one.
        self._start = share * self._stop / (1.0 - share)
        self._copy_from: int | None = self._anywhere() if self._random.random() < share else None
        self._since_stop = 0
        self.copied = False
        """Whether the last token was taken over from earlier text."""
        draw = math.exp(self._random.gauss(math.log(NATURAL_LENGTH_MEDIAN), NATURAL_LENGTH_SIGMA))
        self.natural_length = max(1, round(draw))

    def append_next(self) -> int:
        """Appends the next token to the request's tokens and returns it."""
        uniform = self._random.random
        tokens = self._tokens
        position = self._copy_from
        if position is None:
            if uniform() < self._start and len(tokens) > _GRAM:
                position = self._anywhere()
        elif uniform() < self._stop:
            position = None
        if position is not None and position < len(tokens):
            token = tokens[position]
            self._copy_from = position + 1
            self.copied = True
        else:
            self._copy_from = None
            self.copied = False
            token = self._fresh(uniform())
        tokens.append(token)
        return token

    def _anywhere(self) -> int:
        return int(self._random.random() * (len(self._tokens) - 1))

    def _fresh(self, draw: float) -> int:
        self._since_stop += 1
        if self._since_stop > 8 and draw < 0.12:
            self._since_stop = 0
            return FULL_STOP if draw < 0.08 else COMMA
        return int(len(WORDS) * self._random.random() ** 2)
