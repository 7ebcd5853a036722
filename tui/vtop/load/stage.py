"""Who sends a stage: this process alone, or several with one clock."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from vtop.load.client import ConnectionPool, Target
from vtop.load.engine import Stage
from vtop.load.stats import RequestRecord
from vtop.load.warmup import file_warmups
from vtop.load.words import WordSource
from vtop.load.workload import Prompt, Shape, find_workload, warmup_shape

OnRecord = Callable[[RequestRecord], None]


def prompts_of(shape: Shape, words: WordSource) -> Iterator[Prompt]:
    """The workload's prompts, made from the shape's seed."""
    return find_workload(shape.workload).prompts(shape, words, random.Random(shape.seed))


def warmup_prompts_of(shape: Shape, words: WordSource) -> Iterator[Prompt]:
    """Prompts of the same shape that occur nowhere in the test."""
    return prompts_of(warmup_shape(shape), words)


class PromptSource:
    """What a test's stages send: prompts without end made from the seed, or those of a file."""

    def __init__(self, shape: Shape, words: WordSource, file_prompts: Sequence[Prompt] | None = None) -> None:
        self._file_prompts = file_prompts
        self.drawn = 0
        """How many prompts were made so far; 0 for those of a file."""
        if file_prompts is None:
            self._made = self._counting(prompts_of(shape, words))
            self.warmups = warmup_prompts_of(shape, words)
        else:
            self.warmups = file_warmups(file_prompts, shape)

    def _counting(self, prompts: Iterator[Prompt]) -> Iterator[Prompt]:
        for prompt in prompts:
            self.drawn += 1
            yield prompt

    def skip_to(self, drawn: int) -> None:
        """Leaves out the made prompts before a place.

        Processes that share a stage take every n-th prompt each, so they must begin it at the same place; where one of
        them went further in the stage before, the others would send its prompts again.
        """
        while self._file_prompts is None and self.drawn < drawn:
            next(self._made)

    def counted(self, shape: Shape) -> Iterator[Prompt]:
        """The prompts of a stage. A file begins again at its end; whether it may is for the caller to say."""
        if self._file_prompts is None:
            return self._made
        return itertools.islice(itertools.cycle(self._file_prompts), shape.skip, None)


class Driver(Protocol):
    """Runs one stage after another against the same server."""

    @property
    def processes(self) -> int:
        """How many send."""
        ...

    @property
    def shard_lag_p99_s(self) -> float | None:
        """The worst loop lag of other processes; None when there are none."""
        ...

    @property
    def started_s(self) -> float | None:
        """When the stage's first counted request left."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests on their way."""
        ...

    @property
    def records(self) -> Sequence[RequestRecord]:
        """Finished counted requests of the stage."""
        ...

    @property
    def warmup_records(self) -> Sequence[RequestRecord]:
        """Finished warm-up requests of the stage."""
        ...

    @property
    def warmed(self) -> int:
        """Warm-up requests of the stage that have been answered so far."""
        ...

    @property
    def reconnects(self) -> int:
        """Requests sent again because a kept connection was dead."""
        ...

    def live_tokens(self) -> float:
        """Output tokens so far."""
        ...

    async def prepare(self, shape: Shape, on_record: OnRecord) -> None:
        """Everything that must not happen while the clock runs."""
        ...

    async def run(self) -> None:
        """The stage itself."""
        ...

    def stop(self) -> None:
        """Ends it within five seconds."""
        ...

    def cancel(self) -> None:
        """Ends it now."""
        ...

    async def close(self) -> None:
        """Lets go of everything."""
        ...


class LocalDriver:
    """This process."""

    processes = 1
    shard_lag_p99_s: float | None = None

    def __init__(
        self,
        *,
        target: Target,
        model: str,
        api_key: str | None,
        running_usage: bool,
        prompts: PromptSource,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self._target = target
        self._model = model
        self._api_key = api_key
        self._running_usage = running_usage
        self._prompts = prompts
        self._shard = shard
        self._shards = shards
        self._pool = ConnectionPool(target)
        self._stage: Stage | None = None
        self._stopping = False

    @property
    def started_s(self) -> float | None:
        """See `Driver`."""
        return None if self._stage is None else self._stage.started_s

    @property
    def in_flight(self) -> int:
        """See `Driver`."""
        return 0 if self._stage is None else self._stage.in_flight

    @property
    def records(self) -> Sequence[RequestRecord]:
        """See `Driver`."""
        return [] if self._stage is None else self._stage.records

    @property
    def warmup_records(self) -> Sequence[RequestRecord]:
        """See `Driver`."""
        return [] if self._stage is None else self._stage.warmup_records

    @property
    def warmed(self) -> int:
        """See `Driver`."""
        return len(self.warmup_records)

    @property
    def reconnects(self) -> int:
        """See `Driver`."""
        return self._pool.reconnects

    def live_tokens(self) -> float:
        """See `Driver`."""
        return 0.0 if self._stage is None else self._stage.live_tokens()

    async def prepare(self, shape: Shape, on_record: OnRecord) -> None:
        """See `Driver`: encodes the requests and opens the connections."""
        self._stage = Stage(
            target=self._target,
            pool=self._pool,
            shape=shape,
            prompts=self._prompts.counted(shape),
            warmup_prompts=self._prompts.warmups,
            model=self._model,
            api_key=self._api_key,
            running_usage=self._running_usage,
            on_record=on_record,
            shard=self._shard,
            shards=self._shards,
        )
        self._stage.prepare()
        await self._pool.open(-(-shape.streams // self._shards))

    async def run(self, start_at_s: float | None = None) -> None:
        """See `Driver`.

        Args:
            start_at_s: a time of the monotonic clock at which every process begins, after its `warm_up`; None: warm up
                and begin.
        """
        assert self._stage is not None
        if start_at_s is None:
            await self.warm_up()
        if self._stopping:
            self._stage.stop()
        await self._stage.run(start_at_s)

    async def warm_up(self) -> None:
        """Sends what is not counted and waits for the last answer to it."""
        assert self._stage is not None
        if self._stopping:
            self._stage.cancel()
        await self._stage.warm_up()

    def stop(self) -> None:
        """See `Driver`."""
        self._stopping = True
        if self._stage is not None:
            self._stage.stop()

    def cancel(self) -> None:
        """See `Driver`."""
        self._stopping = True
        if self._stage is not None:
            self._stage.cancel()

    async def close(self) -> None:
        """See `Driver`."""
        self._pool.close()
