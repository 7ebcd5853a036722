"""An OpenAI-compatible server whose true times are known; the model name picks how it behaves.

Truth in every mode unless told otherwise: the first token 200 ms after the request, then one engine step each 10 ms for
all streams together, `max_tokens` tokens (100 by default), then a finish chunk, a usage chunk and `[DONE]`. At n = 100:
TTFT 0.200 s, E2E 1.19 s, TPOT 10.0 ms.

Run: `python mock_server.py [--first S] [--step S] [--stamps]`; it prints its port and ends when its standard input
closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator

MODELS = (
    "normal",
    "rolefirst",
    "chunk4",
    "reason",
    "empty",
    "err",
    "cut",
    "reset",
    "busy429",
    "busy503",
    "hang",
    "split",
    "silent",
    "bad400",
    "nousage",
    "html",
    "json",
    "lingering",
    "closing",
    "abort",
)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(fields: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


class Mock:
    """Shared by all connections: the engine's step and what was seen."""

    def __init__(self, first_s: float, step_s: float, vllm: bool, stamps: bool = False) -> None:
        self.stamps = stamps
        """Each event says on the monotonic clock when it was made, in `created`."""
        self.first_s = first_s
        self.step_s = step_s
        self.vllm = vllm
        self.answers: set[Answering] = set()
        self.asked = 0
        self.finished = 0
        self.generated = 0
        self.ttfts_s: dict[int, float] = {}
        """The server's own TTFT of each request, by the order in which requests came."""
        self.bodies: list[dict[str, object]] = []
        self.keys: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def join(self, answer: Answering) -> None:
        self.answers.add(answer)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.step_s, self._step)

    def _step(self) -> None:
        now = time.monotonic()
        for answer in list(self.answers):
            if answer.connection.gone or answer.step(now):
                self.answers.discard(answer)
        self._timer = asyncio.get_running_loop().call_later(self.step_s, self._step) if self.answers else None


class Answering:
    """One streamed answer."""

    def __init__(
        self, connection: Connection, fields: dict[str, object], chat: bool, number: int, asked_s: float
    ) -> None:
        self.connection = connection
        self.mock = connection.mock
        self.chat = chat
        self.number = number
        self.model = str(fields["model"])
        self.n = int(fields.get("max_tokens") or fields.get("max_completion_tokens") or 100)  # type: ignore[call-overload]
        options = fields.get("stream_options") or {}
        self.running = bool(options.get("continuous_usage_stats"))  # type: ignore[attr-defined]
        self.prompt_tokens = _prompt_tokens(fields)
        self.asked_s = asked_s
        self.created = int(time.time())
        """The same in all events of an answer, as a server does it."""
        self.made = 0
        self.per_step = 4 if self.model == "chunk4" else 1
        self.steps = 0
        if self.model == "rolefirst":
            self.write_head()
            connection.write(chunked(self.delta({"role": "assistant", "content": ""})))

    def write_head(self) -> None:
        extra = b"connection: close\r\n" if self.model == "closing" else b""
        self.connection.write(_HEAD + extra + b"\r\n")

    def usage(self) -> dict[str, object]:
        total = self.prompt_tokens + self.made
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.made, "total_tokens": total}

    def delta(self, delta: dict[str, object], finish: str | None = None) -> bytes:
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self.chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        fields: dict[str, object] = {
            "id": "c-1",
            "object": "chunk",
            "created": time.monotonic_ns() if self.mock.stamps else self.created,
            "model": self.model,
            "choices": [choice],
        }
        if self.running:
            fields["usage"] = self.usage()
        return event(fields)

    def token(self) -> bytes:
        if self.model == "reason" and self.made <= self.n // 2:
            return self.delta({"reasoning": " w"})
        if self.model == "empty" and self.made % 2 == 0:
            return self.delta({"content": ""})
        if self.model == "split":
            return self.delta({"content": " é\U0001f680"})
        return self.delta({"content": " w" * min(self.per_step, self.n)})

    def step(self, now: float) -> bool:
        """One engine step; True when the answer is over."""
        if self.steps == 0 and now - self.asked_s < self.mock.first_s:
            return False
        first = self.steps == 0
        self.steps += 1
        made = min(self.n, self.made + self.per_step) - self.made
        self.made += made
        self.mock.generated += made
        out = b""
        if first:
            self.mock.ttfts_s[self.number] = time.monotonic() - self.asked_s
            if self.model != "rolefirst":
                self.write_head()
                if self.chat:
                    running, self.running = self.running, False
                    made_now, self.made = self.made, 0
                    self.running = running
                    out += self.delta({"role": "assistant", "content": ""})
                    self.made = made_now
        out += self.token()
        failing = self.number % 4 == 3
        if self.model == "err" and failing and self.steps == 5:
            words = {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}
            self.finish(out + event({"error": words}) + b"data: [DONE]\n\n")
            return True
        if self.model == "cut" and failing and self.steps == 5:
            self.finish(out)
            return True
        if self.model == "reset" and failing and self.steps == 5:
            self.connection.write(chunked(out) + b'40\r\ndata: {"cut')
            self.connection.drop()
            return True
        if self.model == "hang" and failing and self.steps == 1:
            self.connection.write(chunked(out))
            return True
        if self.made < self.n:
            self.write_tokens(out)
            return False
        out += self.delta({}, "abort" if self.model == "abort" else "length")
        if self.model != "nousage":
            out += event({"id": "c-1", "object": "chunk", "created": 1, "choices": [], "usage": self.usage()})
        if self.model == "lingering":
            self.connection.write(chunked(out + b"data: [DONE]\n\n"))
            return True
        self.finish(out + (b"" if self.model == "silent" else b"data: [DONE]\n\n"))
        return True

    def write_tokens(self, out: bytes) -> None:
        if self.model != "split":
            self.connection.write(chunked(out))
            return
        # Cut inside the emoji and inside `data:`, in segments of their own.
        at = out.find("\U0001f680".encode()) + 2
        for part in (out[:3], out[3:at], out[at:]):
            self.connection.write(chunked(part))

    def finish(self, out: bytes) -> None:
        self.connection.write(chunked(out) + b"0\r\n\r\n")
        self.mock.finished += 1
        if self.model == "closing":
            self.connection.close()


def _prompt_tokens(fields: dict[str, object]) -> int:
    prompt = fields.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return 1 + len(prompt.split())
    messages = fields.get("messages") or []
    assert isinstance(messages, list)
    return 7 + sum(len(str(message["content"]).split()) + 3 for message in messages)


class Connection(asyncio.Protocol):
    """HTTP/1.1, one request at a time."""

    def __init__(self, mock: Mock) -> None:
        self.mock = mock
        self.gone = False
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True

    def write(self, data: bytes) -> None:
        if not self.gone:
            self._transport.write(data)

    def drop(self) -> None:
        """A reset, once what was written has left."""
        asyncio.get_running_loop().call_later(0.01, self._transport.abort)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        # Stamp first and work later, so that a burst of requests does not wait for each other's reading.
        now = time.monotonic()
        self._buffer += data
        for method, path, body in self._requests():
            asyncio.get_running_loop().call_soon(self._answer, method, path, body, now)

    def _requests(self) -> Iterator[tuple[str, str, bytes]]:
        while True:
            head, separator, rest = self._buffer.partition(b"\r\n\r\n")
            if not separator:
                return
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            self.mock.keys.add(head.partition(b"Authorization: Bearer ")[2].split(b"\r\n")[0].decode())
            method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
            yield method, path, rest[:length]

    def plain(self, status: str, body: bytes, kind: str = "application/json", headers: str = "") -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        self.write(head.encode() + body)

    def _answer(self, method: str, path: str, body: bytes, asked_s: float) -> None:
        mock = self.mock
        if method == "GET":
            self._get(path)
            return
        fields = json.loads(body)
        if path == "/tokenize":
            self._tokenize(fields)
            return
        number = mock.asked
        mock.asked += 1
        mock.bodies.append(fields)
        model = fields["model"]
        if model == "busy429":
            self.plain("429 Too Many Requests", b'{"error":"Model is overloaded"}', headers="retry-after: 1\r\n")
        elif model == "busy503":
            words = b'{"error":{"message":"Server is at capacity","code":503}}'
            self.plain("503 Service Unavailable", words, headers="retry-after: Wed, 01 Jan 2026 00:00:01 GMT\r\n")
        elif model == "bad400":
            self.plain("400 Bad Request", b'{"error":{"message":"max_tokens is too large","code":400}}')
        elif model == "html":
            self.plain("200 OK", b"<html><body>please log in</body></html>", "text/html")
        elif model == "json":
            self.plain("200 OK", b'{"choices":[{"message":{"content":"hi"}}]}')
        else:
            mock.join(Answering(self, fields, path.endswith("/chat/completions"), number, asked_s))

    def _tokenize(self, fields: dict[str, object]) -> None:
        if not self.mock.vllm:
            self.plain("404 Not Found", b'{"detail":"Not Found"}')
            return
        count = _prompt_tokens(fields)
        if fields.get("add_special_tokens") is False:
            count -= 1
        words = str(fields.get("prompt", "")).split()
        ids = [100 + (sum(word.encode()) * 31 + len(word)) % 9000 for word in words]
        tokens = ids if len(ids) == count else list(range(count))
        self.plain("200 OK", json.dumps({"count": count, "max_model_len": 32768, "tokens": tokens}).encode())

    def _get(self, path: str) -> None:
        mock = self.mock
        if path == "/v1/models":
            owner = "vllm" if mock.vllm else "mock"
            cards = [{"id": model, "object": "model", "owned_by": owner, "max_model_len": 32768} for model in MODELS]
            self.plain("200 OK", json.dumps({"object": "list", "data": cards}).encode())
        elif path == "/version":
            self.plain("200 OK", b'{"version":"0.32.0"}')
        elif path == "/health":
            self.plain("200 OK", b"")
        elif path == "/seen":
            seen = {
                "asked": mock.asked,
                "finished": mock.finished,
                "generated": mock.generated,
                "ttfts_s": [mock.ttfts_s[number] for number in sorted(mock.ttfts_s)],
                "bodies": mock.bodies,
                "keys": sorted(mock.keys - {""}),
            }
            self.plain("200 OK", json.dumps(seen).encode())
        else:
            self.plain("404 Not Found", b'{"detail":"Not Found"}')


async def serve() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=float, default=0.2)
    parser.add_argument("--step", type=float, default=0.01)
    parser.add_argument("--not-vllm", action="store_true")
    parser.add_argument("--stamps", action="store_true")
    options = parser.parse_args()
    mock = Mock(options.first, options.step, not options.not_vllm, options.stamps)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(mock), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    closed = asyncio.Event()

    def read() -> None:
        if not os.read(0, 4096):
            closed.set()

    loop.add_reader(sys.stdin.fileno(), read)
    await closed.wait()


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(serve())
    except ImportError:
        asyncio.run(serve())
