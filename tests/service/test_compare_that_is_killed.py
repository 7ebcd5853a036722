"""A comparison that is killed, stopped or loses its terminal goes on where it was, and leaves no server behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.vtop_process import Vtop

WORDS = ("baseline", "sequential", "--sim", "--repeats", "2", "-n", "4", "-c", "2", "--max-tokens", "8")
QUICK = ("--set", "args.startup-s=0.2")


@pytest.fixture(autouse=True)
def hangups_as_in_a_terminal() -> Iterator[None]:
    """Tests that run under nohup would hand their deaf ear to what they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def vtop(tmp_path: Path) -> Iterator[Vtop]:
    own = Vtop(tmp_path)
    yield own
    own.end_everything()


def after_the_first_run(vtop: Vtop) -> subprocess.Popen[str]:
    """A comparison of four runs of which one is over and the next has begun."""
    process = vtop.spawn("compare", *WORDS, *QUICK)
    assert process.stderr is not None
    done = False
    while True:
        line = process.stderr.readline()
        assert line, "the comparison ended before it was killed"
        if done and ": starting" in line:
            return process
        done = done or ": done" in line


def saved_run(vtop: Vtop) -> str:
    (run,) = [run["run_id"] for run in vtop("runs", "--json").json() if run["kind"] == "compare"]
    return str(run)


def check_resumed(vtop: Vtop, run: str) -> None:
    resumed = vtop("compare", "--resume", run, "--json").json()
    assert (resumed["run_id"], resumed["state"], resumed["simulated"]) == (run, "finished", True)
    assert [row["preset"] for row in resumed["rows"]] == ["baseline", "sequential"]
    assert [row["runs"] for row in resumed["rows"]] == [2, 2]
    assert vtop.nothing_runs(), [p.cmdline() for p in vtop.processes()]


def test_a_comparison_that_was_killed_resumes_and_leaves_no_server(vtop: Vtop) -> None:
    process = after_the_first_run(vtop)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    run = saved_run(vtop)
    check_resumed(vtop, run)
    assert "SIMULATED" in vtop("report", run).out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_a_comparison_with_its_server_and_keeps_what_was_measured(
    vtop: Vtop, number: signal.Signals
) -> None:
    process = after_the_first_run(vtop)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    if number != signal.SIGHUP:
        assert "--resume" in out
    assert vtop.nothing_runs(), [p.cmdline() for p in vtop.processes()]
    run = saved_run(vtop)
    document = vtop("report", run, "--format", "json").json()
    assert document["state"] == "cancelled"
    assert len(document["runs"]) == 1


def test_a_closed_terminal_ends_a_comparison_with_its_server_and_it_resumes(vtop: Vtop) -> None:
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "vtop", "compare", *WORDS, *QUICK], stdin=slave, stdout=slave, stderr=slave,
        env=vtop.environment(), start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    said = b""
    while b": done" not in said:
        said += os.read(master, 4096)
    os.close(master)
    assert process.wait(60) == 130
    assert vtop.nothing_runs(), [p.cmdline() for p in vtop.processes()]
    check_resumed(vtop, saved_run(vtop))


def test_nohup_is_respected(vtop: Vtop) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "vtop", "compare", "baseline", "sequential", "--sim", "--repeats", "1", "-n", "2", "-c",
         "1", "--max-tokens", "4", "--json", *QUICK],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=vtop.environment(),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert process.stderr is not None
    line = ""
    while ": starting" not in line:
        line = process.stderr.readline()
        assert line, "the comparison ended before its first start"
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
