"""Servers that behave well and badly: what counts as a success, and what the numbers are then."""

from __future__ import annotations

import asyncio
import socket
import statistics
from pathlib import Path

import pytest
from load_helpers import MockProcess, StartMock, run_stage, send

from vtop.errors import VtopError
from vtop.load.stage import LocalDriver
from vtop.load.stats import RequestRecord
from vtop.load.words import WordSource

FAST = ("--first", "0.05", "--step", "0.002")


def causes(records: list[RequestRecord]) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in records:
        found[record.failure] = found.get(record.failure, 0) + 1
    return found


async def test_ttft_tpot_and_e2e_of_a_well_behaved_server(mock_server: StartMock) -> None:
    records = await send(mock_server().url, "normal", max_tokens=30)
    for record in records:
        assert record.ok
        assert record.output_tokens == 30
        assert record.prompt_tokens
        assert record.ttft_s is not None and record.ttft_s >= 0.2
        assert record.tpot_s is not None and record.tpot_s >= 0.0099
        assert record.e2e_s == pytest.approx(record.ttft_s + 29 * record.tpot_s)
        assert len(record.gaps_s) == 29


async def test_a_role_chunk_that_comes_at_once_is_not_the_first_token(mock_server: StartMock) -> None:
    records = await send(mock_server().url, "rolefirst")
    assert all(record.ttft_s is not None and record.ttft_s >= 0.2 for record in records)


async def test_several_tokens_a_chunk_are_counted_by_usage(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "chunk4", max_tokens=40)
    assert [record.output_tokens for record in records] == [40] * 4
    assert [record.chunks for record in records] == [10] * 4
    for record in records:
        assert record.tpot_s is not None
        assert record.tpot_s == pytest.approx(sum(record.gaps_s) / 39)


async def test_running_usage_says_how_many_tokens_each_chunk_carries(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "chunk4", max_tokens=40, running_usage=True)
    assert [record.token_counts for record in records] == [[4] * 10] * 4


async def test_reasoning_counts_as_tokens_and_the_first_answer_is_apart(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "reason", max_tokens=40)
    for record in records:
        assert record.ok and record.output_tokens == 40
        assert record.ttft_s is not None and record.ttfo_s is not None
        assert record.ttfo_s - record.ttft_s >= 0.019 * 2 - 0.005


async def test_tokens_without_text_are_counted_by_usage_and_seen_by_running_usage(mock_server: StartMock) -> None:
    url = mock_server(*FAST).url
    plain = await send(url, "empty", max_tokens=20)
    assert [(record.output_tokens, record.chunks) for record in plain] == [(20, 10)] * 4
    running = await send(url, "empty", max_tokens=20, running_usage=True)
    assert [(record.output_tokens, record.chunks) for record in running] == [(20, 20)] * 4


async def test_an_error_inside_the_stream_is_a_failure_whatever_follows(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "err", requests=8)
    assert causes(records) == {"": 6, "server_error_in_stream": 2}
    assert {record.detail for record in records if not record.ok} == {"EngineCore encountered an issue (500)"}


async def test_a_stream_that_ends_early_without_an_error_is_a_failure(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "cut", requests=8)
    assert causes(records) == {"": 6, "stream_cut": 2}


async def test_a_reset_in_mid_stream_is_a_failure(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "reset", requests=8)
    assert causes(records) == {"": 6, "stream_cut": 2}


@pytest.mark.parametrize(
    ("model", "failure", "words", "later"),
    [
        ("busy429", "http_429", "Model is overloaded", "1"),
        ("busy503", "http_503", "Server is at capacity", "Wed, 01 Jan 2026 00:00:01 GMT"),
        ("bad400", "http_400", "max_tokens is too large", None),
    ],
)
async def test_a_refusal_shows_the_servers_words_and_is_not_sent_again(
    mock_server: StartMock, model: str, failure: str, words: str, later: str | None
) -> None:
    server: MockProcess = mock_server(*FAST)
    records = await send(server.url, model)
    assert causes(records) == {failure: 4}
    assert {(record.detail, record.retry_after) for record in records} == {(words, later)}
    assert all(record.ttft_s is None for record in records)
    assert server.seen()["asked"] == 4


async def test_a_stream_that_hangs_ends_at_its_deadline(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "hang", timeout_s=1.0)
    assert causes(records) == {"": 3, "timeout": 1}


async def test_one_token_has_a_ttft_and_no_tpot(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "normal", max_tokens=1)
    assert all(record.ok and record.ttft_s and record.tpot_s is None for record in records)


async def test_characters_cut_between_reads_arrive_whole(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "split", max_tokens=5)
    assert {record.text for record in records} == {" é\U0001f680" * 5}
    assert causes(records) == {"": 4}


async def test_a_missing_done_after_finish_and_usage_is_a_success_with_a_note(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "silent")
    assert [(record.ok, record.note) for record in records] == [(True, "no terminator")] * 4


async def test_finish_reason_abort_is_a_failure(mock_server: StartMock) -> None:
    assert causes(await send(mock_server(*FAST).url, "abort")) == {"finish_abort": 4}


async def test_without_usage_the_tokens_and_tpot_are_unknown(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "nousage", max_tokens=10)
    assert [(r.ok, r.output_tokens, r.chunks, r.tpot_s) for r in records] == [(True, None, 10, None)] * 4


@pytest.mark.parametrize(("model", "words"), [("html", "an HTML page"), ("json", '{"choices"')])
async def test_a_200_that_is_no_stream_is_a_failure(mock_server: StartMock, model: str, words: str) -> None:
    records = await send(mock_server(*FAST).url, model)
    assert causes(records) == {"not_a_stream": 4}
    assert words in records[0].detail


async def test_a_body_left_open_after_done_does_not_hold_the_stream(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "lingering", requests=8)
    assert causes(records) == {"": 8}
    assert all(record.e2e_s is not None and record.ended_s - record.sent_s > record.e2e_s for record in records)


async def test_a_server_that_closes_after_each_answer_is_reached_again(mock_server: StartMock) -> None:
    records = await send(mock_server(*FAST).url, "closing", requests=8)
    assert causes(records) == {"": 8}
    assert sum(record.connect_s is not None for record in records) == 4


async def test_a_server_that_is_gone_gives_its_cause() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(VtopError, match="nothing listens"):
        await send(f"http://127.0.0.1:{port}", "normal")


async def test_kept_connections_that_the_server_closed_meanwhile_are_replaced_unseen() -> None:
    """A server closes idle connections; the next request must not be counted as failed for it."""
    answer = (
        b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
    )
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        served += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
        await writer.drain()
        # The connection looks open, and is closed at the first byte of a second request.
        await reader.read(1)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        driver, _ = await run_stage(url, "any", workload="demo", requests=3, concurrency=1, warmup=0)
        assert causes(list(driver.records)) == {"": 3}
        assert driver.reconnects == 2
        assert served == 3
    finally:
        server.close()


async def test_warm_up_has_other_prompts_and_is_not_counted(mock_server: StartMock) -> None:
    server: MockProcess = mock_server(*FAST)
    driver, _ = await run_stage(
        server.url, "normal", workload="demo", requests=6, concurrency=3, warmup=3, max_tokens=5
    )
    assert len(driver.records) == 6 and len(driver.warmup_records) == 3
    prompts = [str(body["messages"]) for body in server.seen()["bodies"]]
    assert len(set(prompts)) == 9
    assert driver.started_s is not None
    assert min(record.sent_s for record in driver.records) == driver.started_s


async def test_every_stream_is_in_flight_at_once(mock_server: StartMock) -> None:
    driver, _ = await run_stage(
        mock_server().url, "normal", workload="demo", requests=64, concurrency=32, warmup=0, max_tokens=5
    )
    first = sorted(record.sent_s for record in driver.records)[:32]
    assert max(first) < min(record.ended_s for record in driver.records)


async def test_a_stop_keeps_what_was_measured_and_sends_nothing_more(mock_server: StartMock) -> None:
    server: MockProcess = mock_server("--first", "0.05", "--step", "0.01")

    def stop_soon(driver: LocalDriver) -> None:
        asyncio.get_running_loop().call_later(0.6, driver.stop)

    driver, _ = await run_stage(
        server.url,
        "normal",
        workload="demo",
        requests=500,
        concurrency=4,
        warmup=0,
        max_tokens=20,
        stop_after=stop_soon,
    )
    assert 4 <= len(driver.records) < 500
    assert causes(list(driver.records)) == {"": len(driver.records)}
    assert server.seen()["asked"] == len(driver.records)


async def test_a_timed_test_sends_for_its_time_and_lets_answers_end(mock_server: StartMock) -> None:
    driver, _ = await run_stage(
        mock_server(*FAST).url, "normal", workload="demo", duration_s=0.5, concurrency=2, warmup=0, max_tokens=10
    )
    assert driver.started_s is not None
    assert causes(list(driver.records)) == {"": len(driver.records)}
    assert max(record.sent_s for record in driver.records) - driver.started_s < 0.5


async def test_an_open_loop_sends_by_the_clock_and_knows_the_wait(mock_server: StartMock) -> None:
    """Rate 20/s with one stream at a time: requests wait in the client, and the schedule shows it."""
    driver, _ = await run_stage(
        mock_server(*FAST).url,
        "normal",
        workload="demo",
        rate=20.0,
        burstiness=float("inf"),
        requests=8,
        concurrency=1,
        warmup=0,
        max_tokens=50,
    )
    records = sorted(driver.records, key=lambda record: record.index)
    scheduled = [record.scheduled_s - records[0].scheduled_s for record in records]
    assert scheduled == pytest.approx([i / 20 for i in range(8)])
    waits = [record.sent_s - record.scheduled_s for record in records]
    assert statistics.mean(waits) > 0.1
    assert waits[-1] > waits[1]


async def test_a_burst_leaves_at_once(mock_server: StartMock) -> None:
    driver, _ = await run_stage(
        mock_server().url, "normal", workload="demo", arrival="burst", requests=12, concurrency=None, warmup=0
    )
    sends = [record.sent_s for record in driver.records]
    assert len(sends) == 12
    assert max(sends) < min(record.ended_s for record in driver.records)


async def test_completions_take_token_ids(mock_server: StartMock) -> None:
    server: MockProcess = mock_server(*FAST)
    words = WordSource(words=("a",), ids=(11, 12, 13), exact=True)
    driver, _ = await run_stage(
        server.url,
        "normal",
        workload="random",
        requests=2,
        concurrency=2,
        prompt_tokens=40,
        max_tokens=5,
        warmup=0,
        words=words,
    )
    assert [record.prompt_tokens for record in driver.records] == [40, 40]
    assert causes(list(driver.records)) == {"": 2}
    body = server.seen()["bodies"][0]
    assert set(body["prompt"]) <= {11, 12, 13}
    assert body["ignore_eos"] is True and body["min_tokens"] == body["max_tokens"] == 5


async def test_a_conversation_goes_on_with_the_real_answer(mock_server: StartMock, tmp_path: Path) -> None:
    server: MockProcess = mock_server(*FAST)
    file = tmp_path / "talk.jsonl"
    file.write_text('{"turns": ["Hello", "And then?", "Bye"]}\n', encoding="utf-8")
    driver, _ = await run_stage(
        server.url, "normal", workload="file", file=str(file), concurrency=1, warmup=0, max_tokens=3
    )
    assert len(driver.records) == 3
    last = server.seen()["bodies"][-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant", "user", "assistant", "user"]
    assert last[1]["content"] == " w w w"
