"""Verdicts: what may be called faster, and what may not be compared."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import pytest

from results.making_runs import a_run
from vtop.load.progress import LoadRequest, LoadResult
from vtop.results.comparability import Configuration, server_changes
from vtop.results.compare import compare_rows, drift_between
from vtop.results.comparison import CompareRow, ConfigurationFacts, FloorTimes


def configuration(
    preset: str, *runs: LoadResult, facts: ConfigurationFacts | None = None, failure: str = ""
) -> Configuration:
    return Configuration(preset, dict(enumerate(runs, 1)), facts or ConfigurationFacts(), failure)


def three(tokens_per_s: float, **changes: object) -> list[LoadResult]:
    noise = (0.99, 1.0, 1.012)
    return [a_run(tokens_per_s * share, round=number, **changes) for number, share in enumerate(noise, 1)]  # type: ignore[arg-type]


def against(base: Configuration, other: Configuration) -> CompareRow:
    return compare_rows([base, other])[1]


def test_a_clear_gain_is_faster_with_its_interval() -> None:
    row = against(configuration("a", *three(120)), configuration("b", *three(610)))
    assert row.verdict == "faster"
    assert row.ratio == pytest.approx(610 / 120)
    assert row.ratio_low is not None and row.ratio_low > 5
    assert row.output_tokens_per_s == pytest.approx(610, rel=0.01)


def test_the_ratio_is_the_quotient_of_the_two_cells() -> None:
    first, second = compare_rows(
        [
            configuration("a", *three(120)),
            configuration("b", a_run(600, round=1), a_run(640, round=2), a_run(610, round=3)),
        ]
    )
    assert first.output_tokens_per_s and second.output_tokens_per_s
    assert second.ratio == pytest.approx(second.output_tokens_per_s / first.output_tokens_per_s)


def test_a_loss_is_slower() -> None:
    assert against(configuration("a", *three(600)), configuration("b", *three(500))).verdict == "slower"


def test_latencies_have_their_own_verdicts_where_less_is_faster() -> None:
    row = against(
        configuration("a", *three(600, ttft_s=0.4, tpot_s=0.02)),
        configuration("b", *three(600, ttft_s=0.1, tpot_s=0.03)),
    )
    assert row.ttft_verdict == "faster"
    assert row.tpot_verdict == "slower"
    assert row.verdict.startswith("no difference seen")
    assert row.ttft_ratio == pytest.approx(0.25)


def test_a_difference_within_noise_says_how_large_it_could_be() -> None:
    base = configuration("a", a_run(600, round=1), a_run(612, round=2), a_run(590, round=3))
    other = configuration("b", a_run(606, round=1), a_run(600, round=2), a_run(601, round=3))
    row = against(base, other)
    assert row.ratio_low is not None and row.ratio_high is not None
    most = max(1 - row.ratio_low, row.ratio_high - 1) * 100
    assert row.verdict == f"no difference seen (could be up to {most:.1f} %)"


def test_a_difference_that_may_be_real_says_how_many_rounds_would_show_it() -> None:
    """Log differences of 2, 5 and 8 %: mean 5 %, deviation 3 %; t * 3 % / root n falls below 5 % at 4 rounds."""
    base = configuration("a", *[a_run(600, round=n) for n in (1, 2, 3)])
    other = configuration("b", *[a_run(600 * math.exp(d), round=n) for n, d in ((1, 0.02), (2, 0.05), (3, 0.08))])
    row = against(base, other)
    assert row.verdict.startswith("no difference seen")
    assert "if the 5.1 % more that was seen is real, 1 more round would show it" in row.notes
    same = against(base, configuration("b", *[a_run(600 + d, round=n) for n, d in ((1, -6), (2, 6), (3, 1))]))
    assert not any("is real" in note for note in same.notes)


@pytest.mark.parametrize(("stalled", "bound"), [(450, r"\d\d %"), (60, r"[\d,.]+x")])
def test_an_interval_that_says_nothing_says_so_in_a_number_that_can_be_read(stalled: float, bound: str) -> None:
    base = configuration("a", *[a_run(600, round=n) for n in (1, 2, 3)])
    other = configuration("b", a_run(600, round=1), a_run(stalled, round=2), a_run(606, round=3))
    verdict = against(base, other).verdict
    assert re.fullmatch(rf"no difference seen \(could be up to {bound}\)", verdict), verdict


def test_a_difference_too_small_to_matter_is_no_difference_however_steady_the_runs() -> None:
    row = against(configuration("a", *three(600)), configuration("b", *three(603)))
    assert row.verdict == "no difference seen (could be up to 0.5 %)"


def test_one_run_gives_no_verdict_and_says_how_many_would() -> None:
    row = against(configuration("a", a_run(600)), configuration("b", a_run(660)))
    assert row.verdict == "one run: no verdict (2 more would settle it)"
    assert row.ratio == pytest.approx(1.1)
    assert row.ratio_low is None
    same = against(configuration("a", a_run(600)), configuration("b", a_run(600)))
    assert same.verdict == "one run: no verdict (more than 20 would settle it)"


def test_the_first_row_has_no_verdict() -> None:
    assert compare_rows([configuration("a", *three(600))])[0].verdict == "first row"


def test_simulated_a_a_comparisons_find_a_false_winner_in_at_most_five_percent() -> None:
    """2,000 comparisons of a configuration with itself: 5 % by construction, and three standard errors of sampling."""
    rng = random.Random(20250101)
    winners = 0
    for _ in range(2000):
        runs = [[a_run(600 * rng.gauss(1, 0.02), round=number) for number in (1, 2, 3)] for _ in "ab"]
        winners += against(configuration("a", *runs[0]), configuration("b", *runs[1])).verdict in ("faster", "slower")
    assert winners / 2000 <= 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5
    assert winners > 0, "an interval that never errs is too wide to be a 95 % interval"


@pytest.mark.parametrize(("rounds", "at_least"), [(3, 0.78), (4, 0.97)])
def test_a_true_gain_of_ten_percent_is_found_through_two_percent_of_noise(rounds: int, at_least: float) -> None:
    rng = random.Random(7)
    verdicts = []
    for _ in range(500):
        base = [a_run(600 * rng.gauss(1, 0.02), round=number) for number in range(1, rounds + 1)]
        other = [a_run(660 * rng.gauss(1, 0.02), round=number) for number in range(1, rounds + 1)]
        verdicts.append(against(configuration("a", *base), configuration("b", *other)).verdict)
    assert verdicts.count("faster") / 500 >= at_least
    assert "slower" not in verdicts


def test_a_run_served_from_a_warm_prefix_cache_is_no_win() -> None:
    """The same prompts a second time: 2.3 times the throughput, all of it from the cache."""
    cold = a_run(410, ttft_s=1.961, server={"prefix_hit_rate": 0.00390625})
    warm = a_run(951, ttft_s=0.040, server={"prefix_hit_rate": 0.9375})
    facts = ConfigurationFacts(prefix_caching=True)
    row = against(configuration("a", cold, facts=facts), configuration("b", warm, facts=facts))
    assert row.verdict.startswith("not comparable: warm prefix cache: 94 %")
    back = against(configuration("b", warm, facts=facts), configuration("a", cold, facts=facts))
    assert back.verdict.startswith("not comparable: first row: warm prefix cache")


def test_hits_on_the_shared_head_of_all_prompts_are_not_a_warm_cache() -> None:
    """Chat template and instruction: 48 of 512 prompt tokens, in a first run too."""
    row = against(
        configuration("a", *three(600)), configuration("b", *three(600, server={"prefix_hit_rate": 48 / 512}))
    )
    assert not row.verdict.startswith("not comparable")


def test_hits_among_the_prompts_of_a_file_are_not_a_warm_cache_whatever_the_workload() -> None:
    """`--workload chat --file FILE`, where each prompt begins with the same instructions."""
    request = replace(a_run().request, workload="chat", file="prompts.jsonl", prompt_tokens=None)
    hits = {"prefix_hit_rate": 0.6}
    row = against(
        configuration("a", *three(600, request=request)), configuration("b", *three(900, request=request, server=hits))
    )
    assert row.verdict == "faster"


def test_a_file_that_was_changed_between_two_runs_is_another_load() -> None:
    request = replace(a_run().request, workload="file", file="prompts.jsonl", prompt_tokens=None)

    def with_file(tokens_per_s: float, digest: str) -> list[LoadResult]:
        return three(tokens_per_s, request=request, fingerprint={"file_digest": digest})

    same = against(configuration("a", *with_file(600, "1")), configuration("b", *with_file(900, "1")))
    assert same.verdict == "faster"
    row = against(configuration("a", *with_file(600, "1")), configuration("b", *with_file(900, "2")))
    assert row.verdict == "not comparable: different prompts in round 1: prompts.jsonl was changed meanwhile"
    elsewhere = with_file(900, "2")
    elsewhere = [replace(run, request=replace(run.request, file="other.jsonl")) for run in elsewhere]
    row = against(configuration("a", *with_file(600, "1")), configuration("b", *elsewhere))
    assert "different load: file prompts.jsonl and other.jsonl" in row.verdict
    assert "changed meanwhile" not in row.verdict


@pytest.mark.parametrize(("arrival", "by_the_clock"), [("burst", False), (None, True)])
def test_a_burst_from_a_file_ends_when_the_server_is_done_a_trace_by_the_clock(
    arrival: str | None, by_the_clock: bool
) -> None:
    request = replace(a_run().request, workload="file", file="p.jsonl", concurrency=None, arrival=arrival)
    base, other = configuration("a", *three(600, request=request)), configuration("b", *three(900, request=request))
    assert any("by the clock" in note for note in against(base, other).notes) == by_the_clock


def test_hits_are_the_point_of_a_workload_that_shares_prefixes() -> None:
    request = replace(a_run().request, workload="prefix")
    base = configuration("a", *three(600, request=request))
    other = configuration(
        "b",
        *three(900, request=request, server={"prefix_hit_rate": 0.9}),
        facts=ConfigurationFacts(prefix_caching=True),
    )
    row = against(base, other)
    assert row.verdict == "faster"
    assert any("90 % of the prompt tokens came from the prefix cache" in note for note in row.notes)


def test_unknown_hits_of_a_caching_server_are_marked() -> None:
    row = against(
        configuration("a", *three(600)),
        configuration("b", *three(600, server={}), facts=ConfigurationFacts(prefix_caching=True)),
    )
    assert any("hits unknown" in note for note in row.notes)
    assert row.prefix_hit_rate is None


def test_failures_above_the_limit_make_a_row_not_comparable() -> None:
    failing = [a_run(700, round=number, requests=20, failed=6) for number in (1, 2, 3)]
    row = against(
        configuration("a", *[a_run(600, round=n, requests=20) for n in (1, 2, 3)]), configuration("b", *failing)
    )
    assert row.verdict == "not comparable: 30 % of the requests failed in round 1"
    assert row.failed == 18


def test_answers_of_unequal_length_are_not_the_same_work() -> None:
    row = against(configuration("a", *three(600)), configuration("b", *three(800, output_length=140)))
    assert row.verdict == "not comparable: answers of different length: 150 and 140 tokens on average"
    near = against(configuration("a", *three(600)), configuration("b", *three(800, output_length=145)))
    assert near.verdict == "faster"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"simulated": True}, "simulated beside measured"),
        ({"request": replace(a_run().request, max_tokens=64)}, "different load: max_tokens 150 and 64"),
        ({"request": replace(a_run().request, warmup=0)}, "different warm-up: 16 and 0 requests"),
        ({"seed": 7}, "different prompts in round 1 (seeds 1001 and 7)"),
        ({"gpu": {"thermal_throttled_s": 3.2}}, "the GPU was held back by its temperature in 3 runs of this row"),
        (
            {"gpu": {"other_processes": ["pid 99 (python) 3.1 GiB"]}},
            "another process was on the GPU in round 1: pid 99",
        ),
        ({"client_capacity_tokens_per_s": 700.0}, "the load generator was the bottleneck in round 1"),
        ({"fingerprint": {"gpu": "H100"}}, "different GPUs: A100 and H100"),
        ({"comparable": False, "not_comparable_because": "no request was answered"}, "no request was answered"),
    ],
)
def test_what_makes_runs_not_comparable(changes: dict[str, object], why: str) -> None:
    base = configuration("a", *three(600, fingerprint={"gpu": "A100"} if "fingerprint" in changes else {}))
    row = against(base, configuration("b", *three(650, **changes)))
    assert row.verdict.startswith(f"not comparable: {why}")
    assert row.output_tokens_per_s is not None, "the numbers stay visible"


def test_more_cards_of_the_same_kind_are_said_and_not_refused() -> None:
    one, two = {"gpu": ["H100"], "gpu_uuid": ["GPU-1"]}, {"gpu": ["H100"], "gpu_uuid": ["GPU-1", "GPU-2"]}
    row = against(configuration("a", *three(600, fingerprint=one)), configuration("b", *three(1100, fingerprint=two)))
    assert row.verdict == "faster"
    assert any(note.startswith("2 GPUs against 1") for note in row.notes)


def test_other_cards_of_the_same_kind_are_refused() -> None:
    one, two = {"gpu_uuid": ["GPU-1"]}, {"gpu_uuid": ["GPU-2"]}
    row = against(configuration("a", *three(600, fingerprint=one)), configuration("b", *three(650, fingerprint=two)))
    assert row.verdict.startswith("not comparable: different GPUs")


def test_a_second_reason_is_not_lost() -> None:
    row = against(configuration("a", *three(600)), configuration("b", *three(650, simulated=True, output_length=100)))
    assert row.verdict == "not comparable: simulated beside measured"
    assert any(note.startswith("also: answers of different length") for note in row.notes)


def test_throttling_on_both_sides_is_marked_but_compared() -> None:
    hot = {"thermal_throttled_s": 3.2}
    row = against(configuration("a", *three(600, gpu=hot)), configuration("b", *three(700, gpu=hot)))
    assert row.verdict == "faster"
    assert any("temperature" in note for note in row.notes)


def test_a_late_load_generator_spoils_ttft_only() -> None:
    row = against(configuration("a", *three(600)), configuration("b", *three(700, client_bound=True)))
    assert row.verdict == "faster"
    assert row.ttft_verdict.startswith("not comparable: the load generator was late")
    assert row.tpot_verdict.startswith("no difference")


def test_a_late_load_generator_does_not_hide_what_its_lag_cannot_have_made() -> None:
    """645 ms against 76 ms with a client that was 11 ms late is faster; 80 ms against 76 ms cannot be known."""

    def runs(ttft_s: float, **changes: object) -> list[LoadResult]:
        spread = (0.99, 1.0, 1.01)
        return [
            replace(run, ttft=replace(run.ttft, p50=ttft_s * share), **changes)  # type: ignore[arg-type]
            for run, share in zip(three(600), spread, strict=True)
        ]

    late = {"client_bound": True, "loop_lag_p99_s": 0.011}
    row = against(configuration("a", *runs(0.645)), configuration("b", *runs(0.076, **late)))
    assert row.ttft_verdict == "faster"
    assert any("late by up to 11 ms" in note and "even with that taken off" in note for note in row.notes)
    near = against(configuration("a", *runs(0.080, **late)), configuration("b", *runs(0.076)))
    assert near.ttft_verdict.startswith("not comparable: first row: the load generator was late")


def test_the_first_row_is_the_first_row_even_with_a_late_load_generator() -> None:
    first, _ = compare_rows([configuration("a", *three(600, client_bound=True)), configuration("b", *three(700))])
    assert first.ttft_verdict == "first row"
    assert any("was late" in note for note in first.notes)


def test_a_change_of_the_vllm_version_is_marked_and_both_are_named() -> None:
    first, row = compare_rows(
        [configuration("a", *three(600, version="0.10.2")), configuration("b", *three(700, version="0.12.0"))]
    )
    assert (first.version, row.version) == ("0.10.2", "0.12.0")
    assert any("vLLM 0.12.0 against 0.10.2" in note for note in row.notes)
    assert row.verdict == "faster"


def test_server_numbers_are_paired_by_meaning_across_a_renamed_metric() -> None:
    """0.10 called the gap between steps time per output token; 0.12 has that gap as ITL, and a TPOT per request."""
    before = {"itl_mean_s": 0.015, "tpot_mean_s": None}
    after = {"itl_mean_s": 0.015, "tpot_mean_s": 0.022}
    assert server_changes(before, after) == {"itl_mean_s": pytest.approx(0.0)}


def test_bandwidth_from_two_sources_is_not_compared() -> None:
    base = configuration("a", *three(600, gpu={"bandwidth_percent": 62.0, "bandwidth_source": "gpm"}))
    other = configuration("b", *three(600, gpu={"bandwidth_percent": 41.0, "bandwidth_source": "busy"}))
    row = against(base, other)
    assert (row.bandwidth_percent, row.bandwidth_source) == (pytest.approx(41.0), "busy")
    assert any("bandwidth from different sources (busy, gpm)" in note for note in row.notes)


@pytest.mark.parametrize(("late_s", "refused"), [(0.0, False), (0.02, False), (0.9, True)])
def test_a_simulated_run_that_this_machine_held_up_is_not_the_cards(late_s: float, refused: bool) -> None:
    runs = [a_run(600, round=n, simulated=True, requests=16, duration_s=4.0) for n in (1, 2)]
    held = replace(runs[1], server={**runs[1].server, "simulation_late_s": late_s})
    row = against(configuration("a", *runs), configuration("b", runs[0], held))
    said = "not comparable: this machine held the simulated server up for 22 % of round 2"
    assert (row.verdict == said) is refused


def test_a_cut_run_is_left_out_and_said() -> None:
    runs = three(700)
    runs[1] = replace(runs[1], complete=False, output_tokens_per_s=90.0)
    row = against(configuration("a", *three(600)), configuration("b", *runs))
    assert row.runs == 2
    assert any("1 run cut short" in note for note in row.notes)
    assert row.ratio == pytest.approx(700 / 600, rel=0.02)


def test_rounds_are_paired_by_number_not_by_order() -> None:
    base = Configuration("a", {1: a_run(100, round=1), 2: a_run(200, round=2), 3: a_run(400, round=3)})
    other = Configuration("b", {2: a_run(220, round=2), 3: a_run(440, round=3)})
    row = against(base, other)
    assert row.ratio == pytest.approx(1.1)
    assert row.ratio_low == pytest.approx(1.1)


def test_a_configuration_that_did_not_start_says_why_and_spoils_no_other() -> None:
    rows = compare_rows(
        [
            configuration("a", *three(600)),
            configuration("b", failure="did not start: Port 8000 is in use"),
            configuration("c", *three(700)),
        ]
    )
    assert rows[1].verdict == "not comparable: did not start: Port 8000 is in use"
    assert rows[1].output_tokens_per_s is None
    assert rows[2].verdict == "faster"


def test_without_a_first_row_nothing_is_compared() -> None:
    rows = compare_rows([configuration("a", failure="did not start: no GPU"), configuration("b", *three(700))])
    assert rows[1].verdict == "not comparable: the first row has no runs"


def test_drift_in_blocks_makes_all_rows_not_comparable() -> None:
    runs = three(600)
    assert drift_between(runs, a_run(605)) == ""
    drift = drift_between(runs, a_run(480))
    assert "-20" in drift
    row = compare_rows([configuration("a", *runs), configuration("b", *three(700))], drift)[1]
    assert row.verdict.startswith("not comparable: conditions drifted")


def test_prefix_caching_that_cannot_help_says_why() -> None:
    facts = ConfigurationFacts(prefix_caching=True)
    row = against(configuration("a", *three(600)), configuration("b", *three(601), facts=facts))
    assert row.verdict.startswith("no difference seen")
    assert any("share nothing" in note and "workload `prefix`" in note for note in row.notes)


def test_a_change_of_another_preset_than_the_first_is_also_held_against_that_one() -> None:
    """Against one request at a time everything is faster; what caching itself brings shows beside the baseline."""
    rows = compare_rows(
        [
            configuration("sequential", *three(120)),
            configuration("baseline", *three(610)),
            configuration("prefix-caching", *three(611), facts=ConfigurationFacts(compare_with="baseline")),
            configuration("awq", *three(700), facts=ConfigurationFacts(compare_with="not-here")),
        ]
    )
    assert (rows[2].verdict, rows[2].beside) == ("faster", "baseline")
    assert rows[2].beside_ratio == pytest.approx(611 / 610)
    assert rows[2].beside_verdict.startswith("no difference seen")
    assert rows[1].beside == rows[3].beside == ""


def test_a_change_that_parts_from_its_prediction_beside_its_own_row_says_why() -> None:
    """Within 5 % of the prediction against the first row, 7 % below it against the row that it changes."""
    facts = {"sequential": at_the_floor(0.100), "baseline": at_the_floor(0.0195)}
    guesser = at_the_floor(0.0193, speculative=True, drafted_per_step=5, step_cost=1.0, compare_with="baseline")
    server = {"generation_tokens": 1000.0, "drafted_tokens": 0.0, "acceptance": None}
    rows = compare_rows(
        [
            configuration("sequential", *three(120), facts=facts["sequential"]),
            configuration("baseline", *three(620), facts=facts["baseline"]),
            configuration("spec-ngram", *three(594, server=server), facts=guesser),
        ]
    )
    assert rows[2].predicted_ratio == pytest.approx(5.18, abs=0.01)
    assert rows[2].beside_predicted_ratio == pytest.approx(1.01, abs=0.001)
    (said,) = [note for note in rows[2].notes if "predict" in note]
    assert said.startswith(
        "against baseline: bytes and FLOPs alone predict 1.01x, measured 0.958x: guessing takes host"
    )


def test_speculation_names_its_acceptance() -> None:
    facts = ConfigurationFacts(speculative=True)
    low = against(
        configuration("a", *three(600)), configuration("b", *three(500, server={"acceptance": 0.12}), facts=facts)
    )
    assert any("only 12 % of the guessed tokens" in note for note in low.notes)
    unknown = against(configuration("a", *three(600)), configuration("b", *three(500, server={}), facts=facts))
    assert any("does not say" in note for note in unknown.notes)


def at_the_floor(step_s: float, prefill_s: float = 0.0, **changes: object) -> ConfigurationFacts:
    floor = FloorTimes(batch=16, answer_tokens=100, prefill_s=prefill_s, step_s=step_s)
    return ConfigurationFacts(**{"floor": floor, **changes})  # type: ignore[arg-type]


def test_where_prediction_and_measurement_part_the_row_says_what_else_goes_on() -> None:
    base = configuration("a", *three(600), facts=at_the_floor(0.035))
    facts = at_the_floor(0.010)
    gpu = {"bandwidth_percent": 31.0, "bandwidth_source": "gpm"}
    row = against(base, configuration("b", *three(900), facts=facts))
    assert any("predict 3.50x, measured 1.50x" in note for note in row.notes)
    idle = against(base, configuration("b", *three(900, gpu=gpu), facts=facts))
    assert any("DRAM is at 31 %" in note for note in idle.notes)
    more = against(base, configuration("b", *three(3000), facts=facts))
    assert any("the first row is held back" in note for note in more.notes)
    near = against(base, configuration("b", *three(2050), facts=facts))
    assert not any("predict" in note for note in near.notes)


def test_the_prediction_takes_off_the_prompt_tokens_that_the_cache_had() -> None:
    """16 prefills of 100 ms and 100 steps of 10 ms: 2.6 s a wave; with half of the prompts cached 1.8 s."""
    request = replace(a_run().request, workload="prefix")
    base = configuration("a", *three(600, request=request, server={}), facts=at_the_floor(0.010, 0.100))
    facts = at_the_floor(0.010, 0.100, prefix_caching=True)
    hits: dict[str, float | None] = {"prefix_hit_rate": 0.5}
    row = against(base, configuration("b", *three(860, request=request, server=hits), facts=facts))
    assert row.predicted_ratio == pytest.approx(2.6 / 1.8)
    unknown = against(base, configuration("b", *three(860, request=request, server={}), facts=facts))
    assert unknown.predicted_ratio is None


def test_prefill_apart_is_predicted_by_the_slower_of_the_two_stations() -> None:
    """4 requests, prefill 0.8 s, decode 1 s. In turns 4 / (3.2 + 1); apart no more than one prefill each 0.8 s."""
    together = FloorTimes(batch=4, answer_tokens=100, prefill_s=0.8, step_s=0.010)
    assert together.tokens_per_s() == pytest.approx(100 * 4 / 4.2)
    assert replace(together, prefill_servers=1).tokens_per_s() == pytest.approx(100 / 0.8)
    assert replace(together, prefill_servers=4).tokens_per_s() == pytest.approx(100 * 4 / 1.8)


def test_energy_and_memory_come_from_the_runs_and_the_facts() -> None:
    facts = ConfigurationFacts(kv_capacity_tokens=432_000, weights_bytes=15.2e9)
    row = compare_rows([configuration("a", *three(600, gpu={"joules_per_token": 0.5}), facts=facts)])[0]
    assert row.joules_per_token == pytest.approx(0.5)
    assert (row.kv_capacity_tokens, row.weights_bytes) == (432_000, 15.2e9)


def test_an_open_loop_load_is_compared_by_its_rate() -> None:
    request = LoadRequest(workload="rate", rate=4.0)
    other = replace(request, rate=5.0)
    row = against(configuration("a", *three(600, request=request)), configuration("b", *three(600, request=other)))
    assert row.verdict == "not comparable: different load: rate 4.0 and 5.0"
