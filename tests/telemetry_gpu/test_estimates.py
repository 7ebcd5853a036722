"""Traffic estimates, and one source a line."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from vtop.telemetry.gpu.counters import CounterRate
from vtop.telemetry.gpu.estimate import HOLD_S, RANKING, SteadySource, choose, from_counters, from_roofline
from vtop.telemetry.gpu.throttle import throttle_words
from vtop.telemetry.snapshot import Bandwidth


def test_vllms_counters_add_up_and_may_pass_100_percent() -> None:
    found = from_counters(1.9e12, 0.1e12, 3.35e12, "nvml")
    assert found is not None
    assert (found.source, found.bytes_per_s, found.peak_source) == ("vllm", 2e12, "nvml")
    assert found.percent is not None and round(found.percent, 1) == 59.7
    over = from_counters(4e12, 0, 3.35e12, "table")
    assert over is not None and over.percent is not None and over.percent > 119


def test_without_a_peak_there_are_bytes_and_no_percentage() -> None:
    found = from_counters(1e12, 1e11)
    assert found is not None and found.percent is None and found.bytes_per_s == 1.1e12 and found.peak_source == ""


def test_counters_that_never_count_are_no_zero() -> None:
    assert from_counters(None, 1.0) is None
    assert from_counters(0.0, 0.0, 1e12, counted_bytes=0) is None, "an architecture that vLLM cannot analyse"
    idle = from_counters(0.0, 0.0, 1e12, counted_bytes=5e15)
    assert idle is not None and idle.percent == 0.0
    assert from_counters(math.nan, 1.0) is None and from_roofline(-1.0) is None and from_roofline(None) is None


def test_best_source_is_chosen() -> None:
    busy, vllm, gpm = Bandwidth("busy", 90.0), Bandwidth("vllm", 40.0, 1e12), Bandwidth("gpm", 50.0, 1.2e12)
    assert choose([busy, None, vllm, gpm]) is gpm
    assert choose([busy, vllm]) is vllm
    assert choose([None, Bandwidth("made-up", 1.0)]) is None


def test_a_switch_of_sources_leaves_a_gap() -> None:
    line = SteadySource()
    busy, gpm = Bandwidth("busy", 90.0), Bandwidth("gpm", 50.0, 1e12)
    first = line.pick(0.0, [busy])
    gap = line.pick(0.5, [busy, gpm])
    then = line.pick(1.0, [busy, gpm])
    assert first is busy
    assert gap is not None and (gap.source, gap.percent, gap.bytes_per_s) == ("gpm", None, None)
    assert then is gpm


def test_a_silent_source_keeps_its_line_for_a_while() -> None:
    line = SteadySource()
    gpm, vllm = Bandwidth("gpm", 50.0, 1e12), Bandwidth("vllm", 80.0, 2e12)
    assert line.pick(0.0, [gpm, vllm]) is gpm
    silent = line.pick(HOLD_S - 1, [Bandwidth("gpm", None), vllm])
    assert silent is not None and silent.source == "gpm" and silent.percent is None
    absent = line.pick(HOLD_S - 0.5, [vllm])
    assert absent is not None and (absent.source, absent.percent) == ("gpm", None)
    gap = line.pick(HOLD_S + 1, [Bandwidth("gpm", None), vllm])
    assert gap is not None and (gap.source, gap.bytes_per_s) == ("vllm", None)
    assert line.pick(HOLD_S + 2, [vllm]) is vllm


def test_a_source_under_way_is_named_before_it_says_anything() -> None:
    found = SteadySource().pick(0.0, [Bandwidth("gpm", None), Bandwidth("busy", None)])
    assert found is not None and found.source == "gpm" and found.percent is None
    assert SteadySource().pick(0.0, []) is None


values = st.one_of(st.none(), st.floats(0, 150))
ticks = st.lists(st.tuples(st.floats(0.1, 8.0), st.dictionaries(st.sampled_from(RANKING), values)), max_size=40)


@given(ticks)
def test_two_sources_never_meet_in_a_line(history: list[tuple[float, dict[str, float | None]]]) -> None:
    line, now_s = SteadySource(), 0.0
    before: Bandwidth | None = None
    for step_s, says in history:
        now_s += step_s
        found = line.pick(now_s, [Bandwidth(source, value) for source, value in says.items()])
        if found is not None and found.percent is not None:
            assert says[found.source] == found.percent, "what it draws was said by that source, now"
            if before is not None and before.percent is not None:
                assert before.source == found.source
        before = found


@given(st.lists(st.integers(0, 2**64), min_size=2, max_size=30))
def test_counter_rates_are_never_negative_or_absurd(counts: list[int]) -> None:
    rate = CounterRate(300e9)
    for at_s, count in enumerate(counts):
        found = rate.update(float(at_s), float(count))
        assert found is None or 0 <= found <= 300e9


def test_counter_gap_and_reset() -> None:
    rate = CounterRate(1e12)
    assert rate.update(0.0, 100.0) is None
    assert rate.update(1.0, None) is None
    assert rate.update(2.0, 300.0) is None, "nothing to compare with after a gap"
    assert rate.update(3.0, 500.0) == 200.0
    assert rate.update(3.0, 900.0) is None, "no time went by"
    wide = CounterRate(1e12)
    wide.update(0.0, 2.0**40)
    assert wide.update(1.0, 0.0) is None, "a 64-bit counter that went back was reset"


def test_throttle_reasons_in_words() -> None:
    assert throttle_words(0) == () and throttle_words(1) == (), "idle is no throttling"
    assert throttle_words(0x4 | 0x8) == ("software power cap", "hardware slowdown")
    assert throttle_words(0x200) == ("unknown reason 0x200",)
