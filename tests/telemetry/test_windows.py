"""Differences over a window: restarts, gaps, late series, several servers in turn; never below zero."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_pages import Watcher, only

from vtop.vllm.reading import EngineReading, Latency, Quantile, SpeculationReading

LABELS = 'engine="0",model_name="m"'


def page(tokens: float, started: float | None = 1.0, **more: float) -> bytes:
    """A V1 page with a token counter, a TTFT histogram of as many requests as hundreds of tokens, and what is asked."""
    lines = [] if started is None else [f"process_start_time_seconds {started}"]
    lines.append(f"vllm:num_requests_running{{{LABELS}}} 1")
    lines.append(f"vllm:generation_tokens_total{{{LABELS}}} {tokens}")
    count = tokens // 100
    base = "vllm:time_to_first_token_seconds"
    lines += [f'{base}_bucket{{{LABELS},le="{edge}"}} {count}' for edge in ("0.1", "0.5", "+Inf")]
    lines += [f"{base}_count{{{LABELS}}} {count}", f"{base}_sum{{{LABELS}}} {count * 0.05}"]
    lines += [f"{name}{{{LABELS}}} {value}" for name, value in more.items()]
    return ("\n".join(lines) + "\n").encode()


def test_the_window_begins_at_the_scrape_nearest_to_its_length() -> None:
    watcher = Watcher(10)
    for second in range(31):
        engine = only(watcher.see(second, page(second * 100 if second < 20 else 2000 + (second - 20) * 500)))
    assert engine.window_s == 10
    assert engine.generation_tokens_per_s == pytest.approx(500)


def test_a_young_window_says_how_much_it_covers() -> None:
    watcher = Watcher(10)
    watcher.see(0, page(0))
    engine = only(watcher.see(3, page(300)))
    assert engine.window_s == 3
    assert engine.generation_tokens_per_s == pytest.approx(100)


def test_after_a_gap_the_window_covers_the_gap_and_says_so() -> None:
    watcher = Watcher(10)
    watcher.see(0, page(0))
    watcher.window.outage()
    engine = only(watcher.see(30, page(3000)))
    assert engine.window_s == 30
    assert engine.generation_tokens_per_s == pytest.approx(100)


def test_after_a_long_sleep_the_past_is_not_averaged_in() -> None:
    watcher = Watcher(10)
    watcher.see(0, page(0))
    watcher.see(1, page(100))
    engine = only(watcher.see(3600, page(50_000)))
    assert engine.generation_tokens_per_s is None


def test_a_wider_window_fills_from_the_scrapes_that_are_kept() -> None:
    watcher = Watcher(2)
    for second in range(41):
        watcher.see(second, page(second * 10))
    watcher.window.window_s = 30
    assert only(watcher.see(41, page(410))).window_s == 30


def test_a_restart_inside_the_window_counts_from_the_restart() -> None:
    watcher = Watcher(10)
    for second in range(5):
        watcher.see(second, page(10_000 + second * 100, started=1))
    watcher.see(5, page(0, started=2))
    engine = only(watcher.see(8, page(900, started=2)))
    assert engine.restarted
    assert engine.window_s == 3
    assert engine.generation_tokens_per_s == pytest.approx(300)
    assert not only(watcher.see(17, page(3600, started=2))).restarted


def test_a_restart_is_seen_even_when_the_counters_have_overtaken_their_old_values() -> None:
    watcher = Watcher(10)
    watcher.see(0, page(100, started=1))
    engine = only(watcher.see(1, page(50_000, started=2)))
    assert engine.restarted
    assert engine.generation_tokens_per_s is None


def test_without_a_process_start_a_counter_that_went_back_is_a_restart() -> None:
    watcher = Watcher(10)
    watcher.see(0, page(5000, started=None))
    engine = only(watcher.see(1, page(100, started=None)))
    assert engine.restarted
    assert engine.generation_tokens_per_s is None


def test_files_of_a_dead_process_that_vanish_give_no_negative_rate() -> None:
    """A multiprocess directory that is cleaned takes a part of every sum away."""
    watcher = Watcher(10)
    watcher.see(0, page(52_000, started=None))
    engine = only(watcher.see(1, page(48_000, started=None)))
    assert engine.generation_tokens_per_s is None
    assert only(watcher.see(2, page(48_100, started=None))).generation_tokens_per_s == pytest.approx(100)


def test_two_processes_that_answer_in_turn_make_rates_unavailable() -> None:
    watcher = Watcher(10)
    engine = None
    for second in range(12):
        even = second % 2 == 0
        engine = only(watcher.see(second, page((1000 if even else 90_000) + second * 10, started=1 if even else 2)))
        assert engine.generation_tokens_per_s is None or engine.generation_tokens_per_s <= 20
    assert engine is not None
    assert engine.generation_tokens_per_s is None
    assert "in turn" in engine.missing["generation_tokens_per_s"]
    assert engine.running == 1, "gauges stay"


def test_counters_that_jump_back_and_forth_without_a_process_start_are_servers_in_turn_too() -> None:
    watcher = Watcher(10)
    for second in range(12):
        engine = only(watcher.see(second, page((1000 if second % 2 else 90_000) + second * 10, started=None)))
    assert "in turn" in engine.missing["generation_tokens_per_s"]


def test_two_crashes_with_the_server_away_between_are_restarts_and_not_turns() -> None:
    watcher = Watcher(10)
    watcher.see(0, page(5000, started=None))
    watcher.window.outage()
    watcher.see(20, page(100, started=None))
    watcher.window.outage()
    watcher.see(40, page(50, started=None))
    engine = only(watcher.see(41, page(150, started=None)))
    assert engine.generation_tokens_per_s == pytest.approx(100)


def test_one_server_again_after_taking_turns_is_measured_again() -> None:
    watcher = Watcher(10)
    for second in range(6):
        watcher.see(second, page(1000 if second % 2 else 90_000, started=second % 2))
    for second in range(6, 90):
        engine = only(watcher.see(second, page(1000 + second * 10, started=1)))
    assert engine.generation_tokens_per_s == pytest.approx(10)


def test_a_series_that_v0_shows_only_after_its_first_observation_counts_from_zero() -> None:
    labels = 'model_name="m"'
    base = f"vllm:num_requests_running{{{labels}}} 1\n"
    watcher = Watcher(10)
    watcher.see(0, base.encode())
    engine = only(watcher.see(10, f'{base}vllm:request_success_total{{{labels},finished_reason="stop"}} 7\n'.encode()))
    assert engine.finished_by_reason == {"stop": 7}
    assert engine.requests_per_s == pytest.approx(0.7)


def test_an_engine_that_joins_does_not_bring_its_past_along() -> None:
    watcher = Watcher(10)
    watcher.see(0, page(0))
    joined = page(100) + b'vllm:generation_tokens_total{engine="1",model_name="m"} 50000\n'
    assert only(watcher.see(10, joined)).generation_tokens_per_s is None


def test_a_series_that_one_page_lacks_is_unknown_and_not_counted_from_zero() -> None:
    watcher = Watcher(10)
    whole = page(1000, **{"vllm:prompt_tokens_total": 40_000.0})
    watcher.see(0, whole)
    watcher.see(10, page(1100))
    engine = only(watcher.see(20, page(1200, **{"vllm:prompt_tokens_total": 40_100.0})))
    assert engine.prompt_tokens_per_s is None
    assert engine.generation_tokens_per_s == pytest.approx(10)


def test_a_nan_in_between_does_not_hide_a_drop() -> None:
    watcher = Watcher(10)
    watcher.see(0, page(1000, **{"vllm:prompt_tokens_total": 100.0}))
    watcher.see(5, page(1000, **{"vllm:prompt_tokens_total": math.nan}))
    engine = only(watcher.see(10, page(1000, **{"vllm:prompt_tokens_total": 50.0})))
    assert engine.prompt_tokens_per_s is None


def test_a_usage_above_one_is_not_shown_as_a_percentage() -> None:
    watcher = Watcher(10)
    engine = only(watcher.see(0, page(0, **{"vllm:gpu_cache_usage_perc": 1.4})))
    assert engine.kv_usage is None
    assert "140 %" in engine.missing["kv_usage"]


def test_a_latency_of_the_run_before_a_restart_is_forgotten() -> None:
    watcher = Watcher(10)
    watcher.see(0, page(0, started=1))
    assert only(watcher.see(5, page(500, started=1))).ttft is not None
    watcher.see(6, page(0, started=2))
    assert only(watcher.see(7, page(0, started=2))).ttft is None


def test_a_latency_of_the_run_before_is_forgotten_although_more_has_finished_since() -> None:
    watcher = Watcher(10)
    watcher.see(0, page(100, started=1))
    assert only(watcher.see(5, page(300, started=1))).ttft is not None
    after = only(watcher.see(40, page(900, started=30)))
    assert after.ttft is None, "it would pass for the latency of the run that began now"
    assert "began again" in after.missing["ttft"]


def test_a_latency_does_not_pass_for_todays_while_an_engine_joins_with_its_past() -> None:
    def both(first: int, second: int | None) -> bytes:
        more = b"" if second is None else page(second, None).replace(b'engine="0"', b'engine="1"')
        return page(first) + more

    watcher = Watcher(10)
    watcher.see(0, both(0, None))
    assert only(watcher.see(5, both(200, None))).ttft is not None
    joined = only(watcher.see(6, both(300, 5000)))
    assert joined.ttft is None
    assert joined.missing["ttft"] == "the page gives no usable number"
    watcher.see(16, both(400, 5100))
    ttft = only(watcher.see(26, both(500, 5200))).ttft
    assert ttft is not None and (ttft.count, ttft.mean_s, ttft.age_s) == (2, pytest.approx(0.05), 0)


def test_byte_counters_that_stay_at_zero_while_tokens_come_are_unknown_and_not_zero() -> None:
    """vLLM counts nothing for models that its arithmetic does not know, and 0 % of a bandwidth would be a lie."""
    read, written, flops = (f"vllm:estimated_{what}_per_gpu_total" for what in ("read_bytes", "write_bytes", "flops"))
    watcher = Watcher(10)
    watcher.see(0, page(0, **{read: 0, written: 0, flops: 0}))
    idle = only(watcher.see(10, page(0, **{read: 0, written: 0, flops: 0})))
    assert (idle.read_bytes_per_s, idle.write_bytes_per_s, idle.flops_per_s) == (0, 0, 0)
    busy = only(watcher.see(20, page(500, **{read: 0, written: 0, flops: 0})))
    assert (busy.read_bytes_per_s, busy.write_bytes_per_s, busy.flops_per_s) == (None, None, None)
    for field in ("read_bytes_per_s", "write_bytes_per_s", "flops_per_s"):
        assert "stay at 0" in busy.missing[field]
    counted = only(watcher.see(30, page(900, **{read: 1e12, written: 1e10, flops: 0})))
    assert (counted.read_bytes_per_s, counted.write_bytes_per_s, counted.flops_per_s) == (1e11, 1e9, None)
    assert "stay at 0" in counted.missing["flops_per_s"]


def test_a_page_that_is_not_newer_is_dropped() -> None:
    watcher = Watcher(10)
    watcher.see(5, page(100))
    watcher.see(5, page(0))
    assert only(watcher.see(6, page(200))).generation_tokens_per_s == pytest.approx(100)


def sane(value: object) -> None:
    if isinstance(value, float):
        assert math.isfinite(value)
        assert value >= 0
    elif isinstance(value, (Latency, Quantile, SpeculationReading)):
        for field in fields(value):
            sane(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            sane(item)
    elif isinstance(value, tuple):
        for item in value:
            sane(item)


COUNTERS = [
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:time_to_first_token_seconds_count",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:iteration_tokens_total_sum",
    "vllm:iteration_tokens_total_count",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_decode_time_seconds_count",
    "vllm:request_generation_tokens_sum",
    "vllm:request_generation_tokens_count",
    "vllm:estimated_read_bytes_per_gpu_total",
]
VALUE = st.one_of(
    st.floats(min_value=0, max_value=1e15), st.integers(0, 5).map(float), st.sampled_from([math.nan, math.inf, 0.0])
)
PAGE = st.fixed_dictionaries(
    {"start": st.sampled_from([None, 1.0, 2.0, 3.0]), "engines": st.sets(st.sampled_from("01"), min_size=1)},
    optional={name: VALUE for name in COUNTERS},
)


def drawn(spec: dict[str, object], buckets: list[float]) -> bytes:
    lines = [] if spec["start"] is None else [f"process_start_time_seconds {spec['start']}"]
    for engine in sorted(spec["engines"]):  # type: ignore[call-overload]
        labels = f'engine="{engine}",model_name="m"'
        lines.append(f"vllm:num_requests_running{{{labels}}} 1")
        lines += [f"{name}{{{labels}}} {spec[name]!r}" for name in COUNTERS if name in spec]
        edges = ("0.1", "0.5", "1.0", "+Inf")
        for edge, value in zip(edges, buckets, strict=True):
            lines.append(f'vllm:time_to_first_token_seconds_bucket{{{labels},le="{edge}"}} {value!r}')
    return ("\n".join(lines) + "\n").encode()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 40), PAGE, st.lists(VALUE, min_size=4, max_size=4)), min_size=1, max_size=8))
def test_whatever_the_pages_say_no_reading_is_negative_or_nan(
    pages: list[tuple[float, dict[str, object], list[float]]],
) -> None:
    watcher = Watcher(10)
    at_s = 0.0
    for gap, spec, buckets in pages:
        at_s += gap
        for engine in watcher.see(at_s, drawn(spec, buckets)):
            for field in fields(EngineReading):
                sane(getattr(engine, field.name))
            for share in (engine.prefix_hit_rate, engine.kv_usage):
                assert share is None or share <= 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10), st.integers(0, 1000), st.booleans()), min_size=2, max_size=20),
    st.floats(1, 30),
)
def test_tokens_over_a_window_are_exactly_those_counted_since_the_last_restart(
    steps: list[tuple[int, int, bool]], window_s: float
) -> None:
    watcher = Watcher(window_s)
    at_s, total, start = 0, 0, 1
    seen: list[tuple[int, int, int]] = []
    for gap, tokens, restart in steps:
        at_s += gap
        start, total = (start + 1, tokens) if restart else (start, total + tokens)
        engine = only(watcher.see(at_s, page(total, started=float(start))))
        if engine.generation_tokens_per_s is not None:
            counted = engine.generation_tokens_per_s * engine.window_s
            began = {then: before for then, before, run in seen if run == start}
            assert counted == pytest.approx(total - began[round(at_s - engine.window_s)])
        else:
            assert not [then for then, _, run in seen if run == start and at_s - then <= max(60, 2 * window_s)]
        seen.append((at_s, total, start))
