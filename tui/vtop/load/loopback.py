"""A loopback server with known times, for measuring the client (`floor.py`).

It runs as its own process (`python -m vtop.load.loopback`), writes its port as one line, and ends when its
standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

FIRST_TOKEN_S = 0.03
_CHUNK = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"loopback","choices":[{"index":0,'
    b'"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":20,'
    b'"total_tokens":21,"completion_tokens":1}}\n\n'
)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_TOKEN = _framed(_CHUNK)


class _Stream(asyncio.Protocol):
    """Answers every request with one token per step; the first event says how long the server itself took."""

    server: LoopbackServer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._buffer = b""
        self.left = 0
        self.asked_s = 0.0
        self.first = True

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        fields = json.loads(rest[:length])
        self.left = int(fields["max_tokens"])
        self.asked_s = now
        self.first = True
        self.server.join(self, float(fields["step_s"]))

    def step(self, now: float) -> bool:
        if self.first:
            if now - self.asked_s < FIRST_TOKEN_S:
                return True
            self.first = False
            stamp = b'data: {"server_s":%.9f}\n\n' % (time.monotonic() - self.asked_s)
            self._transport.write(_HEAD + _framed(stamp) + _TOKEN)
        else:
            self._transport.write(_TOKEN)
        self.left -= 1
        if self.left > 0:
            return True
        self._transport.write(_framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.server.streams.discard(self)


class LoopbackServer:
    """Steps all its streams together, as a batching engine does."""

    def __init__(self) -> None:
        self.streams: set[_Stream] = set()
        self._step_s = 0.005
        self._timer: asyncio.TimerHandle | None = None

    def protocol(self) -> asyncio.Protocol:
        """One connection."""
        stream = _Stream()
        stream.server = self
        return stream

    def join(self, stream: _Stream, step_s: float) -> None:
        """A request came in."""
        self.streams.add(stream)
        self._step_s = step_s
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(step_s, self._step)

    def _step(self) -> None:
        now = time.monotonic()
        for stream in list(self.streams):
            if not stream.step(now):
                self.streams.discard(stream)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._step_s, self._step) if self.streams else None


async def serve() -> None:
    """Serves on a free loopback port until standard input closes."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(LoopbackServer().protocol, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 (the port is this program's output)
    closed = asyncio.Event()

    def read() -> None:
        if not os.read(0, 4096):
            closed.set()

    loop.add_reader(sys.stdin.fileno(), read)
    await closed.wait()


if __name__ == "__main__":
    asyncio.run(serve())
