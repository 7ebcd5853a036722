"""The t distribution against printed tables, and intervals of ratios."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop.results.intervals import paired_ratio, rounds_to_settle, t_probability, t_quantile


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
