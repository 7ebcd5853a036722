"""Numbers to text: digits, prefixes and what is unknown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0"), (0.0004, "0.000400"), (0.123, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123")),
        *((0.9996, "1.00"), (9.996, "10.0"), (99.96, "100"), (999.6, "1,000"), (-9.996, "-10.0"), (12345.6, "12,346")),
        *((None, units.DASH), (math.nan, units.DASH), (math.inf, units.DASH), (-math.inf, units.DASH)),
    ],
)
def test_three_digits_at_each_power_of_ten(value: float | None, text: str) -> None:
    assert units.significant(value) == text


@given(st.floats(1e-4, 1e6))
def test_a_number_that_rounds_up_to_the_next_power_has_no_more_digits_than_its_neighbours(value: float) -> None:
    text = units.significant(value)
    assert len(text.replace(",", "").replace(".", "").lstrip("0")) == max(3, len(str(round(value))))
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *(
            (units.duration(0.9996), "1.00 s"),
            (units.duration(0.0009996), "1.00 ms"),
            (units.duration(5.9e-5), "59.0 µs"),
        ),
        *(
            (units.rate(9999.6, "tok/s"), "10.0k tok/s"),
            (units.count(999_600), "1.00M"),
            (units.count(9_999.6), "10.0k"),
        ),
        *((units.bytes_per_s(999.6e9), "1.00 TB/s"), (units.gib(2**30), "1.00 GiB"), (units.elapsed(59.96), "1:00")),
        *((units.percent_of_100(9.96), "10 %"), (units.percent(0.004), "0.4 %"), (units.percent(None), units.DASH)),
    ],
)
def test_each_unit_at_the_border_to_the_next(text: str, wanted: str) -> None:
    assert text == wanted
