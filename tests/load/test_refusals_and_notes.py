"""What a result says of refusals, of thinking without an answer, and of a client that is the bottleneck."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from load_helpers import DATA, replaying, send
from test_stats import good
from test_streams import recorded

from vtop.load import outcome
from vtop.load.outcome import Measured
from vtop.load.progress import LoadRequest, LoadResult
from vtop.load.stats import RequestRecord
from vtop.load.workload import resolve

BUSY = (
    '{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a '
    'different instance.","type":"ServiceUnavailableError","param":null,"code":503}}'
)
OVERLOADED = '{"error":"Model is overloaded","error_type":"overloaded"}'


@asynccontextmanager
async def answering(answers: Sequence[tuple[int, str, str]]) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that gives one (status, headers, body) after the other; yields its address and what it gave."""
    given: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
                status, headers, body = answers[len(given)]
                given.append(status)
                writer.write(f"HTTP/1.1 {status} No\r\n{headers}content-length: {len(body)}\r\n\r\n{body}".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", given
    finally:
        server.close()


def result_over(
    records: list[RequestRecord],
    *,
    lag_s: float | None = None,
    server: dict[str, object] | None = None,
    **wishes: object,
) -> LoadResult:
    given: dict[str, object] = {"workload": "chat", "concurrency": 1, "requests": len(records), **wishes}
    request = LoadRequest(url="http://x", model="m", **given)  # type: ignore[arg-type]
    measured = Measured(
        records=records,
        warmup_records=[good(-1, sent=0.0, ttft=0.1, e2e=0.2)],
        started_s=min(record.sent_s for record in records),
        shape=resolve(request),
        complete=True,
        loop_lag_p99_s=lag_s,
    )
    return outcome.result_of(
        measured,
        request,
        run_id="r",
        directory="d",
        at_wall_s=0,
        repeat_command="",
        server=server or {},
        gpu={},
        fingerprint={},
    )


async def test_refusals_are_counted_by_status_with_the_servers_words_and_never_sent_again() -> None:
    answers = [
        (429, "retry-after: 1\r\n", OVERLOADED),
        (503, "retry-after: Wed, 01 Jan 2026 00:00:01 GMT\r\n", '{"error":{"message":"Server is at capacity"}}'),
        (503, "", BUSY),
        (429, "retry-after: soon, perhaps\r\n", ""),
        (503, "retry-after: \r\n", "upstream connect error"),
    ]
    async with answering(answers) as (url, given):
        records = await send(url, "any", requests=5, concurrency=1)
    assert given == [429, 503, 503, 429, 503]
    assert [record.failure for record in records] == ["http_429", "http_503", "http_503", "http_429", "http_503"]
    assert [record.retry_after for record in records] == [
        "1", "Wed, 01 Jan 2026 00:00:01 GMT", None, "soon, perhaps", "",
    ]  # fmt: skip
    assert records[0].detail == "Model is overloaded"
    assert records[2].detail.startswith("The engine is currently busy")
    assert records[4].detail == "upstream connect error"
    assert all(record.ttft_s is None and record.output_tokens is None for record in records)
    found = result_over(records)
    assert found.failures == (("http_503", 3), ("http_429", 2))
    assert (found.completed, found.failed, found.ttft.n, found.e2e.n) == (0, 5, 0, 0)
    assert not found.comparable
    assert any("Retry-After: 1; not retried" in words for words in found.warnings)


async def test_an_answer_that_only_thought_is_a_success_with_a_note() -> None:
    (case,) = [c for c in json.loads((DATA / "streams.json").read_text()) if c["name"] == "reasoning-until-length"]
    async with replaying([(at / 8, data) for at, data in recorded(case)]) as (url, _):
        records = await send(url, "any", requests=1, concurrency=1)
    (record,) = records
    assert (record.ok, record.note, record.output_tokens) == (True, "hit max_tokens while thinking", 4)
    assert record.ttfo_s is None and record.ttft_s is not None
    found = result_over(records)
    assert found.ttfo.n == 0
    assert any("1 answers: hit max_tokens while thinking" in words for words in found.warnings)


async def test_chunks_of_several_tokens_are_said_and_tpot_counts_tokens() -> None:
    (case,) = [c for c in json.loads((DATA / "streams.json").read_text()) if c["name"] == "several-tokens-per-chunk"]
    async with replaying(recorded(case)) as (url, _):
        records = await send(url, "any", requests=1, concurrency=1)
    found = result_over(records)
    assert found.output_tokens == 25
    assert found.tokens_per_chunk == pytest.approx(25 / 8)
    # 280 ms from the first to the last chunk at least, over 24 tokens; by chunks it would be three times that.
    assert found.tpot.p50 is not None and 0.0113 <= found.tpot.p50 < 0.03
    assert any("3.12 tokens per chunk" in words for words in found.warnings)


def test_a_client_that_waits_a_hundred_times_longer_than_the_server_measured_itself() -> None:
    """Client TTFT 134 s, server 1.3 s, 100 of 200 requests running, the client's loop 850 ms late."""
    ttfts = [
        120.5, 125.0, 128.2, 130.0, 131.4, 132.0, 133.3, 134.0, 134.6, 135.2, 136.0, 137.1, 138.4, 140.0, 143.5, 147.6,
    ]  # fmt: skip
    records = [good(i, sent=0.0, ttft=ttft, e2e=ttft + 5) for i, ttft in enumerate(ttfts)]
    found = result_over(
        records, lag_s=0.85, server={"ttft_mean_s": 1.33125, "running_max": 100}, concurrency=200, requests=16
    )
    assert found.ttft.mean == pytest.approx(134.175)
    assert found.ttft.mean - 1.33125 == pytest.approx(132.8438, abs=1e-4)
    assert any("134.2 s, the server's own 1.331 s" in words and "bottleneck" in words for words in found.warnings)
    assert any("never ran more than 100 of 200" in words for words in found.warnings)
    assert found.client_bound
    # Beside such a TTFT alone a lag of 850 ms looks like nothing.
    assert not result_over(records, lag_s=0.85, concurrency=200).client_bound
