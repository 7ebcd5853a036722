"""Reports of load tests, ladders and comparisons as Markdown, CSV, JSON or one self-contained HTML page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from vtop.errors import UsageError, VtopError
from vtop.load.progress import LoadResult
from vtop.results import store
from vtop.results.blocks import Bars, Block, Bullets, Command, Heading, Lines, Table, Text
from vtop.results.comparison import ComparisonRecord
from vtop.results.documents import comparison_document, comparison_row, run_document, run_row, step_row
from vtop.results.report_comparison import comparison_blocks
from vtop.results.report_load import run_blocks

Subject = LoadResult | ComparisonRecord

FORMATS = ("md", "csv", "json", "html")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def render(subjects: Sequence[Subject], form: str) -> str:
    """A report.

    Args:
        subjects: load tests, ladders and comparisons, in this order.
        form: `md`, `csv`, `json` or `html`.

    Raises:
        UsageError: an unknown form, nothing to report, or a CSV of unlike things.
    """
    if not subjects:
        raise UsageError("there is nothing to report", "Name at least one run: vtop runs lists them.")
    if form == "md":
        return "\n".join(text for block in _all_blocks(subjects) if (text := _markdown(block)))
    if form == "html":
        from vtop.results.report_html import page

        return page(_title(subjects), _all_blocks(subjects))
    if form == "json":
        documents = [_document(subject) for subject in subjects]
        encoded = msgspec.json.encode(documents[0] if len(documents) == 1 else documents)
        return msgspec.json.format(encoded, indent=2).decode() + "\n"
    if form == "csv":
        return _csv(subjects)
    raise UsageError(f"unknown report format {form!r}", f"Use one of {', '.join(FORMATS)}.")


def write_report(subjects: Sequence[Subject], form: str, path: Path) -> Path:
    """Writes a report in one step.

    Raises:
        UsageError: see `render`.
        VtopError: the file cannot be written.
    """
    text = render(subjects, form)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_atomically(path, text.encode())
    except OSError as error:
        raise VtopError(
            f"cannot write {path}: {error.strerror}", "`vtop report RUN -o FILE` writes it elsewhere."
        ) from error
    return path


def blocks(subject: Subject) -> list[Block]:
    """The report of one run, ladder or comparison, before it has a form."""
    return list(comparison_blocks(subject) if isinstance(subject, ComparisonRecord) else run_blocks(subject))


def _all_blocks(subjects: Sequence[Subject]) -> list[Block]:
    return [block for subject in subjects for block in blocks(subject)]


def _title(subjects: Sequence[Subject]) -> str:
    first = blocks(subjects[0])[0]
    return first.text if isinstance(first, Heading) and len(subjects) == 1 else f"vtop report of {len(subjects)} runs"


def _document(subject: Subject) -> dict[str, Any]:
    return comparison_document(subject) if isinstance(subject, ComparisonRecord) else run_document(subject)


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_cell(text)}\n"
        case Text(text, loud):
            return f"**{_cell(text)}**\n" if loud else f"{_cell(text)}\n"
        case Bullets(items):
            return "".join(f"- {_cell(item)}\n" for item in items)
        case Command(text):
            return f"```sh\n{text}\n```\n"
        case Table(headers, rows, wide):
            rule = ["---" if index in (0, *wide) else "---:" for index in range(len(headers))]
            return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in (headers, rule, *rows))
        case Bars() | Lines():
            return ""


def _cell(text: str) -> str:
    """Text that Markdown shows as it is."""
    for char in "\\`*_[]<>|#":
        text = text.replace(char, f"\\{char}")
    return " ".join(text.split())


def _csv(subjects: Sequence[Subject]) -> str:
    rows: list[dict[str, Any]] = []
    kinds = set()
    for subject in subjects:
        if isinstance(subject, ComparisonRecord):
            kinds.add("comparisons")
            rows += [comparison_row(subject, row) for row in subject.rows]
        elif subject.steps:
            kinds.add("ladders")
            rows += [step_row(subject, step) for step in subject.steps]
        else:
            kinds.add("load tests")
            rows.append(run_row(subject))
    if len(kinds) > 1:
        raise UsageError(f"one CSV file cannot hold {' and '.join(sorted(kinds))}", "Write one for each kind.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _safe(value: Any) -> Any:
    """A cell that a spreadsheet does not take for a formula; unknown is empty."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
