"""The t distribution against printed tables, and intervals of ratios."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop.results.intervals import (
    noise_of,
    paired_ratio,
    rounds_to_settle,
    smallest_difference,
    t_probability,
    t_quantile,
)


@pytest.mark.parametrize(
    ("df", "t_95", "t_99"),
    [
        (1, 12.706, 63.657),
        (2, 4.303, 9.925),
        (3, 3.182, 5.841),
        (4, 2.776, 4.604),
        (5, 2.571, 4.032),
        (6, 2.447, 3.707),
        (7, 2.365, 3.499),
        (9, 2.262, 3.250),
        (10, 2.228, 3.169),
        (15, 2.131, 2.947),
        (20, 2.086, 2.845),
        (30, 2.042, 2.750),
        (60, 2.000, 2.660),
        (120, 1.980, 2.617),
    ],
)
def test_quantiles_of_the_printed_tables(df: int, t_95: float, t_99: float) -> None:
    assert t_quantile(df) == pytest.approx(t_95, abs=5e-4)
    assert t_quantile(df, 0.99) == pytest.approx(t_99, abs=5e-4)


@given(st.integers(1, 200), st.floats(0.5, 0.999))
def test_the_quantile_undoes_the_probability(df: int, confidence: float) -> None:
    assert t_probability(t_quantile(df, confidence), df) == pytest.approx(confidence, abs=1e-9)


def test_no_quantile_without_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="df >= 1"):
        t_quantile(0)


def test_a_paired_ratio_by_hand() -> None:
    """Log ratios ln 1.1, ln 1.2, ln 1.3: mean and deviation by hand, t = 4.303."""
    found = paired_ratio([100, 200, 50], [110, 240, 65])
    assert found is not None
    logs = [math.log(1.1), math.log(1.2), math.log(1.3)]
    mean = sum(logs) / 3
    half = 4.302653 * math.sqrt(sum((log - mean) ** 2 for log in logs) / 2) / math.sqrt(3)
    assert found.ratio == pytest.approx(math.exp(mean))
    assert found.low == pytest.approx(math.exp(mean - half), rel=1e-6)
    assert found.high == pytest.approx(math.exp(mean + half), rel=1e-6)


def test_drift_that_both_share_does_not_widen_the_interval() -> None:
    found = paired_ratio([100, 80, 60], [110, 88, 66])
    assert found is not None
    assert found.low == pytest.approx(1.1)
    assert found.high == pytest.approx(1.1)


def test_one_pair_has_no_interval_and_no_pair_no_ratio() -> None:
    one = paired_ratio([100], [150])
    assert one is not None
    assert (one.ratio, one.low, one.high) == (pytest.approx(1.5), None, None)
    assert paired_ratio([], []) is None
    assert paired_ratio([0.0], [150]) is None


def test_how_many_rounds_would_settle_a_difference() -> None:
    assert rounds_to_settle(1.5) == 2
    assert rounds_to_settle(1.10) == 3
    assert rounds_to_settle(1 / 1.10) == 3
    assert rounds_to_settle(1.0) is None


@pytest.mark.parametrize(("rounds", "percent"), [(2, 29), (3, 7.3), (4, 4.6), (5, 3.6), (10, 2.04)])
def test_what_so_many_rounds_can_tell_from_two_percent_of_noise(rounds: int, percent: float) -> None:
    """t(0.975, n - 1) times 2 % times root of 2 / n, by hand."""
    found = smallest_difference(rounds)
    assert found is not None
    assert found * 100 == pytest.approx(percent, rel=0.02)
    assert smallest_difference(1) is None


def test_the_noise_that_was_seen_comes_back_out_of_the_interval() -> None:
    rng = random.Random(3)
    found = []
    for _ in range(300):
        pairs = [(600 * math.exp(rng.gauss(0, 0.03)), 660 * math.exp(rng.gauss(0, 0.03))) for _ in range(4)]
        interval = paired_ratio([one for one, _ in pairs], [two for _, two in pairs])
        assert interval is not None
        noise = noise_of(interval)
        assert noise is not None
        found.append(noise**2)
    assert math.sqrt(sum(found) / len(found)) == pytest.approx(0.03, rel=0.05)


@pytest.mark.parametrize("rounds", [2, 3, 5])
@pytest.mark.parametrize(
    ("one", "two", "shared", "drift"),
    [
        (0.02, 0.02, 0.0, 0.0),
        (0.02, 0.02, 0.04, 0.0),
        (0.0005, 0.03, 0.02, 0.0),
        (0.02, 0.02, 0.0, 0.01),
    ],
    ids=["plain", "rounds differ", "one is steady", "drift"],
)
def test_false_winners_stay_at_five_percent_whatever_the_rounds_share(
    rounds: int, one: float, two: float, shared: float, drift: float
) -> None:
    """2,000 comparisons of equals each: rounds that all differ, unequal noise, a drift from slot to slot (A B, B A)."""
    rng = random.Random(rounds)
    winners = 0
    for _ in range(2000):
        base, other = [], []
        for number in range(rounds):
            common = rng.gauss(0, shared)
            slots = (2 * number, 2 * number + 1) if number % 2 == 0 else (2 * number + 1, 2 * number)
            base.append(math.exp(common + rng.gauss(0, one) + drift * slots[0]))
            other.append(math.exp(common + rng.gauss(0, two) + drift * slots[1]))
        interval = paired_ratio(base, other)
        assert interval is not None and interval.low is not None and interval.high is not None
        winners += interval.low > 1 or interval.high < 1
    assert winners / 2000 <= 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5
