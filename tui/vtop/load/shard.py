"""Several processes that send one load: the child (`python -m vtop.load.shard`) and the driver of all children.

Each child takes every n-th stream and every n-th request of the same plan. All begin at one time of the machine's
monotonic clock, so their stamps are of one clock and their records can be put together as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from vtop.errors import VtopError
from vtop.load import files, preflight
from vtop.load.channel import Channel
from vtop.load.client import Target, monotonic
from vtop.load.floor import ClientFloor
from vtop.load.looplag import LoopLag
from vtop.load.stage import LocalDriver, OnRecord, PromptSource
from vtop.load.stats import RequestRecord
from vtop.load.undisturbed import undisturbed
from vtop.load.words import WordSource
from vtop.load.workload import Shape
from vtop.secrets import resolve as resolve_key

START_AHEAD_S = 0.1
"""Time for the start to reach every child."""
READY_WITHIN_S = 60.0
TOKENS_PER_STREAM_S = 40.0
"""What a stream may bring a second, for choosing the number of processes before anything is known."""
BUSY_SHARE = 0.5
"""A process should not be busier than this, or its stamps come late."""


def processes_for(streams: int, floor: ClientFloor | None, cores: int | None = None) -> int:
    """How many processes to send with: one, unless one core was measured to be too slow for so many streams."""
    if floor is None:
        return 1
    cores = cores or os.cpu_count() or 1
    need = streams * TOKENS_PER_STREAM_S / (BUSY_SHARE * floor.capacity_tokens_per_s)
    return max(1, min(-(-int(need * 1000) // 1000), cores // 2, streams))


class ShardPlan(msgspec.Struct, kw_only=True):
    """What a child is told at its start."""

    shard: int
    shards: int
    url: str
    ca_file: str | None
    api_key: str | None
    """A reference, never the key."""
    model: str
    running_usage: bool
    words: WordSource
    shape: Shape
    """The whole test's shape; a stage may change rate, count and concurrency."""


class _Event(msgspec.Struct):
    event: str
    in_flight: int = 0
    tokens: float = 0.0
    started_s: float | None = None
    lag_p99_s: float | None = None
    reconnects: int = 0
    warmed: int = 0
    drawn: int = 0
    records: list[RequestRecord] = []
    warmups: list[RequestRecord] = []
    what: str = ""
    remedy: str = ""


class _Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.last = _Event("none")

    def send(self, line: bytes) -> None:
        stdin = self.process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(line + b"\n")


class ShardedDriver:
    """Runs each stage in several processes at once. See `Driver`."""

    def __init__(self, plan: ShardPlan) -> None:
        self._plan = plan
        self.processes = plan.shards
        self._children: list[_Child] = []
        self._decoder = msgspec.json.Decoder(_Event)
        self._on_record: OnRecord = lambda record: None
        self._records: list[RequestRecord] = []
        self._warmups: list[RequestRecord] = []
        self._drawn = 0
        """Prompts that the process which made the most of them has made."""

    async def open(self) -> None:
        """Starts the children."""
        for shard in range(self._plan.shards):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "vtop.load.shard",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=64 * 2**20,
            )
            child = _Child(process)
            plan = msgspec.structs.replace(self._plan, shard=shard)
            child.send(msgspec.json.encode(plan))
            self._children.append(child)

    @property
    def started_s(self) -> float | None:
        """See `Driver`."""
        return min((c.last.started_s for c in self._children if c.last.started_s is not None), default=None)

    @property
    def in_flight(self) -> int:
        """See `Driver`."""
        return sum(child.last.in_flight for child in self._children)

    @property
    def records(self) -> Sequence[RequestRecord]:
        """See `Driver`."""
        return self._records

    @property
    def warmup_records(self) -> Sequence[RequestRecord]:
        """See `Driver`."""
        return self._warmups

    @property
    def warmed(self) -> int:
        """See `Driver`."""
        return sum(child.last.warmed for child in self._children)

    @property
    def reconnects(self) -> int:
        """See `Driver`."""
        return sum(child.last.reconnects for child in self._children)

    @property
    def shard_lag_p99_s(self) -> float | None:
        """See `Driver`."""
        return max((c.last.lag_p99_s for c in self._children if c.last.lag_p99_s is not None), default=None)

    def live_tokens(self) -> float:
        """See `Driver`."""
        return sum(child.last.tokens for child in self._children)

    async def prepare(self, shape: Shape, on_record: OnRecord) -> None:
        """See `Driver`."""
        self._on_record = on_record
        self._records, self._warmups = [], []
        for child in self._children:
            child.last = _Event("none")
            child.send(b"skip %d" % self._drawn)
            child.send(b"prepare " + msgspec.json.encode(shape))
        async with asyncio.timeout(READY_WITHIN_S):
            await asyncio.gather(*(self._until(child, "ready") for child in self._children))

    async def run(self) -> None:
        """See `Driver`.

        The clock starts when the last process is warm: one that began alone would be measured with the warm-up of the
        others, and a schedule in several processes needs one origin.
        """
        for child in self._children:
            child.send(b"warm")
        await asyncio.gather(*(self._until(child, "warm") for child in self._children))
        start = monotonic() + START_AHEAD_S
        for child in self._children:
            child.send(b"run %.9f" % start)
        await asyncio.gather(*(self._until(child, "ended") for child in self._children))
        self._drawn = max(child.last.drawn for child in self._children)

    async def _until(self, child: _Child, event: str) -> None:
        assert child.process.stdout is not None
        while line := await child.process.stdout.readline():
            told = self._decoder.decode(line)
            if told.event == "error":
                raise VtopError(told.what, told.remedy)
            child.last = told
            for record in told.records:
                self._records.append(record)
                self._on_record(record)
            self._warmups += told.warmups
            if told.event == event:
                return
        raise VtopError("a client process ended early", "Use fewer --processes, or look at this machine's memory.")

    def stop(self) -> None:
        """See `Driver`."""
        for child in self._children:
            child.send(b"stop")

    def cancel(self) -> None:
        """See `Driver`."""
        for child in self._children:
            child.send(b"cancel")

    async def close(self) -> None:
        """See `Driver`: the children end when their input closes."""
        for child in self._children:
            if child.process.stdin is not None:
                child.process.stdin.close()
        for child in self._children:
            try:
                async with asyncio.timeout(1.0):
                    await child.process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    child.process.kill()
                await child.process.wait()


class ShardProcess:
    """The child: one share of the load."""

    def __init__(self, channel: Channel, plan: ShardPlan) -> None:
        self._channel = channel
        shape = plan.shape
        file_prompts = files.open_file(shape)[1] if shape.file else None
        self._prompts = PromptSource(shape, plan.words, file_prompts)
        self._driver = LocalDriver(
            target=Target.from_url(plan.url, plan.ca_file),
            model=plan.model,
            api_key=resolve_key(plan.api_key),
            running_usage=plan.running_usage,
            prompts=self._prompts,
            shard=plan.shard,
            shards=plan.shards,
        )
        self._lag = LoopLag()
        self._fresh: list[RequestRecord] = []
        self._running: asyncio.Task[None] | None = None

    async def obey(self) -> None:
        """Reads commands until the parent is gone."""
        while True:
            line = await self._channel.line()
            if not line and self._channel.ended:
                self._driver.cancel()
                return
            word, _, rest = line.partition(b" ")
            if word == b"skip":
                self._prompts.skip_to(int(rest))
            elif word == b"prepare":
                shape = msgspec.json.decode(rest, type=Shape)
                preflight.ensure_files(shape.streams)
                await self._driver.prepare(shape, self._fresh.append)
                self._channel.send("ready")
            elif word == b"warm":
                self._running = asyncio.ensure_future(self._warm_up())
            elif word == b"run":
                self._running = asyncio.ensure_future(self._run(float(rest)))
            elif word == b"stop":
                self._driver.stop()
            elif word == b"cancel":
                self._driver.cancel()

    async def _warm_up(self) -> None:
        await self._watched(self._driver.warm_up())
        self._tell("warm")

    async def _run(self, start_s: float) -> None:
        await self._watched(self._driver.run(start_s))
        self._tell("ended", warmups=self._driver.warmup_records, drawn=self._prompts.drawn)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        with undisturbed():
            self._lag.start()
            ticker = asyncio.ensure_future(self._tick())
            try:
                await work
            finally:
                ticker.cancel()
                self._lag.stop()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self._tell("tick")

    def _tell(self, event: str, **fields: Any) -> None:
        fresh = list(self._fresh)
        self._fresh.clear()
        self._channel.send(
            event,
            in_flight=self._driver.in_flight,
            tokens=self._driver.live_tokens(),
            started_s=self._driver.started_s,
            lag_p99_s=self._lag.p99(),
            reconnects=self._driver.reconnects,
            warmed=self._driver.warmed,
            records=fresh,
            **fields,
        )


async def serve() -> None:
    """Takes its part of the load until the parent closes the pipe."""
    channel = await Channel.open()
    try:
        await ShardProcess(channel, msgspec.json.decode(await channel.line(), type=ShardPlan)).obey()
    except VtopError as error:
        channel.send("error", what=error.what, remedy=error.remedy)
    await channel.flush()


def main() -> None:
    """Runs on uvloop where it is installed; Ctrl-C is the parent's to obey."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        uvloop.run(serve())


if __name__ == "__main__":
    main()
