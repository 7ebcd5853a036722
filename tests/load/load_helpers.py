"""Servers to send load at: the mock with known times, and one that plays recorded bytes with their read borders."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from vtop.load import files
from vtop.load.client import Target
from vtop.load.progress import LoadRequest
from vtop.load.stage import LocalDriver, PromptSource
from vtop.load.stats import RequestRecord
from vtop.load.words import WordSource
from vtop.load.workload import Shape, resolve

HERE = Path(__file__).parent
DATA = HERE / "data"


class MockProcess:
    """The mock server as a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, str(HERE / "mock_server.py"), *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def seen(self) -> dict[str, Any]:
        """What the server counted itself."""
        with urllib.request.urlopen(f"{self.url}/seen", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


StartMock = Callable[..., MockProcess]
"""The `mock_server` fixture: starts one with command-line options."""


class Replay:
    """Plays one recorded answer per request: (seconds, bytes) after the request, as HTTP chunks of those borders."""

    def __init__(self, reads: Sequence[tuple[float, bytes]], end: str) -> None:
        self._reads = reads
        self._end = end
        self.written_s: list[float] = []
        """When each read was written, on the monotonic clock."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            asked = time.monotonic()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for at, data in self._reads:
                await asyncio.sleep(max(0.0, asked + at - time.monotonic()))
                self.written_s.append(time.monotonic())
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                await writer.drain()
            if self._end == "reset":
                writer.write(b'40\r\ndata: {"cut')
                await writer.drain()
            else:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def replaying(reads: Sequence[tuple[float, bytes]], end: str = "eof") -> AsyncIterator[tuple[str, Replay]]:
    """A server on a free port that plays `reads`; yields its address."""
    replay = Replay(reads, end)
    server = await asyncio.start_server(replay.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", replay
    finally:
        server.close()
        await server.wait_closed()


async def poll(condition: Callable[[], Any], within_s: float = 20.0) -> Any:
    """Waits until the condition holds, and fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {within_s} s")


async def send(url: str, model: str, *, running_usage: bool = False, **wishes: Any) -> list[RequestRecord]:
    """Sends a small closed loop (no warm-up unless asked for) and returns its records in order."""
    wishes = {"warmup": 0, "requests": 4, "concurrency": 4, "max_tokens": 20, "workload": "demo", **wishes}
    driver, _ = await run_stage(url, model, running_usage=running_usage, **wishes)
    return sorted(driver.records, key=lambda record: record.index)


async def run_stage(
    url: str,
    model: str,
    *,
    running_usage: bool = False,
    stop_after: Any = None,
    words: WordSource | None = None,
    **wishes: Any,
) -> tuple[LocalDriver, Shape]:
    shape = resolve(LoadRequest(url=url, model=model, seed=1, **wishes))
    words = words or WordSource()
    file_prompts = None
    if shape.file:
        shape, file_prompts = files.open_file(shape)
    driver = LocalDriver(
        target=Target.from_url(url),
        model=model,
        api_key=None,
        running_usage=running_usage,
        prompts=PromptSource(shape, words, file_prompts),
    )
    try:
        await driver.prepare(shape, lambda record: None)
        if stop_after is not None:
            stop_after(driver)
        await driver.run()
    finally:
        await driver.close()
    return driver, shape
