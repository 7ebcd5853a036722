"""What this client itself costs: a loopback server with known times, read by it at the same concurrency."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass

from vtop.load.client import ConnectionPool, Exchange, Target
from vtop.load.stats import percentile


@dataclass(frozen=True, slots=True)
class ClientFloor:
    """What the client costs at a concurrency."""

    streams: int
    added_ttft_s: float
    """Median of client TTFT minus the server's own."""
    capacity_tokens_per_s: float
    """Tokens that one core can read: tokens over the client's own CPU time."""
    cpu_per_token_s: float


class LoopbackProcess:
    """The loopback server as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> LoopbackProcess:
        """Starts it; it is ready when `measure` has read its port."""
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "vtop.load.loopback",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        )

    async def measure(self, streams: int) -> ClientFloor | None:
        """What this client costs at so many streams; None if it cannot be measured."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(5.0):
                port = int(await self._process.stdout.readline() or 0)
        except (TimeoutError, ValueError):
            return None
        return await measure_floor(port, streams) if port else None

    async def close(self) -> None:
        """Ends it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(0.5):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def measure_floor(port: int, streams: int) -> ClientFloor | None:
    """Reads the loopback server with `streams` streams; None if it cannot be done."""
    target = Target.from_url(f"http://127.0.0.1:{port}")
    # Some 4,000 tokens in all, in steps that the server itself can keep.
    tokens = max(4, min(40, 4000 // streams))
    step_s = max(0.005, streams * 25e-6)
    payload = target.request_bytes(
        "POST", "/v1/chat/completions", json.dumps({"max_tokens": tokens, "step_s": step_s}).encode()
    )
    ended: list[Exchange] = []
    done = asyncio.Event()

    def end(exchange: Exchange) -> None:
        pool.released(exchange)
        ended.append(exchange)
        if len(ended) == streams:
            done.set()

    pool = ConnectionPool(target)
    try:
        await pool.open(streams)
        cpu = time.process_time()
        for _ in range(streams):
            pool.send(Exchange(payload, None, end))
        async with asyncio.timeout(3.0):
            await done.wait()
        cpu = time.process_time() - cpu
    except Exception:
        return None
    finally:
        pool.close()
    added = sorted(value for value in map(_added, ended) if value is not None)
    middle = percentile(added, 50)
    if middle is None:
        return None
    per_token = max(cpu, 1e-6) / (streams * tokens)
    return ClientFloor(streams, max(0.0, middle), 1.0 / per_token, per_token)


def _added(exchange: Exchange) -> float | None:
    if not exchange.reads:
        return None
    stamp, chunk = exchange.reads[0]
    text = chunk.partition(b'"server_s":')[2].partition(b"}")[0]
    return stamp - exchange.sent_s - float(text) if text else None
