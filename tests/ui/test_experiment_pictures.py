"""The live picture of each guided experiment: what makes the optimization visible, beside the server without it."""

from __future__ import annotations

import pytest

from vtop.experiments import EXPERIMENTS, experiment_named
from vtop.results.comparison import CompareProgress
from vtop.results.pictures import GpuPicture, Picture, ServerPicture
from vtop.ui.glyphs import ASCII, UNICODE
from vtop.ui.panels.experiment import picture_rows


def drawn(name: str, *pictures: Picture, width: int = 116, glyphs: object = ASCII) -> list[str]:
    experiment = experiment_named(name)
    request = experiment.request(experiment.shows_off, repeats=3)
    progress = CompareProgress("c", request, "running", (), (), 9.0, None, pictures=pictures)
    return [row.text for row in picture_rows(progress, width, glyphs)]  # type: ignore[arg-type]


def one(preset: str, facts: dict[str, float] | None = None, **numbers: object) -> Picture:
    return Picture(preset=preset, servers=(ServerPicture(**numbers),), **(facts or {}))  # type: ignore[arg-type]


def filled(row: str, label: str) -> int:
    """Full cells of the bar behind a label."""
    return row.split(label)[1].split("]")[0].count("#")


def test_the_batch_fills_where_requests_share_a_step() -> None:
    alone, together = drawn(
        "continuous-batching",
        one("sequential", running=1, waiting=15, tokens_per_step=1.0, generation_tokens_per_s=58.2),
        one("baseline", running=16, waiting=0, tokens_per_step=16.0, generation_tokens_per_s=870.0),
    )
    assert "1 running · 15 waiting" in alone and "58.2 tok/s" in alone
    assert "16 running · 0 waiting" in together and "16.0 tokens a step" in together
    assert filled(together, "batch") > 10 * filled(alone, "batch") > 0


def test_hits_rise_and_ttft_falls() -> None:
    without, cached = drawn(
        "prefix-caching",
        one("baseline", ttft_mean_s=0.6),
        one("prefix-caching", prefix_hit_rate=0.65, ttft_mean_s=0.3),
    )
    assert "off" in without and "mean 600 ms" in without
    assert "65 %" in cached and "mean 300 ms" in cached
    assert filled(cached, "prefix hits") > 0 and filled(without, "TTFT") == pytest.approx(
        2 * filled(cached, "TTFT"), abs=1
    )


def test_accepted_tokens_by_position_stand_beside_the_break_even_line() -> None:
    facts = {"break_even_length": 1.2}
    plain, places, line = drawn(
        "speculative-decoding",
        one("baseline", tpot_mean_s=0.0173),
        one("spec-ngram", facts, accepted_by_position=(0.9, 0.8, 0.5), acceptance_length=3.2, tpot_mean_s=0.006),
    )
    assert "no speculation" in plain
    assert "1: 90 % 2: 80 % 3: 50 %" in places
    assert "3.20 of at most 4; | break-even 1.20" in line
    assert "|" in line.split("]")[0], "the mark stands in the bar"


def test_before_the_first_guess_and_without_a_known_cost_it_says_so() -> None:
    (waiting,) = drawn("speculative-decoding", one("spec-ngram", {"break_even_length": 1.2}))
    assert "no guess was checked yet" in waiting
    _, unknown = drawn("speculative-decoding", one("spec-draft", accepted_by_position=(0.5,), acceptance_length=1.5))
    assert "the break-even is not known here" in unknown


def test_smaller_weights_leave_more_cache_and_a_lower_floor() -> None:
    rows = drawn(
        "quantization",
        one(
            "baseline", {"weights_bytes": 15.2e9, "tpot_floor_s": 0.014}, kv_capacity_tokens=111_000, tpot_mean_s=0.017
        ),
        one("awq", {"weights_bytes": 5.6e9, "tpot_floor_s": 0.0045}, kv_capacity_tokens=280_000, tpot_mean_s=0.0059),
    )
    assert "14.2 GiB" in rows[0] and "111k tokens" in rows[0]
    assert "floor 14.0 ms" in rows[1] and "17.0 ms" in rows[1]
    assert filled(rows[2], "weights") < filled(rows[0], "weights")
    assert filled(rows[2], "KV capacity") > filled(rows[0], "KV capacity")


def test_prefill_and_decode_stand_side_by_side_with_the_interference() -> None:
    pair = Picture(
        preset="pd-disaggregation",
        servers=(
            ServerPicture(role="prefill", prompt_tokens_per_s=9000.0, generation_tokens_per_s=1.0),
            ServerPicture(role="decode", prompt_tokens_per_s=0.0, generation_tokens_per_s=34.0, itl_p50_s=0.017,
                          itl_p95_s=0.018),
        ),
    )  # fmt: skip
    rows = drawn(
        "pd-disaggregation",
        one("baseline", prompt_tokens_per_s=7000.0, generation_tokens_per_s=31.0, itl_p50_s=0.018, itl_p95_s=0.18),
        pair,
    )
    assert "both" in rows[0] and "7,000 tok/s" in rows[0]
    assert "next token p50 18.0 ms, p95 180 ms (10.0x)" in rows[1]
    assert "prefill" in rows[2] and "9,000 tok/s" in rows[2]
    assert "decode" in rows[3] and "KV moved in" in rows[3] and "34.0 tok/s" in rows[3]
    assert "(1.1x)" in rows[4]


def test_every_gpu_has_its_bandwidth_and_the_floor_has_moved() -> None:
    four = Picture(
        preset="tensor-parallel",
        servers=(ServerPicture(tpot_mean_s=0.0054),),
        gpus=tuple(GpuPicture(index=n, bandwidth_percent=28.0, bandwidth_source="gpm") for n in range(4)),
        tpot_floor_s=0.0038,
    )
    gpus, floor = drawn("tensor-parallel", four)
    assert gpus.count("28 %") == 4 and "GPU 3" in gpus
    assert "floor 3.80 ms" in floor and "5.40 ms" in floor


@pytest.mark.parametrize("name", [experiment.name for experiment in EXPERIMENTS])
@pytest.mark.parametrize("width", [76, 116])
def test_what_is_not_known_is_a_dash_and_no_row_is_too_wide(name: str, width: int) -> None:
    for glyphs in (ASCII, UNICODE):
        rows = drawn(name, one("baseline"), width=width, glyphs=glyphs)
        assert rows
        assert all(len(row) <= width for row in rows)
        assert not any(" 0 " in row for row in rows)
