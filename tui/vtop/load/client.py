"""HTTP/1.1 over asyncio protocols: the fewest steps between the bytes' arrival and their stamp.

The path of a token is: stamp, HTTP framing (httptools), append. Events and JSON are read when the answer has ended
(`answer.py`), so that parsing one stream never delays the stamp of another.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httptools

from vtop.errors import UsageError, VtopError
from vtop.load.answer import error_words
from vtop.load.pacing import Pacing
from vtop.secrets import without_user

MAX_ERROR_BODY_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 10.0
STALE_WITHIN_S = 0.5
"""A kept connection that breaks this soon after a request, before any byte, had been closed by the server before it."""
monotonic = time.monotonic


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    base_path: str
    host_header: str

    @classmethod
    def from_url(cls, url: str, ca_file: str | None = None) -> Target:
        """Reads a base address such as `http://127.0.0.1:8000` (a `/v1` at the end is dropped).

        Raises:
            UsageError: it is no http or https address, or the CA file cannot be used.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            raise UsageError(f"{without_user(url)!r} has an impossible port", "Write http://HOST:PORT.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{without_user(url)!r} is not an http or https address", "Write http://HOST:PORT.")
        if parts.username or parts.password:
            raise UsageError("the address carries a user or password", "Give the key with --api-key env:NAME instead.")
        tls = None
        if parts.scheme == "https":
            try:
                tls = ssl.create_default_context(cafile=None if ca_file is None else str(Path(ca_file).expanduser()))
            except (OSError, ssl.SSLError) as error:
                raise UsageError(f"cannot use the CA file {ca_file}: {error}", "Give a PEM file.") from error
        default = 443 if tls else 80
        port = port or default
        host = parts.hostname
        shown = f"[{host}]" if ":" in host else host
        return cls(
            host=host,
            port=port,
            tls=tls,
            base_path=parts.path.rstrip("/").removesuffix("/v1"),
            host_header=shown if port == default else f"{shown}:{port}",
        )

    def request_bytes(self, method: str, path: str, body: bytes | None = None, api_key: str | None = None) -> bytes:
        """A whole HTTP/1.1 request, ready to be written."""
        lines = [f"{method} {self.base_path}{path} HTTP/1.1", f"Host: {self.host_header}", "User-Agent: vtop"]
        lines.append("Accept: text/event-stream" if method == "POST" else "Accept: application/json")
        if api_key:
            lines.append(f"Authorization: Bearer {api_key}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


class Exchange:
    """One request and its answer, as raw stamped reads."""

    __slots__ = (
        "body_ended",
        "connect_s",
        "ended_s",
        "failure",
        "failure_detail",
        "headers",
        "live_read",
        "live_tokens",
        "on_end",
        "payload",
        "reads",
        "sent_s",
        "status",
        "tag",
        "waits_until_s",
    )

    def __init__(self, payload: bytes, tag: object, on_end: Callable[[Exchange], None]) -> None:
        self.payload = payload
        self.tag = tag
        """Whatever the sender wants to find again."""
        self.on_end = on_end
        self.sent_s = 0.0
        self.ended_s = 0.0
        self.connect_s: float | None = None
        """Time to open a connection for this request, when none was open."""
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        """The answer's, names in lower case."""
        self.reads: list[tuple[float, bytes]] = []
        self.body_ended = False
        """The body ended as HTTP says it should."""
        self.failure = ""
        """Cause, when the transport failed: `connect_failed`, `reset`, `timeout`, `cancelled`, `bad_http`."""
        self.failure_detail = ""
        self.live_read = 0
        self.live_tokens = 0
        self.waits_until_s = 0.0
        """When to give up."""

    def body(self) -> bytes:
        """All bytes of the body so far."""
        return b"".join(chunk for _, chunk in self.reads)

    def header(self, name: str) -> str | None:
        """A header of the answer."""
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def server_words(self) -> str:
        """What an answer that is not 200 says, in one line."""
        raw = self.body()[:MAX_ERROR_BODY_BYTES]
        text = raw.decode("utf-8", "replace").strip()
        try:
            words = error_words(json.loads(text))[0]
        except (ValueError, TypeError):
            words = "an HTML page" if text[:1] == "<" else text
        return " ".join(words.split())[:500]


class Connection(asyncio.Protocol):
    """One keep-alive connection; carries one exchange at a time."""

    __slots__ = (
        "_close_delimited",
        "_exchange",
        "_headers",
        "_on_free",
        "_on_lost",
        "_on_stale",
        "_pacing",
        "_parser",
        "_stamp",
        "_transport",
        "used",
    )

    def __init__(
        self,
        on_free: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
        on_stale: Callable[[Exchange], None],
        pacing: Pacing,
    ) -> None:
        self._on_free = on_free
        self._on_lost = on_lost
        self._on_stale = on_stale
        self._pacing = pacing
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._stamp = 0.0
        self._close_delimited = False
        self.used = False

    @property
    def alive(self) -> bool:
        """Whether it can carry a request."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, exchange: Exchange) -> None:
        """Writes the request; the clock of the exchange starts here."""
        assert self._transport is not None
        self._exchange = exchange
        exchange.sent_s = monotonic()
        self._transport.write(exchange.payload)

    def abort(self, exchange: Exchange, failure: str, detail: str = "") -> None:
        """Gives the exchange up and drops the connection."""
        if self._exchange is exchange:
            self._end(failure, detail)
            self.close()

    def close(self) -> None:
        """Drops the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. The stamp comes before anything else."""
        self._stamp = monotonic()
        pacing = self._pacing
        pacing.reads += 1
        if not pacing.armed:
            pacing.arm()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._exchange is not None:
                self._end("bad_http", str(error))
            self.close()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`: close our side too."""

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        self._stamp = monotonic()
        exchange = self._exchange
        self._on_lost(self)
        if exchange is None:
            return
        untouched = exchange.status is None and not exchange.reads
        if self.used and untouched and self._stamp - exchange.sent_s < STALE_WITHIN_S:
            # A kept connection that the server had closed meanwhile: the request never began.
            self._exchange = None
            self._on_stale(exchange)
        elif error is None and self._close_delimited and exchange.status is not None:
            exchange.body_ended = True
            self._end()
        else:
            self._end("reset", str(error) if error else "the connection was closed before the answer ended")

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """See `httptools`."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """See `httptools`."""
        exchange = self._exchange
        headers = {name.lower(): value for name, value in self._headers}
        self._headers = []
        if exchange is None:
            return
        exchange.status = self._parser.get_status_code()
        exchange.headers = headers
        self._close_delimited = b"content-length" not in headers and b"transfer-encoding" not in headers

    def on_body(self, body: bytes) -> None:
        """See `httptools`."""
        exchange = self._exchange
        if exchange is not None:
            exchange.reads.append((self._stamp, body))

    def on_message_complete(self) -> None:
        """See `httptools`."""
        exchange = self._exchange
        if exchange is None:
            return
        exchange.body_ended = True
        self.used = True
        keep = self._parser.should_keep_alive()
        self._exchange = None
        # Free first: the end of one request usually sends the next, on this connection.
        if keep and self.alive:
            self._on_free(self)
        else:
            self.close()
        exchange.ended_s = self._stamp
        exchange.on_end(exchange)

    def _end(self, failure: str = "", detail: str = "") -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.ended_s = self._stamp if not failure else monotonic()
        exchange.failure = failure
        exchange.failure_detail = detail
        exchange.on_end(exchange)


class ConnectionPool:
    """Open connections to one target. Never fewer than the concurrency asks for."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: deque[Connection] = deque()
        self._busy: dict[Exchange, Connection] = {}
        self._pacing = Pacing(self._busy)
        self._opening: set[asyncio.Task[None]] = set()
        self.reconnects = 0
        """Requests that a kept connection lost before the answer began, and that were sent again."""
        self.opened_late = 0
        """Connections that had to be opened while the clock ran."""

    async def open(self, count: int) -> None:
        """Opens connections until `count` are idle, at most 64 handshakes at a time.

        Raises:
            VtopError: the server refused, or did not answer within ten seconds.
        """
        gate = asyncio.Semaphore(64)

        async def one() -> None:
            async with gate:
                self._idle.append(await self._connect())

        missing = count - len(self._idle)
        results = await asyncio.gather(*(one() for _ in range(missing)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise connect_error(self._target, result) from result

    def send(self, exchange: Exchange) -> None:
        """Sends now on an open connection; opens one if none is idle."""
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                self._busy[exchange] = connection
                connection.send(exchange)
                return
        self.opened_late += 1
        task = asyncio.ensure_future(self._send_on_fresh(exchange))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def abort(self, exchange: Exchange, failure: str, detail: str = "") -> None:
        """Gives up one exchange."""
        connection = self._busy.get(exchange)
        if connection is not None:
            connection.abort(exchange, failure, detail)
        elif not exchange.failure and not exchange.ended_s:
            self._fail_unsent(exchange, failure, detail)

    def released(self, exchange: Exchange) -> None:
        """Tells the pool that an exchange ended."""
        self._busy.pop(exchange, None)

    def close(self) -> None:
        """Drops every connection."""
        for task in self._opening:
            task.cancel()
        for connection in (*self._idle, *self._busy.values()):
            connection.close()
        self._idle.clear()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        target = self._target
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, protocol = await loop.create_connection(
                lambda: Connection(self._idle.append, self._lost, self._stale, self._pacing),
                target.host,
                target.port,
                ssl=target.tls,
                server_hostname=target.host if target.tls else None,
            )
        return protocol

    async def _send_on_fresh(self, exchange: Exchange) -> None:
        began = monotonic()
        try:
            connection = await self._connect()
        except (OSError, TimeoutError) as error:
            self._fail_unsent(exchange, "connect_failed", connect_error(self._target, error).what)
            return
        if exchange.ended_s:
            self._idle.append(connection)
            return
        exchange.connect_s = monotonic() - began
        self._busy[exchange] = connection
        connection.send(exchange)

    def _fail_unsent(self, exchange: Exchange, failure: str, detail: str) -> None:
        if exchange.ended_s:
            return
        exchange.ended_s = monotonic()
        exchange.sent_s = exchange.sent_s or exchange.ended_s
        exchange.failure = failure
        exchange.failure_detail = detail
        exchange.on_end(exchange)

    def _stale(self, exchange: Exchange) -> None:
        self.reconnects += 1
        self._busy.pop(exchange, None)
        self.send(exchange)

    def _lost(self, connection: Connection) -> None:
        try:
            self._idle.remove(connection)
        except ValueError:
            return


def connect_error(target: Target, error: BaseException) -> VtopError:
    """Why no connection could be opened."""
    where = f"{target.host}:{target.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return VtopError(
            f"{where}: the certificate is not trusted ({error.verify_message})", "Give its CA: --ca-file PEM."
        )
    if isinstance(error, ssl.SSLError):
        return VtopError(f"{where} does not speak TLS ({error.reason})", "Use http:// for it.")
    if isinstance(error, ConnectionRefusedError):
        return VtopError(f"nothing listens on {where}", "Start the server, or check the address.")
    if isinstance(error, TimeoutError):
        return VtopError(f"{where} did not answer within {CONNECT_TIMEOUT_S:.0f} s", "Check the address and firewalls.")
    return VtopError(f"cannot connect to {where}: {getattr(error, 'strerror', None) or error}", "Check the address.")


async def fetch(
    target: Target,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    api_key: str | None = None,
    timeout_s: float = 10.0,
) -> Exchange:
    """One plain request and its whole answer, outside any measurement.

    Raises:
        VtopError: no connection, or no answer in time.
    """
    ended: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()

    def end(exchange: Exchange) -> None:
        if not ended.done():
            ended.set_result(exchange)

    pool = ConnectionPool(target)
    try:
        await pool.open(1)
        pool.send(Exchange(target.request_bytes(method, path, body, api_key), None, end))
        async with asyncio.timeout(timeout_s):
            exchange = await ended
    except TimeoutError:
        raise VtopError(
            f"{target.host_header}{path} did not answer within {timeout_s:.0f} s",
            "Is the server still busy or loading?",
        ) from None
    finally:
        pool.close()
    if exchange.failure:
        raise VtopError(
            f"{target.host_header}{path}: {exchange.failure_detail or exchange.failure}", "Check the server."
        )
    return exchange
