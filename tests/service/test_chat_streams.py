"""A chat's stream over a real socket: when its TTFT begins, and what an answer that breaks off is called."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from vtop.contract import ChatEvent
from vtop.service import chatting
from vtop.service.chatting import stream_chat

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
WORD = b'data: {"choices": [{"delta": {"content": "word"}, "finish_reason": null}]}\n\n'
SLOW_S = 0.2
LAST = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server that reads one request, writes these bytes and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        assert length is not None
        # To its end: a close with a body unread is a reset for the other side.
        await reader.readexactly(int(length[1]))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def chat(url: str) -> list[ChatEvent]:
    return [event async for event in stream_chat(url, "model", "Hello?")]


@pytest.mark.parametrize("ending", [LAST, b"data: [DONE]\n\n"])
async def test_an_answer_that_says_that_it_is_complete_has_its_numbers(ending: bytes) -> None:
    async with answering(HEAD + b"\r\n" + WORD + ending) as url:
        events = await chat(url)
    assert [event.text for event in events] == ["word", ""]
    assert events[-1].error == ""
    assert events[-1].ttft_s is not None


async def test_a_stream_that_ends_without_its_end_is_no_complete_answer() -> None:
    async with answering(HEAD + b"\r\n" + WORD) as url:
        events = await chat(url)
    assert events[-1].done
    assert "ended in its middle" in events[-1].error


async def test_a_connection_that_breaks_is_told_in_plain_words() -> None:
    chunk = b"%x\r\n%s\r\n" % (len(WORD), WORD)
    async with answering(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk) as url:
        events = await chat(url)
    assert events[0].text == "word"
    assert events[-1].error.startswith("the server closed the connection before the answer was complete")


async def test_ttft_begins_with_the_write_and_not_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading certificates and connecting was counted as the server's time: 92 ms on the screen for 17 ms."""
    connected: list[float] = []
    clock: Callable[[], float] = time.perf_counter
    open_connection = chatting.httpx.AsyncClient.__init__

    def slow(*words: object, **more: object) -> None:
        time.sleep(SLOW_S)
        connected.append(clock())
        open_connection(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(chatting.httpx.AsyncClient, "__init__", slow)
    async with answering(HEAD + b"\r\n" + WORD + LAST) as url:
        started = clock()
        events = await chat(url)
        whole_s = clock() - started
    assert len(connected) == 1
    assert events[-1].ttft_s is not None
    assert events[-1].ttft_s <= whole_s - SLOW_S
