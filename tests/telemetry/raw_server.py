"""A tiny HTTP server on a real socket that answers with whatever bytes a test wants, as slowly as it wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

Writer = asyncio.StreamWriter


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    headers: dict[str, str]


Handler = Callable[[Asked, Writer], Awaitable[None]]


@dataclass
class RawServer:
    """The address and what was asked."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)

    def paths(self) -> list[str]:
        """The paths asked for, without /version."""
        return [asked.path for asked in self.asked if asked.path != "/version"]


def answer(body: bytes = b"", status: int = 200, headers: Sequence[tuple[str, str]] = (), reason: str = "x") -> Handler:
    """A handler that gives one whole answer; /version is 404."""

    async def handle(asked: Asked, writer: Writer) -> None:
        write_answer(asked, writer, body, status, headers, reason)

    return handle


def write_answer(
    asked: Asked,
    writer: Writer,
    body: bytes,
    status: int = 200,
    headers: Sequence[tuple[str, str]] = (),
    reason: str = "x",
) -> None:
    """Writes an answer with its length; /version is 404."""
    if asked.path == "/version":
        body, status, headers = b"", 404, ()
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    lines.append(f"content-length: {len(body)}")
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


@contextlib.asynccontextmanager
async def serving(handler: Handler, port: int = 0) -> AsyncIterator[RawServer]:
    """Serves on 127.0.0.1 until the block ends; connections still open then are cut."""
    server = RawServer()
    tasks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: Writer) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *rest = head.decode("latin-1").split("\r\n")
                pairs = (line.partition(":") for line in rest if line)
                asked = Asked(first.split(" ")[1], {name.lower(): value.strip() for name, _, value in pairs})
                server.asked.append(asked)
                await handler(asked, writer)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await talk(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            tasks.discard(task)

    listening = await asyncio.start_server(connected, "127.0.0.1", port, limit=1 << 16)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
