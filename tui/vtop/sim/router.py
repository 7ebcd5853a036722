"""The router of a simulated P/D pair: prefill on one server, decode on another, one address for the client.

It speaks the protocol of vLLM's disaggregated serving: the request goes to a prefill server with one output token and
`kv_transfer_params` that ask it to keep the KV cache; its answer says where that cache is; the original request goes
to a decode server with those parameters, and its stream is passed on as it comes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from vtop.sim.options import Options
from vtop.sim.process import QuietServer, listen, loop_factory

CONNECT_TIMEOUT_S = 5.0
_ASK_TO_KEEP = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_END = b""


class Upstream(asyncio.Protocol):
    """One HTTP exchange with a server behind the router."""

    def __init__(self) -> None:
        self.status = 0
        self.content_type = b"application/json"
        self.head = asyncio.Event()
        self.failed = False
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._complete = False

    @classmethod
    async def send(
        cls, url: str, path: str, body: bytes, headers: list[tuple[str, str]], method: str = "POST"
    ) -> Upstream:
        """Connects, sends, and waits for the head of the answer.

        Raises:
            OSError: the server does not answer.
        """
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            transport, exchange = await loop.create_connection(cls, host, port)
        lines = [f"{method} {path} HTTP/1.1", f"host: {host}:{port}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines.append(f"content-length: {len(body)}")
        transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await exchange.head.wait()
        if exchange.failed:
            raise ConnectionError(f"{url} closed the connection")
        return exchange

    async def read(self) -> bytes:
        """The next part of the body; empty at its end.

        Raises:
            ConnectionError: the connection broke before the end.
        """
        part = await self._parts.get()
        while not self._parts.empty() and part:
            following = self._parts.get_nowait()
            if not following:
                self._parts.put_nowait(_END)
                break
            part += following
        if not part and self.failed:
            raise ConnectionError("the server behind the router broke the stream")
        return part

    async def read_all(self) -> bytes:
        """The whole body."""
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """Gives the connection up."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        # uvloop's transports are asyncio's only by behaviour, so an isinstance check would refuse them.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.failed = True
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        if not self._complete:
            self.failed = True
            self._parts.put_nowait(_END)
        self.head.set()

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        if name.lower() == b"content-type":
            self.content_type = value

    def on_headers_complete(self) -> None:
        """See httptools."""
        self.status = self._parser.get_status_code()
        self.head.set()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._parts.put_nowait(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self._complete = True
        self._parts.put_nowait(_END)


class Router:
    """Chooses servers in turn."""

    def __init__(self, options: Options) -> None:
        self._prefill = itertools.cycle(options.prefill)
        self._decode = itertools.cycle(options.decode)
        self._all = (*options.prefill, *options.decode)
        self._first_decode = options.decode[0]

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/chat/completions", self._generate, methods=["POST"]),
                Route("/v1/completions", self._generate, methods=["POST"]),
                Route("/metrics", self._no_metrics),
                Route("/{rest:path}", self._pass_on, methods=["GET", "POST"]),
            ]
        )

    async def _health(self, request: Request) -> Response:
        for url in self._all:
            try:
                exchange = await Upstream.send(url, "/health", b"", [], "GET")
            except (OSError, TimeoutError):
                return Response(status_code=503)
            exchange.close()
            if exchange.status != 200:
                return Response(status_code=503)
        return Response(status_code=200)

    async def _no_metrics(self, request: Request) -> Response:
        return Response("a router has no engine; ask the servers behind it\n", status_code=404, media_type="text/plain")

    async def _pass_on(self, request: Request) -> Response:
        return await self._forward(self._first_decode, request, await request.body(), request.method)

    async def _generate(self, request: Request) -> Response:
        raw = await request.body()
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return await self._forward(next(self._decode), request, raw)
        first: dict[str, Any] = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": _ASK_TO_KEEP}
        for key in ("stream_options", "min_tokens"):
            first.pop(key, None)
        if "max_completion_tokens" in first:
            first["max_completion_tokens"] = 1
        try:
            exchange = await Upstream.send(
                next(self._prefill), request.url.path, json.dumps(first).encode(), _headers(request)
            )
            answer = await exchange.read_all()
        except (OSError, TimeoutError) as error:
            return JSONResponse({"error": {"message": f"prefill server: {error}", "code": 502}}, status_code=502)
        if exchange.status != 200:
            return Response(answer, exchange.status, media_type="application/json")
        body["kv_transfer_params"] = json.loads(answer).get("kv_transfer_params")
        return await self._forward(next(self._decode), request, json.dumps(body).encode())

    async def _forward(self, url: str, request: Request, body: bytes, method: str = "POST") -> Response:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            exchange = await Upstream.send(url, path, body, _headers(request), method)
        except (OSError, TimeoutError) as error:
            return JSONResponse({"error": {"message": f"decode server: {error}", "code": 502}}, status_code=502)
        if not exchange.content_type.startswith(b"text/event-stream"):
            return Response(
                await exchange.read_all(), exchange.status, headers={"content-type": exchange.content_type.decode()}
            )

        async def parts() -> Any:
            try:
                while part := await exchange.read():
                    yield part
            finally:
                exchange.close()

        return StreamingResponse(parts(), exchange.status, media_type="text/event-stream")


def _headers(request: Request) -> list[tuple[str, str]]:
    kept = [("content-type", "application/json")]
    for name in ("authorization", "x-request-id"):
        value = request.headers.get(name)
        if value is not None:
            kept.append((name, value))
    return kept


def run_router(options: Options) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit code."""
    if not options.prefill or not options.decode:
        print("a router needs --prefill URL and --decode URL", flush=True)  # noqa: T201
        return 2
    try:
        sock = listen(options.host, options.port)
    except OSError as error:
        print(f"OSError: [Errno {error.errno}] {error.strerror}", flush=True)  # noqa: T201
        return 1
    config = uvicorn.Config(
        Router(options).app(),
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="critical",
        ws="none",
        timeout_graceful_shutdown=3,
    )
    with sock, asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(QuietServer(config), sock, options))


async def _serve(server: QuietServer, sock: Any, options: Options) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, setattr, server, "should_exit", True)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await server.ready.wait()
    print(f"SIMULATED router on http://{options.host}:{options.port}", flush=True)  # noqa: T201
    print(f"INFO:     Started server process [{os.getpid()}]", flush=True)  # noqa: T201
    print("INFO:     Application startup complete.", flush=True)  # noqa: T201
    await serving
    return 0
