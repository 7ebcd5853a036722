"""A comparison on disk is shown as what it is: finished, cut, or running in another vtop."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import psutil

from vtop.compare.record import new_record, save_record
from vtop.compare.saved import saved_comparison
from vtop.results.comparison import CompareRequest, ComparisonRecord


def saved(tmp_path: Path, **changes: object) -> ComparisonRecord:
    record = new_record(CompareRequest(("a", "b"), "chat", 2), "interleaved", 1_800_000_000.0, tmp_path)
    record = replace(record, **changes)  # type: ignore[arg-type]
    save_record(record)
    return record


def test_a_finished_one_is_shown_with_its_steps_and_the_command_that_repeats_it(tmp_path: Path) -> None:
    record = saved(tmp_path, state="finished", elapsed_s=61.0, warnings=("it drifted",))
    shown = saved_comparison(Path(record.directory))
    assert (shown.state, shown.elapsed_s, shown.warnings) == ("finished", 61.0, ("it drifted",))
    assert shown.steps == record.steps
    assert shown.repeat_command.startswith("vtop compare a b")


def test_one_whose_vtop_died_is_not_said_to_run(tmp_path: Path) -> None:
    record = saved(tmp_path, state="running", owner_pid=2**22 + 1, owner_created_s=1.0)
    assert saved_comparison(Path(record.directory)).state == "cancelled"


def test_one_that_runs_elsewhere_is_said_to_run_there(tmp_path: Path) -> None:
    parent = psutil.Process(os.getppid())
    record = saved(tmp_path, state="running", owner_pid=parent.pid, owner_created_s=parent.create_time())
    shown = saved_comparison(Path(record.directory))
    assert shown.state == "running"
    assert f"pid {parent.pid}" in shown.message
