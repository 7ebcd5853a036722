"""What a comparison refuses before anything is started: a cause, a remedy, exit code 1 or 2, nothing left behind."""

from __future__ import annotations

import pytest

from cli.vtop_process import Vtop


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("baseline",), "at least two presets"),
        (("baseline", "basline"), "Did you mean baseline?"),
        (("baseline", "awq", "--workload", "zzz"), "there is no workload 'zzz'"),
        (("baseline", "awq", "--workload", "ladder"), "cannot use the workload 'ladder'"),
        (("baseline", "awq", "--workload", "rate"), "cannot use the workload 'rate'"),
        (("baseline", "awq", "-n", "0"), "requests must be above 0"),
        (("baseline", "awq", "-c", "-1"), "concurrency must be above 0"),
        (("baseline", "awq", "--repeats", "0"), "at least one run"),
        (("baseline", "awq", "--gpu", "Voodoo 2"), "no such GPU to simulate: Voodoo 2"),
        (("baseline", "awq", "--set", "max_model_length=2048"), "max_model_len"),
        (("--resume", "nope"), "there is no comparison"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_is_refused_with_a_remedy_before_anything_starts(vtop: Vtop, words: tuple[str, ...], said: str) -> None:
    done = vtop("compare", *words, "--sim", code=None)
    assert done.code in (1, 2), done.err
    assert said in done.err
    assert not vtop.processes()
    runs = vtop.directory("RUNS")
    assert not runs.exists() or not list(runs.iterdir())


def test_a_plan_says_order_time_and_what_its_rounds_can_tell(vtop: Vtop) -> None:
    done = vtop("compare", "baseline", "awq", "--sim", "--dry-run", "--repeats", "2")
    assert "round 1: baseline · awq\nround 2: awq · baseline\n" in done.err
    assert "how long it takes is not known" in done.err
    assert "2 rounds can tell a difference of about 29 %" in done.err
    assert (
        "one run of each: numbers, but no verdict"
        in vtop("compare", "baseline", "awq", "--sim", "--dry-run", "--repeats", "1").err
    )
