"""What a comparison refuses before anything is started: a cause, a remedy, exit code 1 or 2, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.vtop_process import Vtop
from vtop.compare.record import load_record, new_record, save_record
from vtop.load.progress import LoadRequest
from vtop.results.comparison import CompareRequest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("baseline",), "at least two presets"),
        (("baseline", "basline"), "Did you mean baseline?"),
        (("baseline", "awq", "--workload", "zzz"), "there is no workload 'zzz'"),
        (("baseline", "awq", "--workload", "ladder"), "cannot use the load 'ladder'"),
        (("baseline", "awq", "--workload", "rate"), "cannot use the load 'rate'"),
        (("baseline", "awq", "-n", "0"), "requests must be above 0"),
        (("baseline", "awq", "-c", "-1"), "concurrency must be above 0"),
        (("baseline", "awq", "--repeats", "0"), "at least one run"),
        (("baseline", "awq", "--gpu", "Voodoo 2"), "no such GPU to simulate: Voodoo 2"),
        (("baseline", "awq", "--set", "max_model_length=2048"), "max_model_len"),
        (("baseline", "awq", "--shape", "zzz"), "no load shape is called zzz"),
        (("baseline", "awq", "--shape", "slo-search"), "cannot use the load 'slo-search'"),
        (("baseline", "awq", "--file", "no-such.jsonl"), "cannot read no-such.jsonl"),
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


def test_a_file_of_prompts_is_never_sent_twice_to_one_server(vtop: Vtop, tmp_path: Path) -> None:
    """The second round would be answered from the prefix cache."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Why is decode slow?"}\n')
    words = ("compare", "baseline", "awq", "--sim", "--dry-run", "--file", str(prompts))
    refused = vtop(*words, "--order", "blocks", code=None)
    assert refused.code == 2
    assert "a file has the same prompts for each" in refused.err
    assert "round 1: baseline · awq\nround 2: awq · baseline\n" in vtop(*words).err


def test_a_load_of_ones_own_is_run_and_recorded_and_its_command_repeats_it(
    vtop: Vtop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of a file at a rate: what was asked reaches each run, and answers have the same length."""
    prompts = tmp_path / "prompts.jsonl"
    monkeypatch.chdir(tmp_path)
    prompts.write_text("".join(f'{{"prompt": "Question {number}?", "max_tokens": 8}}\n' for number in range(4)))
    load = ("--file", prompts.name, "--rate", "20")
    done = vtop("compare", "baseline", "awq", "--sim", "--repeats", "1", "--json", *load)
    found = json.loads(done.out)
    assert found["request"]["load"]["rate"] == 20.0
    assert found["request"]["load"]["file"] == str(prompts), "found from any folder, for --resume"
    slow, fast = found["rows"]
    assert slow["runs"] == fast["runs"] == 1
    assert fast["predicted_ratio"] is None
    assert any("requests arrive by the clock" in note for note in fast["notes"])
    saved = json.loads(vtop("report", found["run_id"], "--format", "json").out)
    assert {run["output_tokens"] for run in saved["runs"]} == {32}
    assert f"--workload file --rate 20 --file {prompts}" in saved["repeat_command"]


def test_a_comparison_is_not_gone_on_with_while_its_file_is_away(vtop: Vtop, tmp_path: Path) -> None:
    """Its runs would be counted as failed, and could not be made when the file is back."""
    request = CompareRequest(
        ("baseline", "awq"), simulated=True, load=LoadRequest(workload="file", file=str(tmp_path / "away.jsonl"))
    )
    record = new_record(request, "interleaved", 1.0, vtop.directory("RUNS"))
    save_record(record)
    done = vtop("compare", "--resume", record.run_id, code=None)
    assert done.code == 2
    assert f"cannot read {tmp_path / 'away.jsonl'}" in done.err
    assert {step.state for step in load_record(Path(record.directory)).steps} == {"waiting"}
