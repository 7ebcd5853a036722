"""When requests leave: after the warm-up, by one clock for all processes, and that a timed test ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from load_helpers import MockProcess, StartMock, run_stage

from vtop.load import engine, outcome
from vtop.load.progress import LoadRequest
from vtop.load.runner import LoadRunner
from vtop.load.stage import LocalDriver
from vtop.load.stats import RequestRecord, concurrency_steps
from vtop.results import store

FAST = ("--first", "0.05", "--step", "0.002")


async def sent(server: MockProcess, **wishes: Any) -> list[dict[str, Any]]:
    """The requests of a load test, as they were saved."""
    given = {"workload": "demo", "model": "normal", "max_tokens": 5, "measure_client": False, "warmup": 0, **wishes}
    runner = LoadRunner()
    try:
        await runner.start(LoadRequest(url=server.url, **given))
        result = await runner.wait()
    finally:
        await runner.close()
    assert result.failed == 0
    return store.load_requests(result.run_id)


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("processes", [1, 2, 3])
async def test_every_request_of_a_trace_leaves_at_its_time_in_several_processes_too(
    mock_server: StartMock, tmp_path: Path, processes: int
) -> None:
    trace = [{"timestamp": 100 * n, "input_length": 20 + n, "output_length": 5} for n in range(9)]
    rows = await sent(mock_server(*FAST), file=lines(tmp_path / "trace.jsonl", trace), processes=processes)
    assert [row["index"] for row in rows] == list(range(9))
    assert [row["scheduled_s"] for row in rows] == pytest.approx([0.1 * n for n in range(9)], abs=1e-5)


async def test_processes_send_no_prompt_of_each_other_in_the_steps_of_a_ladder(mock_server: StartMock) -> None:
    """Each makes prompts at the pace of its own streams; the prefix cache would know those that were sent before."""
    server = mock_server(*FAST)
    await sent(server, workload="ladder", concurrency=7, duration_s=0.5, prompt_tokens=30, processes=3)
    texts = [body["messages"][0]["content"] for body in server.seen()["bodies"]]
    assert len(texts) > 3, "more than one step was sent"
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("warmup", [1, 2, 5])
async def test_the_schedule_has_one_origin_for_all_processes_whoever_warms_up_longer(
    mock_server: StartMock, warmup: int
) -> None:
    rows = await sent(mock_server(*FAST), arrival="burst", requests=8, processes=2, warmup=warmup)
    assert [row["scheduled_s"] for row in rows] == [0.0] * 8


async def test_processes_share_the_cap_of_an_open_loop_without_a_rest(mock_server: StartMock) -> None:
    rows = await sent(mock_server(*FAST), arrival="burst", requests=9, concurrency=5, processes=2)
    levels = [
        max(
            level
            for _, level in concurrency_steps((r["sent_s"], r["ended_s"]) for r in rows if r["index"] % 2 == shard)
        )
        for shard in range(2)
    ]
    assert levels == [3, 2]


async def test_no_two_requests_of_conversations_have_one_number(mock_server: StartMock, tmp_path: Path) -> None:
    talks = [{"turns": [f"first {n}", "second", "third"], "max_tokens": 5} for n in range(5)]
    rows = await sent(mock_server(*FAST), file=lines(tmp_path / "talks.jsonl", talks), processes=2, concurrency=4)
    assert len(rows) == len({row["index"] for row in rows}) == 15


async def test_streams_start_over_the_ramp_after_the_warm_up(mock_server: StartMock) -> None:
    """Streams that warmed up while the ramp went on would all begin to count at once."""
    server = mock_server("--first", "1.5", "--step", "0.002")
    driver, _ = await run_stage(
        server.url, "normal", workload="demo", concurrency=4, requests=4, ramp_s=0.8, warmup=4, max_tokens=5
    )
    assert len(driver.warmup_records) == 4
    starts = sorted(record.sent_s for record in driver.records)
    assert max(record.ended_s for record in driver.warmup_records) <= starts[0]
    # A timer may ring late, never early.
    assert all(start - starts[0] >= 0.2 * n - 0.01 for n, start in enumerate(starts))


async def test_a_stop_does_not_wait_for_a_warm_up_that_nobody_counts(
    mock_server: StartMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STOP_WITHIN_S", 60.0)
    server = mock_server("--first", "60")

    def stop_while_it_warms_up(driver: LocalDriver) -> None:
        def look() -> None:
            if driver.in_flight:
                driver.stop()
            else:
                asyncio.get_running_loop().call_later(0.01, look)

        look()

    work = run_stage(server.url, "normal", workload="demo", concurrency=2, warmup=2, stop_after=stop_while_it_warms_up)
    driver, _ = await asyncio.wait_for(work, 30)
    assert [record.failure for record in driver.warmup_records] == ["cancelled", "cancelled"]
    assert list(driver.records) == []


async def test_a_timed_closed_loop_ends_though_no_stream_is_free_to_notice(
    mock_server: StartMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "DRAIN_WITHIN_S", 0.3)
    server = mock_server("--first", "10")
    driver, _ = await run_stage(
        server.url, "normal", workload="demo", concurrency=2, duration_s=0.3, warmup=0, timeout_s=20.0
    )
    assert [record.failure for record in driver.records] == ["cancelled", "cancelled"]


def _on_schedule(scheduled: list[float], late_by: float) -> list[RequestRecord]:
    return [
        RequestRecord(index=n, sent_s=at * late_by, ended_s=at * late_by + 0.1, scheduled_s=at, ok=True)
        for n, at in enumerate(scheduled)
    ]


@pytest.mark.parametrize(("late_by", "said"), [(1.0, ""), (2.0, "only 5.00 of 10.0 requests/s could be sent")])
def test_a_ramp_is_no_failure_to_send_at_the_rate(late_by: float, said: str) -> None:
    # Asked: 20 a second, but the schedule of the ramp brings 10 on average.
    records = _on_schedule([0.1 * n for n in range(21)], late_by)
    assert outcome.sent_too_slowly(20.0, records) == said
