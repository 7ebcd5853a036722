"""Who computes how many tokens in the next step: continuous batching, chunked prefill, preemption, speculation.

The rules are those of vLLM's V1 scheduler: running requests first, then waiting ones in order of arrival while the
token budget, the sequence limit and the KV blocks last; a request that cannot get a block evicts the latest arrival,
which is computed again later.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from vtop.roofline import Pass
from vtop.sim.kv_cache import BLOCK_TOKENS, BlockPool, block_hash
from vtop.sim.language import Continuation
from vtop.sim.speculation import NgramIndex, SpeculationPlan, is_accepted


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine was started with."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    chunked_prefill: bool = True


@dataclass(slots=True, eq=False)
class Request:
    """One sequence inside the engine."""

    request_id: str
    tokens: list[int]
    """Prompt and answer."""
    prompt_tokens: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    language: Continuation
    arrived_s: float
    deliver: Callable[[list[int], str | None], None]
    """Called with the tokens of a step and the finish reason, or None while it goes on."""
    transferred_tokens: int = 0
    """Prompt tokens whose KV another server has computed."""
    ready_at_s: float = 0.0
    """When those have arrived."""
    want_transfer: bool = False
    """A prefill server keeps this request's KV for a decode server."""
    params_n: int = 1

    computed: int = 0
    """Tokens with KV."""
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    remembered: int = 0
    """Blocks whose content is known to the pool."""
    cached_tokens: int = 0
    drafts: list[int] | int = 0
    """Guessed tokens (a look-up) or how many a draft model guesses."""
    ngrams: NgramIndex | None = None
    rng: random.Random | None = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    preemptions: int = 0
    aborted: bool = False

    @property
    def answer_tokens(self) -> int:
        """Tokens generated."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def draft_count(self) -> int:
        """Tokens guessed for the next step."""
        return self.drafts if isinstance(self.drafts, int) else len(self.drafts)

    def extend_hashes(self) -> None:
        """Hashes the blocks that are full."""
        full = len(self.tokens) // BLOCK_TOKENS
        while len(self.hashes) < full:
            start = len(self.hashes) * BLOCK_TOKENS
            parent = self.hashes[-1] if self.hashes else 0
            self.hashes.append(block_hash(parent, self.tokens[start : start + BLOCK_TOKENS]))


@dataclass(slots=True, eq=False)
class Step:
    """What one step computes."""

    work: Pass
    shares: list[tuple[Request, int, int]] = field(default_factory=list)
    """Request, tokens computed for it, guessed tokens among them."""
    prefilling: int = 0
    """Requests with prompt tokens in this step."""
    admitted: list[Request] = field(default_factory=list)
    preempted: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one request got from a step."""

    request: Request
    tokens: list[int]
    drafted: int
    accepted: int
    first: bool
    finish_reason: str | None


class Scheduler:
    """The queues of one engine."""

    def __init__(
        self, limits: Limits, pool: BlockPool, window: int | None = None, speculation: SpeculationPlan | None = None
    ) -> None:
        self.limits = limits
        self.pool = pool
        self.speculation = speculation
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.preemptions = 0
        self._window = window

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.running or self.waiting)

    def deferred(self, now_s: float) -> int:
        """Waiting requests whose KV is still on its way from another server."""
        return sum(1 for request in self.waiting if request.ready_at_s > now_s)

    def next_arrival_s(self) -> float | None:
        """When the earliest transfer ends; None where none is under way."""
        times = [request.ready_at_s for request in self.waiting if request.ready_at_s > 0]
        return min(times) if times else None

    def add(self, request: Request) -> None:
        """Puts a request at the end of the queue."""
        plan = self.speculation
        if plan is not None:
            if plan.looks_up:
                request.ngrams = NgramIndex(plan.lookup_min, plan.lookup_max)
            else:
                request.rng = random.Random(request.prompt_tokens * 2654435761 + len(request.request_id))
        self.waiting.append(request)

    def schedule(self, now_s: float) -> Step:
        """Chooses the next step; without work in it where nothing can run now."""
        step = Step(work=Pass(window=self._window))
        budget = self._schedule_running(step, self.limits.max_num_batched_tokens)
        if step.preempted == 0:
            self._admit(step, budget, now_s)
        return step

    def _schedule_running(self, step: Step, budget: int) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            drafts = request.draft_count
            remaining = len(request.tokens) - request.computed
            count = min(remaining + drafts, budget)
            drafts = max(0, count - remaining)
            if not self._grow(request, request.computed + count, step):
                break
            self._share(step, request, count, drafts, remaining)
            budget -= count
            index += 1
        return budget

    def _grow(self, request: Request, tokens: int, step: Step) -> bool:
        """Gets blocks for so many tokens, evicting the latest requests where needed; False: evicted itself."""
        missing = -(-tokens // BLOCK_TOKENS) - len(request.blocks)
        while missing > 0:
            blocks = self.pool.allocate(missing)
            if blocks is not None:
                request.blocks.extend(blocks)
                return True
            victim = self.running.pop()
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request, step: Step) -> None:
        self.pool.release(victim.blocks)
        victim.blocks = []
        victim.computed = 0
        victim.remembered = 0
        victim.drafts = 0 if isinstance(victim.drafts, int) else []
        victim.preemptions += 1
        self.waiting.appendleft(victim)
        self.preemptions += 1
        step.preempted += 1

    def _admit(self, step: Step, budget: int, now_s: float) -> None:
        deferred: list[Request] = []
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            if request.ready_at_s > now_s:
                deferred.append(self.waiting.popleft())
                continue
            request.extend_hashes()
            # At least one token has to be computed, or there would be nothing to sample from.
            hits = self.pool.match(request.hashes[: (len(request.tokens) - 1) // BLOCK_TOKENS])
            start = max(len(hits) * BLOCK_TOKENS, min(request.transferred_tokens, len(request.tokens) - 1))
            count = min(len(request.tokens) - start, budget)
            if count < len(request.tokens) - start and not self.limits.chunked_prefill:
                break
            needed = -(-(len(request.tokens) + 1) // BLOCK_TOKENS) - len(hits)
            if needed > self.pool.free_after(hits):
                break
            self.pool.hold(hits)
            request.blocks = hits + (self.pool.allocate(needed) or [])
            request.remembered = len(hits)
            request.computed = start
            if request.scheduled_s is None:
                request.scheduled_s = now_s
                request.cached_tokens = len(hits) * BLOCK_TOKENS
                step.admitted.append(request)
            self.waiting.popleft()
            self.running.append(request)
            self._share(step, request, count, 0, len(request.tokens) - start)
            budget -= count
        for request in reversed(deferred):
            self.waiting.appendleft(request)

    def _share(self, step: Step, request: Request, count: int, drafts: int, remaining: int) -> None:
        samples = drafts + 1 if count >= remaining else 0
        step.work.add(request.computed, count, samples)
        step.shares.append((request, count, drafts))
        if request.first_token_s is None:
            step.prefilling += 1

    def finish_step(self, step: Step, now_s: float) -> list[Outcome]:
        """Applies a step that has run: new tokens, finished requests, the guesses for the next step."""
        outcomes = []
        done = False
        for request, count, drafts in step.shares:
            if request.aborted:
                done = True
                continue
            total = len(request.tokens)
            if request.computed + count < total:
                request.computed += count
                self._remember(request)
                continue
            tokens, accepted = self._sample(request, drafts)
            request.computed = total + min(accepted, max(0, len(tokens) - 1))
            reason = self._reason(request)
            first = request.first_token_s is None
            if first:
                request.first_token_s = now_s
            outcomes.append(Outcome(request, tokens, drafts, accepted, first, reason))
            if reason is None:
                self._remember(request)
                self._guess(request)
            else:
                done = True
                request.aborted = True
                self._remember(request)
                self.pool.release(request.blocks)
                request.blocks = []
        if done:
            self.running = [request for request in self.running if not request.aborted]
        return outcomes

    def _sample(self, request: Request, drafts: int) -> tuple[list[int], int]:
        """Verifies the guesses against what the model really says; the first wrong one is replaced by the right one."""
        language = request.language
        room = min(request.max_tokens - request.answer_tokens, self.limits.max_model_len - len(request.tokens))
        end = None if request.ignore_eos else max(request.min_tokens, language.natural_length) - request.answer_tokens
        room = max(1, room if end is None else min(room, max(1, end)))
        guesses = request.drafts if isinstance(request.drafts, list) else None
        tokens: list[int] = []
        accepted = 0
        for index in range(drafts):
            token = language.append_next()
            tokens.append(token)
            if guesses is not None:
                right = guesses[index] == token
            else:
                right = is_accepted(
                    self.speculation.method if self.speculation else "",
                    request.rng.random() if request.rng else 1.0,
                    language.copied,
                )
            accepted += right
            if not right or len(tokens) >= room:
                return tokens, accepted
        tokens.append(language.append_next())
        return tokens, accepted

    def _reason(self, request: Request) -> str | None:
        answer = request.answer_tokens
        if not request.ignore_eos and answer >= max(request.min_tokens, request.language.natural_length):
            return "stop"
        if answer >= request.max_tokens or len(request.tokens) >= self.limits.max_model_len:
            return "length"
        return None

    def _remember(self, request: Request) -> None:
        if not self.pool.caching:
            return
        full = request.computed // BLOCK_TOKENS
        if full > request.remembered:
            request.extend_hashes()
            for index in range(request.remembered, min(full, len(request.hashes))):
                self.pool.remember(request.blocks[index], request.hashes[index])
            request.remembered = full

    def _guess(self, request: Request) -> None:
        plan = self.speculation
        if plan is None:
            return
        room = min(request.max_tokens - request.answer_tokens, self.limits.max_model_len - len(request.tokens)) - 1
        count = max(0, min(plan.tokens, room))
        request.drafts = request.ngrams.propose(request.tokens, count) if request.ngrams is not None else count

    def abort(self, request: Request) -> bool:
        """Takes a request out; False where it was already done."""
        if request.aborted:
            return False
        request.aborted = True
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)
            self.pool.release(request.blocks)
            request.blocks = []
        return True
