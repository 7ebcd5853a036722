"""Text to tokens and back for the simulated server: deterministic, small, about four characters a token."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence

_PIECE = re.compile(r" ?[A-Za-z]{1,9}|\d{1,3}| ?[^\sA-Za-z\d]|\s")

_COMMON = """
the of and to a in is that it for as with on are by this be from or which an at not can have their has but more one
also when these such into other between two each use used time than only some they may most its system where both so
there over if number first way through will about work many what how same part data model small large given set very
out up well new often case result value high order example different called because after while form then being
before under state even make process point main structure common change general memory level problem method simple
term power line known note three important reason step since during take right found answer question possible need
water light energy space function local without second next must does within name several means body rate list
current effect together less single group area field view end long start object type open cost cause kind study
world human life history language theory based speed write read count machine network input output test sample user
service request page cache batch token layer attention weight bandwidth latency queue server stream limit measure
average
"""
WORDS: tuple[str, ...] = tuple(f" {word}" for word in _COMMON.split())
_PUNCTUATION = (".", ",", "\n", ":", ";")
FULL_STOP = len(WORDS)
COMMA = len(WORDS) + 1
NEWLINE = len(WORDS) + 2
_FIXED = WORDS + _PUNCTUATION


class Vocabulary:
    """Token ids and their text.

    The common words have the first ids; any other piece gets one from its checksum, so that every process agrees on
    the ids of a text. Two rare pieces may share an id, which costs a wrong word in a text that means nothing.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._ids = {piece: index for index, piece in enumerate(_FIXED)}
        self._texts: dict[int, str] = dict(enumerate(_FIXED))
        self._json: dict[int, str] = {}

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        ids = self._ids
        found = []
        for piece in _PIECE.findall(text):
            token = ids.get(piece)
            if token is None:
                token = self._learn(piece)
            found.append(token)
        return found

    def _learn(self, piece: str) -> int:
        span = max(1, self.size - len(_FIXED))
        token = len(_FIXED) + zlib.crc32(piece.encode()) % span
        if len(self._ids) > 2 * self.size:
            self._ids = {known: index for index, known in enumerate(_FIXED)}
        self._ids[piece] = token
        self._texts[token] = piece
        self._json.pop(token, None)
        return token

    def text(self, token: int) -> str:
        """The text of a token; an id that came in a token-id prompt reads as one of the common words."""
        known = self._texts.get(token)
        return WORDS[token % len(WORDS)] if known is None else known

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return "".join(map(self.text, tokens))

    def json_text(self, token: int) -> str:
        """The text of a token as the inside of a JSON string."""
        cached = self._json.get(token)
        if cached is None:
            cached = self._json[token] = json.dumps(self.text(token))[1:-1]
        return cached
