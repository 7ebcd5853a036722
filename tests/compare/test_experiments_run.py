"""Every guided experiment to its end, as a person starts it; simulated, with time twenty times as fast.

What comes out depends on how busy this machine is, so no verdict is expected here: the sentence must say what the
table says, whatever that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.vtop_process import Vtop
from vtop import units
from vtop.experiments import EXPERIMENTS, Experiment

FAST = ("--set", "args.speed=20", "--set", "args.startup-s=0.1")


@pytest.fixture
def vtop(tmp_path: Path) -> Iterator[Vtop]:
    own = Vtop(tmp_path)
    yield own
    own.end_everything()


def check_sentence(sentence: str, rows: list[Mapping[str, Any]]) -> None:
    before, after = rows
    assert sentence.startswith("SIMULATED: ")
    assert before["preset"] in sentence and after["preset"] in sentence
    assert after["verdict"] in sentence
    if after["verdict"].startswith("not comparable"):
        return
    assert after["ratio"] == pytest.approx(after["output_tokens_per_s"] / before["output_tokens_per_s"])
    assert f"{units.significant(after['ratio'])}x" in sentence
    if after["gpus"] and before["gpus"] and after["gpus"] != before["gpus"]:
        assert f"with {after['gpus']} GPUs against {before['gpus']}" in sentence


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=[one.name for one in EXPERIMENTS])
def test_an_experiment_runs_both_loads_and_says_what_its_tables_say(vtop: Vtop, experiment: Experiment) -> None:
    done = vtop("experiment", experiment.name, "--sim", "--repeats", "1", "--json", *FAST)
    assert experiment.what in done.err and experiment.watch in done.err
    document = done.json()
    assert document["experiment"] == experiment.name
    assert [one["request"]["workload"] for one in document["results"]] == [t.workload for t in experiment.trials]
    for one, trial in zip(document["results"], experiment.trials, strict=True):
        assert (one["state"], one["simulated"], one["request"]["concurrency"]) == ("finished", True, trial.concurrency)
        assert f"{trial.heading}: `{trial.workload}" in done.err
        assert [row["preset"] for row in one["rows"]] == list(experiment.presets)
        for row in one["rows"]:
            assert (row["runs"], row["failed"]) == (1, 0)
            assert row["output_tokens_per_s"] > 0
        assert one["rows"][1]["verdict"].startswith(("one run: no verdict", "not comparable: "))
        assert one["rows"][1]["predicted_ratio"] > 0
        check_sentence(one["sentence"], one["rows"])
    assert vtop.nothing_runs(), [process.cmdline() for process in vtop.processes()]


def test_with_repeats_there_are_intervals_and_a_table_for_people(vtop: Vtop) -> None:
    done = vtop("experiment", "prefix-caching", "--sim", "--repeats", "2", *FAST)
    tables = done.out.split("X FIRST")[1:]
    assert len(tables) == 2
    for table in tables:
        assert "J/TOKEN  KV CAPACITY" in table
        assert "\nbaseline " in table and "\nprefix-caching " in table
        assert table.count("SIMULATED: With the workload") == 1
    assert "simulated time ran 20 times as fast" in done.out
    assert "of the prompt tokens came from the prefix cache" in tables[0]
    assert "the prompts of this load share nothing" in tables[1]
