"""Speculation in the table: how often it guessed, what that gained, what arithmetic predicts for it."""

from __future__ import annotations

import pytest

from results.making_runs import a_run
from vtop.results.comparability import Configuration
from vtop.results.compare import compare_rows
from vtop.results.comparison import CompareRow, ConfigurationFacts, FloorTimes
from vtop.results.speculation import guessing

SERVER = {"generation_tokens": 1000.0, "drafted_tokens": 500.0, "acceptance": 0.8, "acceptance_length": 5.0}
"""100 drafts of 5 tokens, 400 accepted: 600 steps."""


def spec_row(server: dict[str, float | None], step_cost: float | None = 1.1) -> CompareRow:
    floor = FloorTimes(batch=8, answer_tokens=100, prefill_s=0.0, step_s=0.01)
    facts = ConfigurationFacts(speculative=True, floor=floor, drafted_per_step=5, step_cost=step_cost)
    base = Configuration("baseline", {n: a_run(500, round=n) for n in (1, 2, 3)}, ConfigurationFacts(floor=floor))
    own = Configuration("spec-ngram", {n: a_run(550, round=n, server=server) for n in (1, 2, 3)}, facts)
    return compare_rows([base, own])[1]


def test_steps_are_the_generated_tokens_less_the_accepted_ones() -> None:
    found = guessing(SERVER)
    assert found is not None
    assert found.guessed_share == pytest.approx(100 / 600)
    assert found.tokens_per_step == pytest.approx(1000 / 600)


def test_a_server_that_does_not_count_drafts_is_read_by_the_setting() -> None:
    found = guessing({**SERVER, "acceptance_length": None}, drafted_per_step=5)
    assert found is not None
    assert found.guessed_share == pytest.approx(100 / 600)
    assert guessing({**SERVER, "acceptance_length": None}) is None


def test_nothing_guessed_is_known_and_is_not_a_gain() -> None:
    found = guessing({"generation_tokens": 1000.0, "drafted_tokens": 0.0, "acceptance": None})
    assert found is not None
    assert (found.guessed_share, found.gain(1.5)) == (0.0, 1.0)


@pytest.mark.parametrize("missing", ["generation_tokens", "drafted_tokens", "acceptance"])
def test_what_the_server_does_not_count_is_unknown(missing: str) -> None:
    assert guessing({**SERVER, missing: None}) is None


def test_accepted_more_than_generated_is_no_number() -> None:
    assert guessing({**SERVER, "generation_tokens": 300.0}) is None


def test_the_prediction_takes_the_share_of_steps_with_a_guess() -> None:
    row = spec_row(SERVER)
    assert row.predicted_ratio == pytest.approx((1000 / 600) / (1 + 100 / 600 * 0.1))


def test_without_the_counters_or_the_cost_there_is_no_prediction() -> None:
    assert spec_row({"acceptance": 0.8}).predicted_ratio is None
    assert spec_row(SERVER, step_cost=None).predicted_ratio is None


def test_high_acceptance_of_few_guesses_is_said_to_be_few() -> None:
    rare = {"generation_tokens": 1000.0, "drafted_tokens": 20.0, "acceptance": 0.9, "acceptance_length": 5.5}
    assert any("0.4 % of the steps had a guess" in note for note in spec_row(rare).notes), spec_row(rare).notes


def test_steps_that_cost_more_than_they_yield_are_called_so() -> None:
    poor = {"generation_tokens": 1000.0, "drafted_tokens": 4000.0, "acceptance": 0.02, "acceptance_length": 1.1}
    assert any("not above the" in note for note in spec_row(poor, step_cost=1.3).notes)
