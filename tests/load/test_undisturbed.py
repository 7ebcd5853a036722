from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from vtop.load.undisturbed import undisturbed

LINUX = pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="no real-time scheduling here")


def test_no_garbage_is_collected_while_it_measures() -> None:
    assert gc.isenabled()
    with undisturbed():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_everything_is_as_before_after_an_error() -> None:
    policy = os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None
    with pytest.raises(KeyError), undisturbed():
        raise KeyError
    assert gc.isenabled()
    if policy is not None:
        assert os.sched_getscheduler(0) == policy


@LINUX
def test_it_says_truly_whether_it_runs_first() -> None:
    policy = os.sched_getscheduler(0)
    with undisturbed() as granted:
        running_first = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
        assert granted == running_first
    assert os.sched_getscheduler(0) == policy


@LINUX
def test_a_child_does_not_inherit_it() -> None:
    with undisturbed():
        words = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]
        said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(said.stdout) != os.SCHED_RR


@LINUX
def test_a_process_that_was_made_nice_stays_nice() -> None:
    program = (
        "import os\nos.nice(5)\nfrom vtop.load.undisturbed import undisturbed\n"
        "with undisturbed() as granted:\n    print(granted, os.sched_getscheduler(0), os.nice(0))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    granted, policy, nice = said.stdout.split()
    assert granted == "False"
    assert int(policy) != os.SCHED_RR
    assert int(nice) >= 5


@LINUX
def test_without_the_right_to_it_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, policy: int, parameter: os.sched_param) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with undisturbed() as granted:
        assert granted is False
        assert not gc.isenabled()
