"""JSON lines between a worker and its parent over standard input and output."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec


class Channel:
    """Lines to and from the parent, without ever blocking the loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls) -> Channel:
        """Takes over standard input and output."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=64 * 2**20)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)
        return cls(reader, transport)

    def send(self, event: str, **fields: Any) -> None:
        """One event; dropped when nobody reads any more."""
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode({"event": event, **fields}) + b"\n")

    async def line(self) -> bytes:
        """The next line; empty at the end."""
        return (await self._reader.readline()).strip()

    @property
    def ended(self) -> bool:
        """The parent closed its end."""
        return self._reader.at_eof()

    async def flush(self) -> None:
        """Waits until everything is written."""
        # A pipe's transport has no event for "all written".
        while self._writer.get_write_buffer_size() and not self._writer.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
