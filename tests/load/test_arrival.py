from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop.errors import UsageError
from vtop.load.arrival import expected_count, gamma_offsets, slot_starts


@given(st.floats(0.1, 500), st.integers(2, 200), st.floats(0.2, 20), st.integers())
def test_arrivals_with_a_count_hold_the_rate_exactly(rate: float, count: int, shape: float, seed: int) -> None:
    offsets = list(gamma_offsets(rate, random.Random(seed), burstiness=shape, count=count))
    assert len(offsets) == count
    assert offsets == sorted(offsets)
    assert offsets[-1] == pytest.approx((count - 1) / rate)


def test_infinite_burstiness_is_a_constant_rate() -> None:
    offsets = list(gamma_offsets(4.0, random.Random(0), burstiness=float("inf"), count=5))
    assert offsets == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (4.0, 0.5), (0.25, 2.0)])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float, variation: float) -> None:
    offsets = list(gamma_offsets(10.0, random.Random(1), burstiness=burstiness, count=20_000))
    gaps = [later - earlier for earlier, later in itertools.pairwise(offsets)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.1)


def test_a_ramp_rises_linearly_and_then_holds_the_rate() -> None:
    offsets = list(
        itertools.takewhile(
            lambda at: at < 20.0, gamma_offsets(10.0, random.Random(0), burstiness=float("inf"), ramp_s=10.0)
        )
    )
    first, second, after = (sum(low <= at < low + 5 for at in offsets) for low in (0, 5, 12))
    assert (first, second, after) == (pytest.approx(12.5, abs=1), pytest.approx(37.5, abs=1), pytest.approx(50, abs=1))


@pytest.mark.parametrize(("rate", "burstiness"), [(0.0, 1.0), (-1.0, 1.0), (float("inf"), 1.0), (1.0, 0.0)])
def test_impossible_arrivals_are_refused(rate: float, burstiness: float) -> None:
    with pytest.raises(UsageError):
        gamma_offsets(rate, random.Random(0), burstiness=burstiness)


def test_streams_of_a_closed_loop_start_at_once_or_over_a_ramp() -> None:
    assert slot_starts(3) == [0.0, 0.0, 0.0]
    assert slot_starts(4, 2.0) == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize(
    ("rate", "duration_s", "ramp_s", "count"),
    [(5.0, 20.0, 0.0, 100), (5.0, 20.0, 10.0, 75), (4.0, 10.0, 20.0, 10), (0.01, 1.0, 0.0, 1)],
)
def test_a_timed_test_brings_what_its_rate_says(rate: float, duration_s: float, ramp_s: float, count: int) -> None:
    """Whatever the chance of the arrivals, and all of them within the time."""
    assert expected_count(rate, duration_s, ramp_s) == count
    for seed in range(20):
        rng = random.Random(seed)
        offsets = list(gamma_offsets(rate, rng, burstiness=0.5, count=count, ramp_s=ramp_s))
        assert len(offsets) == count
        assert offsets[-1] <= duration_s
