"""Lines of text with a meaning on each piece: what every panel draws, before there are any colours.

Text is literal here. Nothing is ever read as markup, and no control character passes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

LONGEST_LINE = 4096
"""Characters of one line that are ever looked at; a log line of a megabyte must not hold up the screen."""

ROLES = (
    "dim", "strong", "title", "frame", "good", "warn", "bad", "key", "bar", "track", "badge",
    "ttft", "tpot", "output", "floor", "event", "second", "verdict",
)  # fmt: skip
"""What a piece of text is; app.tcss gives each a style. Never the only carrier of a meaning."""


def printable(text: str) -> str:
    r"""Text that a terminal shows as it is: a line break reads `\n`, other control characters read U+FFFD."""
    if len(text) > LONGEST_LINE:
        text = text[: LONGEST_LINE - 1] + "…"
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if character in "\n\r":
        return "\\n" if character == "\n" else "\\r"
    if character == "\t":
        return "    "
    return " " if unicodedata.category(character) == "Zs" else "\N{REPLACEMENT CHARACTER}"


def cut(text: str, width: int, ellipsis: str = "…") -> str:
    """Text of at most `width` cells, with a mark where something was left out. For names, never for numbers."""
    if cell_len(text) <= width:
        return text
    if width <= cell_len(ellipsis):
        return set_cell_size(text, max(0, width))
    return set_cell_size(text, width - cell_len(ellipsis)).rstrip() + ellipsis


def cut_start(text: str, width: int, ellipsis: str = "…") -> str:
    """A name of at most `width` cells that keeps its end: there stands what tells names made by a program apart."""
    if cell_len(text) <= width:
        return text
    kept = text
    while kept and cell_len(kept) > width - cell_len(ellipsis):
        kept = kept[1:]
    return ellipsis + kept if kept else set_cell_size(text, max(0, width))


def cut_words(text: str, width: int, ellipsis: str = "…") -> str:
    """A sentence of at most `width` cells, ended after a whole word, so that a number in it is whole or absent."""
    if cell_len(text) <= width:
        return text
    room = width - cell_len(ellipsis) - 1
    kept = set_cell_size(text, max(0, room))
    if not text.startswith(kept + " "):
        kept = kept.rpartition(" ")[0] or kept
    return kept.rstrip(" ,;:(") + " " + ellipsis


class Line:
    """One row: pieces of text with their roles."""

    __slots__ = ("cursor", "spans")

    def __init__(self, text: str = "", role: str = "") -> None:
        self.spans: list[tuple[str, str]] = []
        self.cursor = False
        """Drawn as the chosen row."""
        self.add(text, role)

    def add(self, text: str, role: str = "") -> Line:
        """Appends a piece; control characters become visible ones."""
        if text:
            self.spans.append((printable(text), role))
        return self

    def join(self, other: Line) -> Line:
        """Appends another line's pieces."""
        self.spans.extend(other.spans)
        return self

    @property
    def text(self) -> str:
        """The row without roles."""
        return "".join(text for text, _ in self.spans)

    @property
    def width(self) -> int:
        """Cells that it takes."""
        return sum(cell_len(text) for text, _ in self.spans)

    def with_role(self, role: str) -> Line:
        """The same text in one role: how stale rows are drawn."""
        line = Line()
        line.spans = [(text, role) for text, _ in self.spans]
        line.cursor = self.cursor
        return line

    def fit(self, width: int) -> Line:
        """The row in exactly `width` cells: padded, or cut at the right."""
        line = Line()
        line.cursor = self.cursor
        left = width
        for text, role in self.spans:
            size = cell_len(text)
            if size > left:
                if left > 0:
                    line.spans.append((set_cell_size(text, left), role))
                return line
            line.spans.append((text, role))
            left -= size
        if left > 0:
            line.spans.append((" " * left, ""))
        return line

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self.spans == other.spans and self.cursor == other.cursor

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Line({self.text!r})"


@dataclass(frozen=True, slots=True)
class Field:
    """A piece of a row that is shown whole or not at all, so that no number is ever cut."""

    line: Line
    weight: int = 0
    """Higher goes first; fields of weight 0 are always kept."""


def field(text: str, role: str = "", weight: int = 0) -> Field:
    """A field of one piece."""
    return Field(Line(text, role), weight)


def pack(fields: Sequence[Field], width: int, gap: int = 2) -> Line:
    """One row of the fields that fit, in their order; those of the least weight give way first."""
    kept = [item for item in fields if item.line.spans]

    def total() -> int:
        return sum(item.line.width for item in kept) + gap * max(0, len(kept) - 1)

    while total() > width:
        losers = [item for item in kept if item.weight > 0]
        if not losers:
            break
        kept.remove(min(losers, key=lambda item: item.weight))
    row = Line()
    for index, item in enumerate(kept):
        if index:
            row.add(" " * gap)
        row.join(item.line)
    return row


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` at the left edge and `right` at the right one; the left one gives way, then the right is dropped."""
    room = width - right.width
    if room < left.width + 1:
        return left.fit(width)
    row = Line().join(left.fit(room)).join(right)
    row.cursor = left.cursor
    return row


def wrap(text: str, width: int, role: str = "", indent: str = "") -> list[Line]:
    """Words on lines of at most `width` cells; a word longer than that is broken, never lost."""
    rows: list[str] = []
    row = ""
    for word in printable(text).split(" "):
        while cell_len(word) > width - len(indent) and cell_len(word) > 1:
            if row:
                rows.append(row)
                row = ""
            piece = ""
            for character in word:
                if cell_len(piece + character) > width - len(indent):
                    break
                piece += character
            if not piece:
                break
            rows.append(piece)
            word = word[len(piece) :]
        candidate = f"{row} {word}" if row else word
        if cell_len(candidate) <= width - (len(indent) if rows else 0):
            row = candidate
        else:
            rows.append(row)
            row = word
    if row or not rows:
        rows.append(row)
    return [Line((indent if index else "") + text, role) for index, text in enumerate(rows)]


def table(rows: Iterable[Sequence[str]], aligns: str, gap: int = 2) -> list[str]:
    """Rows with columns as wide as their widest cell; `aligns` has `<` or `>` for each column."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        return []
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for row in cells:
        parts = []
        for cell, width, align in zip(row, widths, aligns, strict=True):
            pad = " " * (width - cell_len(cell))
            parts.append(pad + cell if align == ">" else cell + pad)
        lines.append((" " * gap).join(parts).rstrip())
    return lines
