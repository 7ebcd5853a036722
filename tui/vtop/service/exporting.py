"""Reports of saved runs and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vtop.compare.record import load_record
from vtop.load.progress import LoadResult
from vtop.results import report, store
from vtop.results.comparison import ComparisonRecord


def subject(run_id: str) -> LoadResult | ComparisonRecord:
    """A saved run or comparison by its id.

    Raises:
        VtopError: there is none, or it cannot be read.
    """
    directory = store.run_directory(run_id)
    if (directory / "compare.json").exists():
        return load_record(directory)
    return store.load_result(run_id)


def write_report(run_ids: Sequence[str], form: str, path: str | None) -> str:
    """The report as text; written to `path` if one is given.

    Raises:
        VtopError: a run that does not exist, an unknown form, a file that cannot be written.
    """
    subjects = [subject(run_id) for run_id in run_ids]
    if path is None:
        return report.render(subjects, form)
    report.write_report(subjects, form, Path(path))
    return ""


def export_run(run_id: str, form: str, path: str | None) -> str:
    """Writes a report beside the run, or where it is told; returns the file's path."""
    target = Path(path) if path is not None else store.run_directory(run_id) / f"report.{form}"
    return str(report.write_report([subject(run_id)], form, target))
