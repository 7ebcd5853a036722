from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop.load.ladder import Ladder
from vtop.load.progress import LoadStep
from vtop.load.search import CLOSE_ENOUGH, MOST_RUNS, RateSearch


def step(
    *,
    concurrency: int | None = None,
    rate: float | None = None,
    output: float | None = 1.0,
    failed: int = 0,
    holds: bool | None = None,
    requests: int = 100,
    why: str = "",
) -> LoadStep:
    return LoadStep(
        concurrency=concurrency,
        rate=rate,
        requests=requests,
        failed=failed,
        output_tokens_per_s=output,
        requests_per_s=1.0,
        ttft_p50_s=0.1,
        ttft_p95_s=0.2,
        tpot_p50_s=0.01,
        tpot_p95_s=0.02,
        holds=holds,
        why=why,
    )


def climb(throughput: Callable[[int], float], highest: int = 128) -> Ladder:
    ladder = Ladder(highest)
    while (concurrency := ladder.next()) is not None:
        ladder.add(step(concurrency=concurrency, output=throughput(concurrency)))
    return ladder


def test_the_ladder_stops_at_the_plateau() -> None:
    ladder = climb(lambda n: min(n, 16) * 100.0)
    assert [s.concurrency for s in ladder.steps] == [1, 2, 4, 8, 16, 32]
    assert "plateau" in ladder.ended_because
    best = ladder.best()
    assert best is not None and ladder.steps[best].concurrency == 16


def test_the_ladder_ends_at_its_limit_even_if_it_is_no_power_of_two() -> None:
    ladder = climb(lambda n: n * 100.0, highest=24)
    assert [s.concurrency for s in ladder.steps] == [1, 2, 4, 8, 16, 24]


def test_failures_and_broken_limits_end_the_ladder() -> None:
    ladder = Ladder(128)
    ladder.add(step(concurrency=1, failed=2))
    assert ladder.next() is None and "2 of 100" in ladder.ended_because
    ladder = Ladder(128)
    ladder.add(step(concurrency=1, output=100.0, holds=True))
    ladder.add(step(concurrency=2, output=180.0, holds=False, why="TTFT P95 900 ms is above 200 ms"))
    assert ladder.next() is None and "TTFT" in ladder.ended_because
    assert ladder.best() == 0


@given(st.floats(0.05, 200.0), st.floats(0.05, 200.0))
def test_the_search_closes_in_on_the_highest_rate_in_few_runs(limit: float, first: float) -> None:
    search = RateSearch(first)
    while (rate := search.next()) is not None:
        search.add(step(rate=rate, holds=rate <= limit))
    assert len(search.steps) <= MOST_RUNS
    if search.holds is not None:
        assert search.holds <= limit
    if search.holds is not None and search.breaks is not None:
        assert search.holds <= limit < search.breaks
    if 0.5 <= limit / first <= 2.0:
        assert search.holds is not None and search.breaks is not None
        assert search.breaks / search.holds <= CLOSE_ENOUGH * 1.001


@pytest.mark.parametrize(("holds", "words"), [(True, "no rate was found that breaks"), (False, "no rate down to")])
def test_a_search_without_a_border_says_so(holds: bool, words: str) -> None:
    search = RateSearch(1.0)
    while (rate := search.next()) is not None:
        search.add(step(rate=rate, holds=holds))
    assert words in search.verdict()
