"""Sends one stage of a load test and turns the answers into records. Runs in the worker process."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from vtop.load import arrival
from vtop.load.answer import read_answer
from vtop.load.client import ConnectionPool, Exchange, Target, monotonic
from vtop.load.records import Order, count_so_far, may_be_done, record_of
from vtop.load.stats import RequestRecord
from vtop.load.workload import Prompt, Shape, body, chat_message

STOP_WITHIN_S = 4.5
"""A stop waits this long for answers that are on their way: with a look at them four times a second, five in all."""
DRAIN_WITHIN_S = 30.0
"""After the time of a timed test is over, answers that are on their way may take this much longer."""
QUICK_FAILURE_S = 0.05
QUICK_FAILURE_PAUSE_S = 0.1
"""A stream that was refused within 0.05 s waits this long before its next request, where no count ends the test."""
_PREPARED = 4096
"""Requests of a test without a count that are encoded before the clock starts, at most."""


class Stage:
    """One stretch of load: warm-up until its last answer, then counted requests until count, time or stop."""

    def __init__(
        self,
        *,
        target: Target,
        pool: ConnectionPool,
        shape: Shape,
        prompts: Iterator[Prompt],
        warmup_prompts: Iterator[Prompt],
        model: str,
        api_key: str | None,
        running_usage: bool,
        on_record: Callable[[RequestRecord], None] | None = None,
        on_start: Callable[[float], None] | None = None,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self._target = target
        self._pool = pool
        self._shape = shape
        self._prompts = prompts
        self._warmup_prompts = warmup_prompts
        self._model = model
        self._api_key = api_key
        self._running_usage = running_usage
        self._on_record = on_record
        self._on_start = on_start
        self._shard = shard
        self._shards = shards
        path = "/v1/chat/completions" if shape.endpoint == "chat" else "/v1/completions"
        self._path = path
        self.records: list[RequestRecord] = []
        self.warmup_records: list[RequestRecord] = []
        self.started_s: float | None = None
        """When the first counted request was written."""
        self.sent = 0
        self.finished_tokens = 0.0
        self._active: dict[Exchange, Order] = {}
        self._ended: deque[tuple[Exchange, Order]] = deque()
        self._reading = False
        self._warmups: deque[Order] = deque()
        self._warm: asyncio.Event = asyncio.Event()
        self._trace_s: list[float] = []
        """Times of a trace's requests, also of those that other processes send."""
        self._orders: deque[Order] = deque()
        self._waiting: deque[Order] = deque()
        self._exhausted = False
        self._next_index = 0
        self._next_place = 0
        self._stopping = False
        self._finished: asyncio.Event = asyncio.Event()
        self._ends_s: float | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._time_over: asyncio.TimerHandle | None = None
        self._schedule: Iterator[tuple[int, float]] | None = None
        self._pending: tuple[int, float] | None = None
        self._loop_origin = 0.0

    # Before the clock

    def prepare(self) -> None:
        """Encodes what will be sent, so that none of it happens while the clock runs."""
        shape = self._shape
        for number, prompt in zip(range(shape.warmup), self._warmup_prompts, strict=False):
            if number % self._shards == self._shard:
                self._warmups.append(self._order(-1 - number, prompt, counted=False))
        if shape.requests is not None:
            many = shape.requests
        elif shape.rate is not None and shape.duration_s is not None:
            many = min(_PREPARED, math.ceil(1.1 * shape.rate * shape.duration_s) + 16)
        else:
            many = min(_PREPARED, 4 * (shape.concurrency or 64))
        self._refill(many)

    def _order(self, index: int, prompt: Prompt, *, counted: bool, place: int = 0) -> Order:
        payload = self._target.request_bytes(
            "POST",
            self._path,
            body(prompt, self._shape, self._model, running_usage=self._running_usage),
            self._api_key,
        )
        return Order(index, prompt, payload, counted, place=place)

    def _refill(self, many: int) -> None:
        shape = self._shape
        added = 0
        while added < many and not self._exhausted:
            if shape.requests is not None and self._next_index >= shape.requests:
                self._exhausted = True
                break
            prompt = next(self._prompts, None)
            if prompt is None:
                self._exhausted = True
                break
            index, place = self._next_index, self._next_place
            self._next_index, self._next_place = index + 1, place + 1
            if shape.trace:
                self._trace_s.append(prompt.at_s or 0.0)
            if index % self._shards == self._shard:
                self._orders.append(self._order(index, prompt, counted=True, place=place))
                added += 1

    # The run

    async def warm_up(self) -> None:
        """Sends the warm-up requests and waits for their last answer.

        A stream that began to count while others still warm up would queue behind answers that nobody counts: on a
        server that takes one request at a time that is half of a short run.
        """
        self._check_warm()
        if self._warm.is_set():
            return
        watcher = asyncio.get_running_loop().create_task(self._watch())
        try:
            for _ in range(len(self._warmups) if self._shape.open_loop else len(self._own_slots())):
                self._next_warmup()
            await self._warm.wait()
        finally:
            watcher.cancel()
            self._cancel_timers()

    def _next_warmup(self) -> None:
        if self._warmups and not self._stopping:
            self._send(self._warmups.popleft())

    def _check_warm(self) -> None:
        if not self._active and (self._stopping or not self._warmups):
            self._warm.set()

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    async def run(self, start_at_s: float | None = None) -> None:
        """Sends everything that counts and waits for the answers.

        Args:
            start_at_s: begin at this time of the monotonic clock (several processes, one start); None: now.
        """
        loop = asyncio.get_running_loop()
        if start_at_s is not None:
            await asyncio.sleep(max(0.0, start_at_s - monotonic()))
        self._finished.clear()
        watcher = loop.create_task(self._watch())
        try:
            if self._stopping:
                self._check_finished()
            elif self._shape.open_loop:
                self._open_clock(start_at_s)
            else:
                self._run_closed()
            await self._finished.wait()
        finally:
            watcher.cancel()
            self._cancel_timers()
            if self._time_over is not None:
                self._time_over.cancel()
        while self._ended:
            self._read_one()

    def stop(self) -> None:
        """Sends nothing more; what is on its way may end within a time, but a warm-up counts nowhere and is cut."""
        if self.started_s is None:
            self.cancel()
        elif not self._stopping:
            self._stopping = True
            self._waiting.clear()
            self._limit_rest(STOP_WITHIN_S)
            self._check_finished()

    def cancel(self) -> None:
        """Cuts everything now."""
        self._stopping = True
        self._waiting.clear()
        for exchange in list(self._active):
            self._pool.abort(exchange, "cancelled", "stopped")
        self._check_warm()
        self._check_finished()

    def _limit_rest(self, seconds: float) -> None:
        until = monotonic() + seconds
        self._ends_s = until if self._ends_s is None else min(self._ends_s, until)

    def _own_slots(self) -> list[float]:
        """When each stream of this process begins, after the start."""
        starts = arrival.slot_starts(self._shape.concurrency or 1, self._shape.ramp_s)
        return starts[self._shard :: self._shards]

    def _run_closed(self) -> None:
        loop = asyncio.get_running_loop()
        duration = self._shape.duration_s
        if duration is not None:
            self._time_over = loop.call_later(duration, self._end_of_time)
        for delay in self._own_slots():
            if delay > 0:
                self._timers.append(loop.call_later(delay, self._slot_timer))
            else:
                self._send_next()
        self._check_finished()

    def _end_of_time(self) -> None:
        """The time of a closed loop is over, whether or not a stream is free to notice it."""
        self._exhausted = True
        self._orders.clear()
        self._cancel_timers()
        self._limit_rest(min(DRAIN_WITHIN_S, self._shape.timeout_s))
        self._check_finished()

    def _open_clock(self, start_at_s: float | None) -> None:
        """The schedule of an open loop starts at the time that all processes were given, else now."""
        loop = asyncio.get_running_loop()
        now = monotonic()
        origin = now if start_at_s is None else start_at_s
        self._loop_origin = loop.time() - (now - origin)
        self._schedule = enumerate(self._offsets())
        self._begin(origin)
        self._due()

    def _due(self) -> None:
        """Sends what is due and sets the alarm for the next."""
        loop = asyncio.get_running_loop()
        assert self._schedule is not None and self.started_s is not None
        shape = self._shape
        while not self._stopping:
            number, offset = self._pending if self._pending is not None else next(self._schedule, (0, None))
            self._pending = None
            if offset is None or (shape.duration_s is not None and offset >= shape.duration_s):
                break
            # The loop's timers have a grain of a millisecond; what is due within it leaves now.
            if self._loop_origin + offset > loop.time() + 0.0005:
                self._pending = (number, offset)
                self._timers = [loop.call_at(self._loop_origin + offset, self._due)]
                return
            if number % self._shards == self._shard and not self._depart(self.started_s + offset):
                break
        self._timers = []
        self._orders.clear()
        self._exhausted = True
        if shape.duration_s is not None:
            self._limit_rest(min(DRAIN_WITHIN_S, shape.timeout_s))
        self._check_finished()

    def _depart(self, scheduled_s: float) -> bool:
        """One request of the schedule leaves, or waits for a free stream; False when there is none left."""
        if not self._orders:
            self._refill(64)
        if not self._orders:
            return False
        order = self._orders.popleft()
        order.scheduled_s = scheduled_s
        cap = self._shape.concurrency
        if cap is not None and len(self._active) >= max(1, len(range(self._shard, cap, self._shards))):
            self._waiting.append(order)
        else:
            self._send(order)
        return True

    def _offsets(self) -> Iterator[float]:
        shape = self._shape
        if shape.trace:
            return iter(self._trace_s)
        if shape.burst:
            return arrival.burst_offsets(shape.requests or 1)
        assert shape.rate is not None
        count = shape.requests
        if count is None and shape.duration_s is not None:
            count = arrival.expected_count(shape.rate, shape.duration_s, shape.ramp_s)
        rng = random.Random(shape.seed + 1)
        return arrival.gamma_offsets(shape.rate, rng, burstiness=shape.burstiness, count=count, ramp_s=shape.ramp_s)

    def _begin(self, at: float) -> None:
        self.started_s = at
        if self._on_start is not None:
            self._on_start(at)

    def _send_next(self) -> None:
        """A stream of the closed loop takes its next request."""
        if self._stopping:
            return
        if not self._orders:
            self._refill(1)
        if self._orders:
            self._send(self._orders.popleft())

    def _send(self, order: Order) -> None:
        exchange = Exchange(order.payload, order, self._exchange_ended)
        self._active[exchange] = order
        exchange.waits_until_s = monotonic() + self._shape.timeout_s
        self._pool.send(exchange)
        if order.counted:
            self.sent += 1
            if self.started_s is None:
                self._begin(exchange.sent_s or monotonic())

    def _exchange_ended(self, exchange: Exchange) -> None:
        order = self._active.pop(exchange, None)
        self._pool.released(exchange)
        if order is None:
            return
        self._ended.append((exchange, order))
        loop = asyncio.get_running_loop()
        go_on = self._send_next if order.counted else self._next_warmup
        if order.prompt.turns and order.counted and not exchange.failure and not self._stopping:
            self._next_turn(exchange, order)
        elif self._shape.open_loop:
            if self._waiting:
                self._send(self._waiting.popleft())
        elif exchange.failure == "connect_failed" or (
            self._shape.requests is None
            and exchange.status != 200
            and exchange.ended_s - exchange.sent_s < QUICK_FAILURE_S
        ):
            # A server that refuses at once would otherwise be asked thousands of times a second.
            self._timers.append(loop.call_later(QUICK_FAILURE_PAUSE_S, self._after_pause, go_on))
        else:
            go_on()
        if not order.counted:
            self._check_warm()
        if not self._reading:
            self._reading = True
            loop.call_soon(self._read_slice)
        self._check_finished()

    def _next_turn(self, exchange: Exchange, order: Order) -> None:
        """The same user speaks again, with the real answer in the history."""
        answer = read_answer(exchange.reads, ended_in_order=exchange.body_ended)
        messages = (
            *(order.prompt.messages or ()),
            {"role": "assistant", "content": answer.text},
            *chat_message(order.prompt.turns[0]),
        )
        prompt = replace(order.prompt, messages=messages, turns=order.prompt.turns[1:], prompt_tokens=None)
        # Of the next numbers, one for each process, this one's: no two requests of a test have the same.
        index = self._next_index + (self._shard - self._next_index) % self._shards
        self._next_index += self._shards
        self._send(self._order(index, prompt, counted=True, place=order.place))

    def _check_finished(self) -> None:
        if self._active or self._waiting:
            return
        over = self._exhausted and not self._orders if self._shape.open_loop else not self._slots_to_come()
        if self._stopping or over:
            self._finished.set()

    def _slots_to_come(self) -> bool:
        """Whether a stream of the closed loop still waits for its moment."""
        now = asyncio.get_running_loop().time()
        self._timers = [timer for timer in self._timers if timer.when() > now]
        return bool(self._timers)

    def _slot_timer(self) -> None:
        self._after_pause(self._send_next)

    def _after_pause(self, go_on: Callable[[], None]) -> None:
        go_on()
        self._check_finished()

    async def _watch(self) -> None:
        """Deadlines, four times a second."""
        while True:
            await asyncio.sleep(0.1 if self._shape.timeout_s < 5 else 0.25)
            now = monotonic()
            ends = self._ends_s
            for exchange in list(self._active):
                if ends is not None and now >= ends:
                    self._pool.abort(exchange, "cancelled", "still running when the test ended")
                elif now >= exchange.waits_until_s:
                    self._pool.abort(exchange, "timeout", f"no end within {self._shape.timeout_s:g} s")
                elif may_be_done(exchange, now) and read_answer(exchange.reads, keep_text=False).done:
                    self._pool.abort(exchange, "lingers", "the body stayed open after [DONE]")

    # Live numbers

    @property
    def in_flight(self) -> int:
        """Requests on their way."""
        return len(self._active)

    def live_tokens(self) -> float:
        """Output tokens of counted requests so far: exact where the server sends its running usage."""
        total = self.finished_tokens
        for exchange, order in self._active.items():
            if order.counted:
                total += count_so_far(exchange)
        for exchange, order in self._ended:
            if order.counted:
                total += count_so_far(exchange)
        return total

    # Reading answers, off the path of the stamps

    def _read_slice(self) -> None:
        if self._ended:
            self._read_one()
        if self._ended:
            asyncio.get_running_loop().call_soon(self._read_slice)
        else:
            self._reading = False

    def _read_one(self) -> None:
        exchange, order = self._ended.popleft()
        record = record_of(exchange, order)
        if not order.counted:
            self.warmup_records.append(record)
            return
        self.records.append(record)
        if record.ok:
            self.finished_tokens += record.output_tokens if record.output_tokens is not None else record.chunks
        else:
            self.finished_tokens += count_so_far(exchange)
        if self._on_record is not None:
            self._on_record(record)
