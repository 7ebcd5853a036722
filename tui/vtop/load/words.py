"""Prompts of exact length without a tokenizer: words that the server itself says are one token each."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_COMMON = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city community name president team minute idea body information back parent
face level office door health person art war history party result change morning reason research girl guy moment air
teacher force education foot boy age policy music market sense nation plan college interest death course someone
experience role effect use class control field development report light care rate heart drug show leader voice wife
police mind price decision son view relationship town road arm difference value building action season society tax
director position player record paper space ground form event matter center couple site project activity star table
need court oil situation cost industry figure street image phone data picture practice piece land product doctor
wall patient worker news test movie north love support technology step baby computer type attention film tree source
"""
COMMON_WORDS = tuple(_COMMON.split())
"""Short everyday words, one token each in most vocabularies."""

_GUESSED_CHAT_OVERHEAD = 24
_GUESSED_TEXT_OVERHEAD = 14
_MOST_CALLS = 48
_SPELT = 4
"""Tokens a word from which a vocabulary spells words out; none of them is looked for then."""

Tokenize = Callable[[Mapping[str, Any]], Awaitable[list[int] | None]]
"""Asks the server's `/tokenize`; None where it has none."""


@dataclass(frozen=True, slots=True)
class WordSource:
    """Words to make prompts of."""

    words: tuple[str, ...] = COMMON_WORDS
    ids: tuple[int, ...] | None = None
    """The token id of each word, preceded by a space."""
    exact: bool = False
    """One word is one token, said by the server."""
    tokens_per_word: float = 1.0
    """Above 1 where the server's vocabulary has too few of the words whole; lengths are then approximate."""
    overheads: Mapping[str, int] = field(default_factory=dict)
    """Tokens around the words, by `overhead_key`."""

    def draw(self, rng: random.Random, count: int) -> str:
        """Random words, each with a space before it."""
        many = count if self.exact else max(1, round(count / self.tokens_per_word))
        return "".join([" " + word for word in rng.choices(self.words, k=many)])

    def tokens_in(self, text: str) -> int:
        """Tokens of a text that was drawn from these words: approximate where the words are."""
        return round(len(text.split()) * self.tokens_per_word)

    def overhead(self, lead: str, *, chat: bool) -> int:
        """Tokens of the lead and the chat template; a guess where the server does not say."""
        return self.overheads.get(
            overhead_key(lead, chat=chat), _GUESSED_CHAT_OVERHEAD if chat else _GUESSED_TEXT_OVERHEAD
        )


def overhead_key(lead: str, *, chat: bool) -> str:
    """Which overhead: of this lead text, inside the chat template or not."""
    return f"{'chat' if chat else 'text'}:{lead}"


async def learn_words(tokenize: Tokenize, leads: tuple[str, ...], *, chat: bool) -> WordSource:
    """Finds words of one token each, and what a lead and the chat template add, in a handful of calls.

    Args:
        tokenize: the server's tokenizer.
        leads: texts that stand before the words.
        chat: measure with the chat template.
    """
    calls = 0

    async def ids_of(words: list[str]) -> list[int] | None:
        nonlocal calls
        calls += 1
        return await tokenize({"prompt": "".join(" " + word for word in words), "add_special_tokens": False})

    words = list(COMMON_WORDS)
    first = await ids_of(words)
    if first is None:
        return WordSource()
    # Halves that do not come out at one token a word are halved again; what is left over is not used.
    single: dict[str, int] = {}
    # Wide before deep: where the calls run out, the groups that were clean are all known.
    pending: deque[tuple[list[str], list[int] | None]] = deque([(words, first)])
    while pending:
        group, ids = pending.popleft()
        if ids is not None and len(ids) == len(group):
            single.update(zip(group, ids, strict=True))
        elif ids is not None and len(group) > 4 and len(ids) < _SPELT * len(group) and calls < _MOST_CALLS:
            half = len(group) // 2
            pending += [(part, await ids_of(part)) for part in (group[:half], group[half:])]
    if len(single) < 32:
        return WordSource(tokens_per_word=max(1.0, len(first) / len(words)))
    good = tuple(word for word in words if word in single)
    overheads: dict[str, int] = {}
    exact = True
    sample = [good[0], good[-1]] * 8
    for lead in leads:
        text = lead + "".join(" " + word for word in sample)
        ids = await tokenize(
            {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
            if chat
            else {"prompt": text}
        )
        if ids is None or len(ids) < len(sample):
            exact = False
        else:
            overheads[overhead_key(lead, chat=chat)] = len(ids) - len(sample)
    return WordSource(words=good, ids=tuple(single[word] for word in good), exact=exact, overheads=overheads)


def parse_tokens(payload: bytes) -> list[int] | None:
    """The ids of a `/tokenize` answer, or None if it is not one."""
    try:
        tokens = json.loads(payload).get("tokens")
    except (ValueError, AttributeError):
        return None
    return tokens if isinstance(tokens, list) and all(isinstance(token, int) for token in tokens) else None
