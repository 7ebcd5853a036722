"""Plain text for a terminal or a pipe: tables, questions, JSON without NaN."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vtop.errors import UsageError


def say(text: str = "") -> None:
    """One line to standard output."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """One line to standard error, so that output can be piped."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def visible(text: str) -> str:
    r"""The text on one line: what moves a cursor or colours a terminal is written out (`\n`, `\x1b`)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (c.isspace() and c not in _BREAKS) else repr(c)[1:-1] for c in text)


_BREAKS = "\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def table(rows: Sequence[Sequence[str]], heading: Sequence[str] | None = None, right: Sequence[int] = ()) -> str:
    """Columns padded to their width.

    Args:
        rows: cells as text.
        heading: names of the columns.
        right: indices of columns that hold numbers.
    """
    every = [list(heading)] if heading else []
    every += [[visible(cell) for cell in row] for row in rows]
    if not every:
        return ""
    widths = [max(_width(row[column]) for row in every) for column in range(len(every[0]))]
    lines = []
    for row in every:
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - _width(cell))
            cells.append(space + cell if column in right else cell + space)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    """Cells that a terminal gives to the text: two for each wide character."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def finite(value: Any) -> Any:
    """The same structure with every NaN and infinity as None, for JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def say_json(value: Any) -> None:
    """JSON to standard output: unknown is null, never NaN; letters are escapes where the output is not UTF-8."""
    plain = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"
    say(json.dumps(finite(value), indent=2, ensure_ascii=plain, allow_nan=False))


def confirmed(question: str, yes: bool) -> bool:
    """Asks before something is destroyed.

    Raises:
        UsageError: nobody is there to ask and --yes was not given.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{question} needs a yes, and there is no terminal to ask on", "Add --yes.")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
