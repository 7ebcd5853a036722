"""History in rings, energy over windows, and memory that stays flat."""

from __future__ import annotations

import gc
import math
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metric_pages import Watcher, version_page

from vtop.telemetry.energy import EnergyMeter
from vtop.telemetry.history import GPU_FIELDS, SERVER_FIELDS, HistoryStore
from vtop.telemetry.snapshot import History


def test_gaps_are_none_whatever_made_them() -> None:
    store = HistoryStore()
    for at_s, value in enumerate((1.0, None, math.nan, math.inf, 2.0)):
        store.add_server("a", at_s, {"running": value})
    assert store.series("server/a/running") == ([0, 1, 2, 3, 4], [1, None, None, None, 2])
    assert store.series("server/a/waiting")[1] == [None] * 5


@pytest.mark.parametrize("key", ["", "server", "server/a", "server/a/nonsense", "server/b/running", "gpu/a/running"])
def test_an_unknown_series_is_empty(key: str) -> None:
    store = HistoryStore()
    store.add_server("a", 0, {"running": 1})
    assert store.series(key) == ((), ())


def test_a_name_with_a_slash_is_found() -> None:
    store = HistoryStore()
    store.add_server("http://127.0.0.1:8000/x", 0, {"running": 1})
    assert store.series("server/http://127.0.0.1:8000/x/running") == ([0], [1])


def test_only_the_last_seconds_are_given_where_asked() -> None:
    store = HistoryStore()
    for at_s in range(100):
        store.add_gpu("u", at_s, {"power_w": at_s})
    times, values = store.series("gpu/u/power_w", seconds=10)
    assert times == list(range(89, 100))
    assert values == times


@given(st.integers(1, 50), st.integers(0, 300))
def test_the_newest_points_are_kept_and_no_more(points: int, count: int) -> None:
    store = HistoryStore(points)
    for at_s in range(count):
        store.add_server("a", at_s, {"running": at_s})
    times, values = store.series("server/a/running")
    assert list(times) == list(range(max(0, count - points), count))
    assert list(values) == list(times)


def test_a_point_that_is_not_newer_is_dropped() -> None:
    store = HistoryStore()
    store.add_server("a", 5, {"running": 1})
    store.add_server("a", 5, {"running": 2})
    store.add_server("a", 4, {"running": 3})
    assert store.series("server/a/running") == ([5], [1])


def test_servers_without_number_do_not_fill_the_memory() -> None:
    store = HistoryStore(10)
    for number in range(1000):
        store.add_server(f"s{number}", number, {"running": 1})
    assert store.series("server/s0/running") == ((), ())
    assert store.series("server/s999/running") == ([999], [1])


def test_every_key_of_the_contract_exists() -> None:
    text = History.series.__doc__ or ""
    documented = set(re.findall(r"[a-z0-9_]+", text[text.index("FIELD one of") : text.index("None marks a gap")]))
    assert set(SERVER_FIELDS) <= documented
    assert set(GPU_FIELDS) <= documented


def test_energy_between_two_moments_is_interpolated() -> None:
    meter = EnergyMeter()
    for at_s in range(11):
        meter.add("a", at_s, at_s * 100.0)
        meter.add("b", at_s, 5000 + at_s * 10.0)
    assert meter.joules(["a"], 2.5, 4.5) == pytest.approx(200)
    assert meter.joules(["a", "b"], 0, 10) == pytest.approx(1100)


def test_energy_that_was_not_watched_is_unknown() -> None:
    meter = EnergyMeter()
    meter.add("a", 100, 0)
    meter.add("a", 101, 100)
    assert meter.joules(["a"], 90, 101) is None
    assert meter.joules(["a"], 100, 110) is None
    assert meter.joules(["a", "b"], 100, 101) is None
    assert meter.joules([], 100, 101) is None


def test_a_load_test_of_hours_has_its_energy() -> None:
    meter = EnergyMeter()
    for half_second in range(6 * 7200):
        at_s = half_second / 2
        meter.add("a", at_s, 100.0 * at_s if at_s < 3600 else 360_000.0 + 300.0 * (at_s - 3600))
    assert meter.joules(["a"], 60, 21_540) == pytest.approx(100.0 * 3540 + 300.0 * 17_940, rel=1e-3)
    assert meter.joules(["a"], 21_000.25, 21_500.25) == pytest.approx(300.0 * 500)
    counter = meter._counters["a"]
    assert len(counter.newest) + len(counter.older) <= 2400, "and its memory stays flat"


def test_a_counter_that_went_back_starts_anew() -> None:
    meter = EnergyMeter()
    for at_s, joules in ((0, 1000), (5, 1500), (10, 0), (11, 100), (12, 200)):
        meter.add("a", at_s, joules)
    assert meter.joules(["a"], 0, 12) is None
    assert meter.joules(["a"], 10, 12) == pytest.approx(200)


def test_memory_is_flat_over_many_scrapes() -> None:
    """Once every ring is full, as many scrapes again must add nothing."""
    body = version_page("0.32.0")
    watcher, store = Watcher(10), HistoryStore(60)

    def run(first: int, count: int) -> None:
        for second in range(first, first + count):
            (engine,) = watcher.see(float(second), body)
            store.add_server("a", float(second), {"running": engine.running})

    run(0, 200)
    tracemalloc.start()
    run(200, 80)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    run(280, 200)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 50_000, "bytes more after 200 scrapes of 205 series"
