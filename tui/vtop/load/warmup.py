"""Warm-up prompts: of the shape of those that will be measured, and never the same text.

A warm-up with the measured prompts would put them into the server's prefix cache, and the test would measure that.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vtop.load.workload import Prompt, Shape, warmup_shape

_PIECE = re.compile(r"\s*\S{1,6}")
"""A few characters of text: words, or parts of them where a script has no spaces."""
_POOL = 20_000
"""About so many pieces or token ids are kept to draw from, as often as they occur."""
ANY_IDS = range(1000, 9000)
"""Ordinary token ids in every vocabulary in use."""


def file_warmups(prompts: Sequence[Prompt], shape: Shape) -> Iterator[Prompt]:
    """Without end: prompts as long as the file's, made of its words (or token ids) in another order.

    Each begins with a random word, so that not even its first block of tokens is one of the file's. Of a conversation
    some turns have already been had, with made-up answers, because later turns are longer. Images and sound are left
    out: the server would keep them.
    """
    rng = random.Random(warmup_shape(shape).seed)
    maker = _Maker(prompts, shape, rng)
    while True:
        yield maker.other(rng.choice(prompts))


class _Maker:
    def __init__(self, prompts: Sequence[Prompt], shape: Shape, rng: random.Random) -> None:
        self._shape = shape
        self._rng = rng
        share = max(50, _POOL // len(prompts))
        pieces = [
            piece
            for prompt in prompts[:_POOL]
            for text in _texts(prompt)
            for piece in _PIECE.findall(text[: 6 * share])
        ]
        ids = [token for prompt in prompts[:_POOL] for token in (prompt.token_ids or ())[:share]]
        self._pieces = pieces or [" word"]
        self._piece_characters = sum(map(len, self._pieces)) / len(self._pieces)
        # Few different ids could come out as one of the file's prompts by chance.
        self._ids: Sequence[int] = ids if len(set(ids)) >= 64 else ANY_IDS

    def other(self, prompt: Prompt) -> Prompt:
        """A prompt of the same form and length."""
        if prompt.token_ids is not None:
            return replace(prompt, token_ids=tuple(self._rng.choices(self._ids, k=len(prompt.token_ids))), at_s=None)
        if prompt.text is not None:
            return replace(prompt, text=self._text(prompt.text), at_s=None)
        messages = [self._message(message) for message in prompt.messages or ()]
        answer_words = prompt.max_tokens or self._shape.max_tokens
        for turn in prompt.turns[: self._rng.randrange(len(prompt.turns) + 1)]:
            messages.append({"role": "assistant", "content": self._pieces_of(answer_words)})
            messages.append({"role": "user", "content": self._text(turn)})
        return replace(prompt, messages=tuple(messages), turns=(), at_s=None)

    def _message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        content = message.get("content")
        if isinstance(content, str):
            return {**message, "content": self._text(content)}
        if isinstance(content, list):
            texts = [self._text(text) for text in _parts(content)]
            return {**message, "content": " ".join(texts) or self._pieces_of(1)}
        return message

    def _text(self, text: str) -> str:
        return self._pieces_of(len(text) / self._piece_characters)

    def _pieces_of(self, pieces: float) -> str:
        """So many pieces; the first is random."""
        return f"{self._rng.randrange(16**6):06x}" + "".join(
            self._rng.choices(self._pieces, k=max(0, round(pieces) - 1))
        )


def _texts(prompt: Prompt) -> Iterator[str]:
    if prompt.text is not None:
        yield prompt.text
    for message in prompt.messages or ():
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            yield from _parts(content)
    yield from prompt.turns


def _parts(content: Sequence[Any]) -> Iterator[str]:
    """The texts among the parts of a message."""
    for part in content:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            yield part["text"]
