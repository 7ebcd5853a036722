from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop.load import outcome, stats
from vtop.load.floor import ClientFloor
from vtop.load.outcome import Measured
from vtop.load.progress import LoadRequest, LoadResult
from vtop.load.stats import RequestRecord, Span
from vtop.load.workload import resolve


def good(index: int, *, sent: float, ttft: float, e2e: float, tokens: int = 100) -> RequestRecord:
    return RequestRecord(
        index=index,
        sent_s=sent,
        ended_s=sent + e2e,
        ok=True,
        status=200,
        ttft_s=ttft,
        e2e_s=e2e,
        tpot_s=(e2e - ttft) / (tokens - 1),
        first_token_s=sent + ttft,
        last_token_s=sent + e2e,
        output_tokens=tokens,
        chunks=2,
        token_stamps=[sent + ttft, sent + e2e],
        gaps_s=[e2e - ttft],
    )


def bad(index: int, cause: str, *, sent: float, took: float, ttft: float | None = None) -> RequestRecord:
    return RequestRecord(index=index, sent_s=sent, ended_s=sent + took, failure=cause, ttft_s=ttft, detail="why")


def result(records: list[RequestRecord], *, server: dict[str, object] | None = None, **wishes: object) -> LoadResult:
    given_wishes: dict[str, object] = {"workload": "chat", "concurrency": 2, **wishes}
    request = LoadRequest(url="http://x", model="m", **given_wishes)  # type: ignore[arg-type]
    floor = given_wishes.pop("floor", None)
    assert floor is None
    shape = resolve(request)
    started = min((record.sent_s for record in records), default=0.0)
    warm = [good(-1, sent=started - 1, ttft=0.1, e2e=0.5)]
    measured = Measured(records=records, warmup_records=warm, started_s=started, shape=shape, complete=True)
    return outcome.result_of(
        measured,
        request,
        run_id="r",
        directory="d",
        at_wall_s=0.0,
        repeat_command="",
        server=server or {},
        gpu={},
        fingerprint={},
    )


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_linear_between_order_statistics(values: list[float], q: float) -> None:
    ordered = sorted(values)
    rank = (len(ordered) - 1) * q / 100
    below, above = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    found = stats.percentile(ordered, q)
    assert found is not None
    assert below - 1e-9 <= found <= above + 1e-9
    if len(ordered) > 1 and q in (25.0, 50.0, 75.0):
        quartiles = statistics.quantiles(ordered, n=4, method="inclusive")
        assert found == pytest.approx(quartiles[int(q / 25) - 1])


def test_percentiles_of_nothing_are_unknown_not_zero() -> None:
    empty = stats.percentiles([None, None])
    assert (empty.n, empty.mean, empty.p50, empty.p95) == (0, None, None, None)


def test_one_slow_first_request_and_its_percentile_with_and_without_it() -> None:
    """A first request that compiles kernels makes the P99 of 50: 814.74 ms with it, 63 ms without it."""
    rest = [60, 56, 63, 59, 55, 62, 58, 54, 61, 57, 53] * 4 + [60, 56, 63, 59, 55]
    values = [1537.0, *map(float, rest)]
    found = stats.percentiles(values)
    assert found.n == 50
    assert found.p99 == pytest.approx(814.74)
    assert found.p50 == pytest.approx(58.0)
    assert found.mean == pytest.approx(87.64)
    without = stats.percentiles(values[1:])
    assert (without.p99, without.mean) == (pytest.approx(63.0), pytest.approx(58.06, abs=0.005))


def test_failed_requests_are_in_no_latency_and_no_throughput() -> None:
    """14 good requests of 100 tokens, 3 errors in the stream, 2 refused, 1 cut, in 20 s."""
    records = [good(i, sent=0.0, ttft=0.1 + i * 0.01, e2e=2.1 + i * 0.01) for i in range(13)]
    records.append(good(13, sent=20.0 - 2.23, ttft=0.23, e2e=2.23))
    records += [bad(14 + i, "server_error_in_stream", sent=1.0, took=0.7, ttft=0.09) for i in range(3)]
    records += [bad(17 + i, "http_400", sent=1.0, took=0.004) for i in range(2)]
    records.append(bad(19, "stream_cut", sent=1.0, took=1.2, ttft=0.095))
    found = result(records)
    assert (found.completed, found.failed, found.requests) == (14, 6, 20)
    assert found.failures == (("server_error_in_stream", 3), ("http_400", 2), ("stream_cut", 1))
    assert found.output_tokens_per_s == pytest.approx(70.0)
    assert found.requests_per_s == pytest.approx(0.7)
    assert found.ttft.p50 == pytest.approx(0.165)
    assert found.ttft.p95 == pytest.approx(0.2235)
    assert found.e2e.p95 == pytest.approx(2.2235)
    assert not found.comparable
    assert found.not_comparable_because == "6 of 20 requests failed (30%)"


def test_waiting_in_the_client_is_measured_from_the_schedule() -> None:
    """10 requests a second asked, one at a time, 0.5 s each: 500 ms from the send, 1,900 ms from the schedule."""
    records = []
    for i in range(8):
        record = good(i, sent=i * 0.5, ttft=0.1, e2e=0.5)
        record.scheduled_s = i * 0.1
        records.append(record)
    found = result(records, rate=10.0, concurrency=1)
    assert found.wait_before_send.mean == pytest.approx(1.4)
    assert found.e2e.mean == pytest.approx(0.5)
    assert found.e2e_from_schedule.mean == pytest.approx(1.9)
    assert found.e2e_from_schedule.p99 == pytest.approx(3.272)
    assert found.achieved_rate == pytest.approx(2.0)
    assert any("only 2.00 of 10.0 requests/s could be sent" in words for words in found.warnings)


def test_a_closed_loop_has_no_schedule() -> None:
    found = result([good(i, sent=float(i), ttft=0.1, e2e=0.5) for i in range(3)])
    assert found.e2e_from_schedule.n == 0
    assert found.achieved_rate is None


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    records = [good(i, sent=0.0, ttft=0.1 if i % 2 else 0.4, e2e=2.0) for i in range(10)]
    found = result(records, slo_ttft_s=0.2)
    assert found.goodput_per_s == pytest.approx(5 / 2.0)


def test_the_servers_own_ttft_far_below_the_clients_is_said() -> None:
    records = [good(i, sent=0.0, ttft=134.175, e2e=140.0) for i in range(16)]
    found = result(records, server={"ttft_mean_s": 1.33125, "running_max": 100}, concurrency=200)
    assert any("load generator or a proxy is the bottleneck" in words for words in found.warnings)
    assert any("never ran more than 100 of 200" in words for words in found.warnings)


@pytest.mark.parametrize(("hits", "warned"), [(0.00390625, False), (0.9375, True), (None, False)])
def test_a_warm_prefix_cache_is_said(hits: float | None, warned: bool) -> None:
    found = result([good(0, sent=0.0, ttft=0.1, e2e=1.0)], server={"prefix_hit_rate": hits})
    assert any("warm prefix cache" in words for words in found.warnings) == warned


def test_loop_lag_against_ttft_makes_a_run_client_bound() -> None:
    assert outcome.is_client_bound(0.2, 0.011, None, None)
    assert not outcome.is_client_bound(0.2, 0.009, None, None)
    assert not outcome.is_client_bound(0.01, 0.004, None, None)


def test_reading_near_its_measured_capacity_makes_a_run_client_bound() -> None:
    floor = ClientFloor(16, 0.0005, 50_000.0, 2e-5)
    assert outcome.is_client_bound(0.2, 0.001, 45_000.0, floor)
    assert not outcome.is_client_bound(0.2, 0.001, 45_000.0, floor, processes=2)


def test_concurrency_is_weighted_by_time() -> None:
    steps = stats.concurrency_steps([(0.0, 4.0), (0.0, 1.0), (1.0, 2.0)])
    assert stats.mean_concurrency(steps, Span(0.0, 4.0)) == pytest.approx((2 + 2 + 1 + 1) / 4)


def test_the_steady_window_leaves_out_ramp_and_tail() -> None:
    # Ten streams that begin one second apart, hand over once, and end one second apart.
    spans = [(float(i), 20.0 + i) for i in range(10)] + [(20.0 + i + 0.0001, 40.0 + i) for i in range(10)]
    window = stats.steady_window(stats.concurrency_steps(spans), wanted=10)
    assert window is not None
    assert (window.start_s, window.end_s) == (8.0, 41.0)


def test_a_load_that_never_reaches_its_concurrency_has_no_steady_window() -> None:
    assert stats.steady_window(stats.concurrency_steps([(0.0, 1.0)]), wanted=10) is None


def test_peak_counts_tokens_not_chunks() -> None:
    record = good(0, sent=0.0, ttft=0.5, e2e=1.5, tokens=100)
    assert stats.tokens_by_second([record], 0.0) == [50.0, 50.0]
    record.token_counts = [90, 10]
    assert stats.tokens_by_second([record], 0.0) == [90, 10]


def test_percentiles_grow_one_value_at_a_time() -> None:
    rng = random.Random(3)
    values = [rng.random() for _ in range(200)]
    running = stats.RunningPercentiles()
    for value in [*values, None]:
        running.add(value)
    assert running.read() == stats.percentiles(values)


def test_small_samples_are_marked() -> None:
    assert stats.too_few(95, 71) and not stats.too_few(95, 72)
    assert stats.too_few(99, 367) and not stats.too_few(99, 368)
    assert not stats.too_few(50, 1)


def test_without_a_warm_up_the_first_request_is_named() -> None:
    records = [good(i, sent=float(i), ttft=1.537 if i == 0 else 0.058, e2e=2.0) for i in range(50)]
    request = LoadRequest(url="http://x", model="m", workload="chat", warmup=0)
    measured = Measured(records=records, warmup_records=[], started_s=0.0, shape=resolve(request), complete=True)
    found = outcome.result_of(
        measured, request, run_id="r", directory="d", at_wall_s=0, repeat_command="", server={}, gpu={}, fingerprint={}
    )
    (words,) = [words for words in found.warnings if "no warm-up" in words]
    assert "1537 ms" in words and "58 ms without it" in words


def test_a_cut_request_is_neither_success_nor_failure() -> None:
    records = [good(0, sent=0.0, ttft=0.1, e2e=1.0), bad(1, "cancelled", sent=0.5, took=9.0)]
    found = result(records)
    assert (found.requests, found.failed, found.cancelled, found.duration_s) == (1, 0, 1, 1.0)
