"""Guided experiments: their presets and loads exist, and the sentence says what the rows say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vtop.errors import UsageError
from vtop.experiments import EXPERIMENTS, Experiment, experiment_named, experiment_of, result_sentence
from vtop.load.workload import WORKLOADS
from vtop.preset_files import load_catalog, with_overrides
from vtop.results.comparison import CompareProgress, CompareRow

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


def row(preset: str, tokens_per_s: float, **fields: object) -> CompareRow:
    known: dict[str, object] = dict.fromkeys(CompareRow.__dataclass_fields__)
    for name, field in CompareRow.__dataclass_fields__.items():
        if field.default is not field.default_factory and isinstance(field.default, str | tuple):
            known[name] = field.default
    known |= {"preset": preset, "runs": 3, "output_tokens_per_s": tokens_per_s, "failed": 0, "verdict": "first row"}
    return CompareRow(**{**known, **fields})  # type: ignore[arg-type]


def progress(experiment: Experiment, *rows: CompareRow, simulated: bool = False) -> CompareProgress:
    request = experiment.request(experiment.shows_off, repeats=3, simulated=simulated)
    return CompareProgress("c", request, "finished", (), rows, 60.0, 60.0, simulated=simulated)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=[one.name for one in EXPERIMENTS])
def test_its_presets_are_shipped_and_differ_in_what_it_is_about(experiment: Experiment) -> None:
    presets = load_catalog().presets
    without, with_it = (with_overrides(presets[name], experiment.overrides).server for name in experiment.presets)
    assert without != with_it
    if experiment.name != "quantization":
        assert without.model == with_it.model


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=[one.name for one in EXPERIMENTS])
def test_it_says_what_it_is_in_three_sentences_and_runs_two_known_loads(experiment: Experiment) -> None:
    sentences = experiment.what.replace(";", ".").count(". ") + 1
    assert 3 <= sentences <= 4
    assert {trial.workload for trial in experiment.trials} <= set(WORKLOADS)
    assert experiment.shows_off != experiment.does_not_help


def test_a_simulation_gets_the_short_load_and_a_real_server_the_whole_one() -> None:
    experiment = BY_NAME["prefix-caching"]
    short = experiment.request(experiment.shows_off, repeats=3, simulated=True, gpu="H100")
    assert (short.requests, short.max_tokens, short.gpu) == (32, 64, "H100")
    whole = experiment.request(experiment.shows_off, repeats=3)
    assert (whole.requests, whole.max_tokens, whole.warmup) == (None, None, None)


def test_a_persons_own_settings_win() -> None:
    experiment = BY_NAME["tensor-parallel"]
    request = experiment.request(experiment.shows_off, repeats=1, overrides={"model": "other", "max_model_len": "512"})
    assert request.overrides == {"model": "other", "served_name": "qwen2.5-7b", "max_model_len": "512"}


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError) as raised:
        experiment_named("prefix")
    assert "prefix-caching" in raised.value.remedy


def test_a_comparison_is_known_as_an_experiment_by_presets_and_load() -> None:
    experiment = BY_NAME["speculative-decoding"]
    request = experiment.request(experiment.does_not_help, repeats=3)
    assert experiment_of(request) is experiment
    assert experiment_of(replace(request, workload="chat")) is None


def test_the_sentence_has_ratio_interval_verdict_and_what_moved() -> None:
    said = result_sentence(
        progress(
            BY_NAME["prefix-caching"],
            row("baseline", 500.0, ttft_p50_s=0.4),
            row("prefix-caching", 650.0, ratio=1.3, ratio_low=1.25, ratio_high=1.36, verdict="faster", ttft_p50_s=0.1,
                ttft_verdict="faster", prefix_hit_rate=0.9),
        )
    )  # fmt: skip
    assert said == (
        "With the workload `prefix`, prefix-caching gave 1.30x (1.25 to 1.36x) the output tokens/s of baseline: "
        "faster; TTFT p50 400 ms to 100 ms, faster; 90 % prefix hits."
    )


def test_more_gpus_are_said_with_what_each_of_them_gave() -> None:
    rows = (row("baseline", 500.0, gpus=1), row("tensor-parallel", 1500.0, ratio=3.0, verdict="faster", gpus=4))
    assert "(with 4 GPUs against 1, 0.750x a GPU)" in result_sentence(progress(BY_NAME["tensor-parallel"], *rows))


def test_a_high_acceptance_is_said_with_how_often_there_was_a_guess() -> None:
    rows = (row("baseline", 500.0), row("spec-ngram", 490.0, ratio=0.98, verdict="slower", acceptance=0.82,
                                        guessed_share=0.007))  # fmt: skip
    said = result_sentence(progress(BY_NAME["speculative-decoding"], *rows))
    assert "a guess in 0.7 % of the steps, 82 % of the guessed tokens accepted" in said


def test_a_simulated_sentence_is_marked() -> None:
    rows = (row("baseline", 500.0), row("awq", 900.0, ratio=1.8, verdict="faster"))
    assert result_sentence(progress(BY_NAME["quantization"], *rows, simulated=True)).startswith("SIMULATED: ")


def test_what_cannot_be_compared_gets_no_ratio() -> None:
    rows = (row("baseline", 500.0), row("awq", 900.0, ratio=1.8, verdict="not comparable: 4 % of the requests failed"))
    said = result_sentence(progress(BY_NAME["quantization"], *rows))
    assert "not comparable: 4 % of the requests failed" in said
    assert "1.8" not in said


def test_there_is_no_sentence_before_the_second_row() -> None:
    assert result_sentence(progress(BY_NAME["quantization"], row("baseline", 500.0))) == ""
