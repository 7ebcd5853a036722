"""A raw line of a vLLM log taken apart: control characters, progress bars, process prefix, level, message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

LONGEST_LINE = 16_384
"""Characters of one line that are looked at; a runaway line must not stall anybody."""

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: window titles, links
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor moves
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC strings
    r"|\x1b[ -/]*[0-~]?"  # everything shorter
)
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_PREFIX = re.compile(r"\(([A-Za-z][\w.:-]*)((?:[ ,]+\w+=[^\s,)]*)+)\)[ ]?")
_HEADER = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.,]+ \[?([\w./-]+\.py):\d+\][ ]?")
_UVICORN = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):[ ]+")


_COLLECTORS = tuple(
    map(
        re.compile,
        (
            r"[\w.-]+ +\| ?",  # docker compose logs
            r"\[pod/[^\]\s]+\] ?",  # kubectl logs --prefix
            r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w@./-]+(?:\[\d+\])?: ?",  # journalctl
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d) ?",  # docker logs -t, kubectl --timestamps
        ),
    )
)
"""What collects logs puts this before every line; the last may stand behind one of the others."""
_NEARLY_ALL = 0.9


@dataclass(frozen=True, slots=True)
class LogLine:
    """One message of the log."""

    number: int
    """Line in the file, from 1; a wrapped line has the number of its first part."""
    text: str
    """The message without prefix and level; its indentation stays."""
    process: str = ""
    """`APIServer`, `EngineCore`, `Worker_TP0`, ...; "" where the line does not say."""
    level: str = ""
    """`INFO`, `WARNING`, ...; "" for bare output (tracebacks, progress bars)."""
    source: str = ""
    """File that logged it, `core.py`."""


def plain(text: str) -> str:
    """Text without escape sequences and control characters, safe to show; brackets and markup stay as they are."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROLS.sub("", text)


def redrawn(raw: str) -> list[str]:
    """The states that a line went through: a progress bar redraws itself after each carriage return."""
    return [part for part in raw.rstrip("\r\n").split("\r") if part.strip()]


def visible(raw: str) -> str:
    """What a terminal would show of a raw line: its last state, as plain text."""
    states = redrawn(raw)
    return plain(states[-1]) if states else ""


def parse(raw: str, number: int = 0) -> LogLine:
    """Takes one state of a line apart.

    Args:
        raw: the text, without line end; only the first `LONGEST_LINE` characters count.
        number: its line number.
    """
    text = plain(raw[:LONGEST_LINE])
    process = level = source = ""
    at = 0
    while prefix := _PREFIX.match(text, at):
        process, at = prefix[1], prefix.end()
    if header := _HEADER.match(text, at):
        level, source, at = header[1], header[2].rsplit("/", 1)[-1], header.end()
    elif uvicorn := _UVICORN.match(text, at):
        level, at = uvicorn[1], uvicorn.end()
    return LogLine(number, text[at:], process, level, source)


def messages(lines: Iterable[str]) -> Iterator[LogLine]:
    """Every message of a whole log; redrawn bars give one each, lines that a terminal cut are joined again."""
    lines = _without_collector([raw[:LONGEST_LINE] for raw in lines])
    states = [(number, state) for number, raw in enumerate(lines, 1) for state in redrawn(raw)]
    width = _terminal_width([state for _, state in states])
    held: tuple[int, str] | None = None
    for number, state in states:
        if held is not None and _continues(state):
            gap = " " if len(_last_row(held[1], width)) == width - 1 else ""
            held = held[0], held[1] + gap + state
        else:
            if held is not None:
                yield parse(held[1], held[0])
            held = number, state
        if not width or len(state) < width - 1:
            yield parse(held[1], held[0])
            held = None
    if held is not None:
        yield parse(held[1], held[0])


def _without_collector(lines: list[str]) -> list[str]:
    """The lines as vLLM wrote them, where something that collects logs has put a name or a time before nearly all."""
    for pattern in _COLLECTORS:
        written = [line for line in lines if line.strip()]
        if written and sum(pattern.match(line) is not None for line in written) >= _NEARLY_ALL * len(written):
            lines = [pattern.sub("", line, count=1) if pattern.match(line) else line for line in lines]
    return lines


def _last_row(joined: str, width: int) -> str:
    return joined[-(len(joined) % width or width) :]


def _continues(state: str) -> bool:
    """Whether a line can be the rest of the one before: it has no header of its own."""
    return not (_PREFIX.match(state) or _HEADER.match(state) or _UVICORN.match(state))


def _terminal_width(states: list[str]) -> int:
    """Columns at which a copied terminal cut its lines; 0 where nothing was cut.

    Cut lines are all equally long, nothing is longer, and what follows most of them has no header of its own.
    """
    lengths = Counter(len(state) for state in states)
    if not lengths:
        return 0
    width = max(lengths)
    if not 40 <= width <= 400 or lengths[width] < 3:
        return 0
    followers = [after for before, after in pairwise(states) if len(before) == width]
    return width if sum(map(_continues, followers)) * 2 > len(followers) else 0
