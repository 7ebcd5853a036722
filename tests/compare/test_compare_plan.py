"""The order of runs and the estimate of their time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compare.comparing import Machine
from vtop.compare.asked_load import load_of
from vtop.compare.plan import configurations, plan_steps, remaining_s, settled_order
from vtop.compare.record import last_times_s, new_record, repeat_command, save_record
from vtop.errors import UsageError
from vtop.load.progress import LoadRequest
from vtop.results.comparison import CompareRequest, CompareStep


def order_of(steps: tuple[CompareStep, ...]) -> str:
    return " ".join(f"{step.preset}{step.round}" for step in steps)


def test_rounds_alternate_their_direction() -> None:
    assert order_of(plan_steps(["A", "B", "C"], 3, "interleaved")) == "A1 B1 C1 C2 B2 A2 A3 B3 C3"


def test_blocks_end_with_the_first_configuration_again() -> None:
    steps = plan_steps(["A", "B"], 2, "blocks")
    assert order_of(steps) == "A1 A2 B1 B2 A3"
    assert [step.drift_check for step in steps] == [False, False, False, False, True]


def test_a_preset_against_itself_has_two_names() -> None:
    assert configurations(["x", "x", "y"]) == (("x", "x"), ("x (2)", "x"), ("y", "y"))


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="at least two"):
        configurations(["only"])
    with pytest.raises(UsageError, match="at least one run"):
        plan_steps(["A", "B"], 0, "interleaved")
    with pytest.raises(UsageError, match="unknown order"):
        settled_order(CompareRequest(presets=("A", "B"), order="random"), {}, {})


def test_blocks_only_where_starts_are_known_to_be_much_longer_than_runs() -> None:
    request = CompareRequest(presets=("A", "B"))
    assert settled_order(request, {}, {}) == "interleaved"
    assert settled_order(request, {"A": 40, "B": 40}, {"A": 5, "B": 5}) == "interleaved", "a short start is affordable"
    assert settled_order(request, {"A": 900, "B": 40}, {"A": 60, "B": 60}) == "blocks"
    assert settled_order(request, {"A": 900}, {"A": 600}) == "interleaved"
    forced = CompareRequest(presets=("A", "B"), order="interleaved")
    assert settled_order(forced, {"A": 900}, {"A": 60}) == "interleaved"


def test_the_estimate_adds_starts_loads_and_stops() -> None:
    steps = plan_steps(["A", "B"], 2, "interleaved")
    assert remaining_s(steps, "interleaved", {"A": 30, "B": 40}, {"A": 10, "B": 20}) == 2 * (30 + 40 + 10 + 20) + 4 * 5


def test_in_blocks_each_block_starts_once() -> None:
    steps = plan_steps(["A", "B"], 2, "blocks")
    assert (
        remaining_s(steps, "blocks", {"A": 30, "B": 40}, {"A": 10, "B": 20}) == (30 + 40 + 30) + 3 * 5 + 3 * 10 + 2 * 20
    )


def test_an_unknown_time_is_not_guessed() -> None:
    steps = plan_steps(["A", "B"], 1, "interleaved")
    assert remaining_s(steps, "interleaved", {"A": 30}, {"A": 10, "B": 20}) is None


async def test_the_next_plan_of_the_same_load_knows_how_long_it_takes(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    request = CompareRequest(presets=("A", "B"), workload="chat", repeats=2)
    assert last_times_s(request, tmp_path) == ({}, {})
    runner = machine.runner()
    runner.start(request)
    await runner.wait()
    starts, loads = last_times_s(request, tmp_path)
    assert starts == {"A": pytest.approx(30), "B": pytest.approx(30)}
    assert loads == {"A": pytest.approx(10), "B": pytest.approx(10)}
    plan = machine.runner(last_starts_s=starts, last_loads_s=loads).plan(request)
    assert plan.expected_s == pytest.approx(4 * (30 + 10 + 5))
    other = replace(request, workload="prefix")
    assert last_times_s(other, tmp_path) == (starts, {})
    assert last_times_s(replace(request, simulated=True), tmp_path) == ({}, {})


def test_a_file_of_prompts_gets_a_fresh_server_for_each_run_even_where_starts_are_slow() -> None:
    own = CompareRequest(("a", "b"), load=LoadRequest(workload="file", file="prompts.jsonl"))
    started, loaded = {"a": 600.0, "b": 600.0}, {"a": 20.0, "b": 20.0}
    assert settled_order(replace(own, load=None), started, loaded) == "blocks"
    assert settled_order(own, started, loaded) == "interleaved"
    with pytest.raises(UsageError, match="the same prompts for each"):
        settled_order(replace(own, order="blocks"), started, loaded)


def test_single_values_change_a_load_of_ones_own_and_answers_have_one_length_unless_asked_otherwise() -> None:
    own = LoadRequest(workload="decode", prompt_tokens=64, duration_s=60.0, shape="mine")
    sent = load_of(CompareRequest(("a", "b"), load=own, requests=8, concurrency=2))
    assert (sent.workload, sent.prompt_tokens, sent.concurrency, sent.shape) == ("decode", 64, 2, "mine")
    assert (sent.requests, sent.duration_s) == (8, None), "a number of requests takes the place of the time"
    assert sent.ignore_eos is True
    assert load_of(CompareRequest(("a", "b"), load=replace(own, ignore_eos=False))).ignore_eos is False
    assert load_of(CompareRequest(("a", "b"))).workload == "chat"


def test_the_time_of_a_load_is_known_only_from_the_same_load(tmp_path: Path) -> None:
    request = CompareRequest(("a", "b"), load=LoadRequest(workload="decode", prompt_tokens=64))
    record = new_record(request, "interleaved", 1.0, tmp_path)
    save_record(replace(record, loaded_s={"a": 30.0, "b": 40.0}))
    assert last_times_s(request, tmp_path)[1] == {"a": 30.0, "b": 40.0}
    longer = replace(request, load=LoadRequest(workload="decode", prompt_tokens=4096))
    assert last_times_s(longer, tmp_path)[1] == {}


def test_the_time_of_a_file_is_known_however_its_path_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = CompareRequest(("a", "b"), load=LoadRequest(workload="file", file="prompts.jsonl"))
    save_record(replace(new_record(request, "interleaved", 1.0, tmp_path), loaded_s={"a": 30.0, "b": 40.0}))
    assert last_times_s(request, tmp_path)[1] == {"a": 30.0, "b": 40.0}


def test_the_command_of_a_shape_with_values_of_the_screen_sends_what_was_sent() -> None:
    """Twenty requests took the place of the shape's minute; both in the command would be a third load."""
    shape = LoadRequest(workload="chat", duration_s=60.0, concurrency=8, shape="mine")
    request = CompareRequest(("a", "b"), workload="mine", load=shape, requests=20, concurrency=4)
    assert repeat_command(request) == "vtop compare a b --workload chat -c 4 -n 20 --repeats 3"
