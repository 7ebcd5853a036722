"""A comparison that was saved, in the shape of a running one, so that one table shows both."""

from __future__ import annotations

from pathlib import Path

from vtop.compare.record import claim, load_record
from vtop.errors import VtopError
from vtop.results.comparison import CompareProgress


def saved_comparison(directory: Path) -> CompareProgress:
    """The comparison as it stands on disk.

    One whose vtop died reads `cancelled`: nothing drives it, and it can be gone on with.

    Raises:
        VtopError: there is none, it is damaged, or a newer vtop wrote it.
    """
    record = load_record(directory)
    state, message = record.state, record.message
    if state == "running":
        try:
            claim(record)
        except VtopError as elsewhere:
            message = elsewhere.what
        else:
            state = "cancelled"
    return CompareProgress(
        run_id=record.run_id,
        request=record.request,
        state=state,
        steps=record.steps,
        rows=record.rows,
        elapsed_s=record.elapsed_s,
        expected_s=None,
        message=message,
        warnings=record.warnings,
        simulated=record.simulated,
        directory=record.directory,
        repeat_command=record.repeat_command,
    )
