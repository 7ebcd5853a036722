"""A comparison killed with SIGKILL in the middle goes on where it was, and leaves no server behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.vtop_process import Vtop, until

WORDS = ("baseline", "sequential", "--sim", "--repeats", "2", "-n", "4", "-c", "2", "--max-tokens", "8")
QUICK = ("--set", "args.startup-s=0.2")


@pytest.fixture
def vtop(tmp_path: Path) -> Iterator[Vtop]:
    own = Vtop(tmp_path)
    yield own
    own.end_everything()


@pytest.mark.long
def test_a_comparison_that_was_killed_resumes_and_leaves_no_server(vtop: Vtop) -> None:
    process = vtop.spawn("compare", *WORDS, *QUICK)
    assert process.stderr is not None
    done = 0
    while done < 1:
        line = process.stderr.readline()
        assert line, "the comparison ended before it was killed"
        done += ": done" in line
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    (run,) = [r["run_id"] for r in vtop("runs", "--json").json() if r["kind"] == "compare"]
    resumed = vtop("compare", "--resume", run, "--json").json()
    assert resumed["run_id"] == run
    assert resumed["state"] == "finished"
    assert [row["preset"] for row in resumed["rows"]] == ["baseline", "sequential"]
    assert all(row["runs"] == 2 for row in resumed["rows"])
    assert resumed["simulated"] is True
    assert vtop.nothing_runs(), [p.cmdline() for p in vtop.processes()]
    assert "SIMULATED" in vtop("report", run).out


@pytest.mark.long
def test_ctrl_c_ends_a_comparison_with_its_server(vtop: Vtop) -> None:
    process = vtop.spawn("compare", *WORDS, *QUICK)
    assert until(lambda: any("vtop.sim" in p.cmdline() for p in vtop.processes()))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    assert "--resume" in out
    assert vtop.nothing_runs(), [p.cmdline() for p in vtop.processes()]
