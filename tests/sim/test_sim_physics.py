"""Scheduler and step clock in virtual time: the gains come out of bytes, FLOPs and rules, nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtop.roofline import tpot_floor_s, ttft_floor_s
from vtop.sim.kv_cache import BlockPool
from vtop.sim.language import Continuation, repeated_share, repetition
from vtop.sim.machine import Machine, StartFailure, build_machine
from vtop.sim.options import Options
from vtop.sim.scheduler import Limits, Request, Scheduler
from vtop.sim.speculation import NgramIndex
from vtop.sim.step_time import BANDWIDTH_SHARE, STEP_OVERHEAD_S, StepClock
from vtop.sim.vocabulary import Vocabulary


@dataclass
class Run:
    """What a load gave in virtual time."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    hits: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    most_running: int = 0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def request(prompt: list[int], answer: int, share: float = 0.05, arrived_s: float = 0.0, seed: int = 0) -> Request:
    tokens = list(prompt)
    return Request(
        request_id="r", tokens=tokens, prompt_tokens=len(prompt), max_tokens=answer, min_tokens=0, ignore_eos=True,
        language=Continuation(tokens, share, seed), arrived_s=arrived_s, deliver=lambda tokens, reason: None,
    )  # fmt: skip


def prompts(count: int, length: int, shared: int = 0, seed: int = 7) -> list[list[int]]:
    rng = random.Random(seed)
    head = [rng.randrange(100_000) for _ in range(shared)]
    return [head + [rng.randrange(100_000) for _ in range(length - shared)] for _ in range(count)]


def machine(**options: object) -> Machine:
    return build_machine(Options(**{"max_model_len": 8192, **options}))  # type: ignore[arg-type]


def drive(server: Machine, load: list[list[int]], answer: int, concurrency: int, share: float = 0.05) -> Run:
    """A closed loop of `concurrency` streams."""
    pool = BlockPool(server.kv_blocks, server.options.enable_prefix_caching)
    scheduler = Scheduler(server.limits, pool, server.setup.shape.sliding_window, server.speculation)
    clock = StepClock(server.setup, server.card, server.options.enforce_eager, server.speculation)
    waiting = [request(prompt, answer, share, seed=number) for number, prompt in enumerate(load)]
    run = Run()
    live = 0
    while waiting or scheduler.busy:
        while waiting and live < concurrency:
            following = waiting.pop(0)
            following.arrived_s = run.seconds
            scheduler.add(following)
            live += 1
        step = scheduler.schedule(run.seconds)
        assert step.shares, "requests wait and nothing can run"
        run.most_running = max(run.most_running, len(scheduler.running))
        run.hits += sum(item.cached_tokens for item in step.admitted)
        run.seconds += clock.span(step.work, len(step.shares)).seconds
        run.steps += 1
        for outcome in scheduler.finish_step(step, run.seconds):
            run.tokens += len(outcome.tokens)
            run.drafted += outcome.drafted
            run.accepted += outcome.accepted
            if outcome.first:
                run.ttft_s.append(run.seconds - outcome.request.arrived_s)
            if outcome.finish_reason:
                live -= 1
                first = outcome.request.first_token_s or 0.0
                run.tpot_s.append((run.seconds - first) / (outcome.request.answer_tokens - 1))
    run.preemptions = scheduler.preemptions
    assert pool.usage == 0, "blocks were not given back"
    assert run.tokens == answer * len(load)
    return run


def test_one_request_at_a_time_decodes_at_the_practical_share_of_the_bandwidth() -> None:
    server = machine(max_num_seqs=1)
    run = drive(server, prompts(2, 64), 100, 2)
    floor = tpot_floor_s(server.setup, server.card, 1, 114)
    assert floor is not None
    for tpot in run.tpot_s:
        assert tpot == pytest.approx(floor / BANDWIDTH_SHARE + STEP_OVERHEAD_S, rel=0.01)
    assert 1.0 < run.tpot_s[0] / floor < 1.3


def test_batching_multiplies_throughput_because_weights_are_read_once() -> None:
    load = prompts(64, 60)
    alone = drive(machine(max_num_seqs=1, enable_prefix_caching=False), load, 150, 16)
    batched = drive(machine(enable_prefix_caching=False), load, 150, 16)
    # 16 times the tokens a step for a step that is a little longer (KV reads, prefills in between).
    assert 12 < batched.tokens_per_s / alone.tokens_per_s < 16
    assert alone.most_running == 1 and batched.most_running == 16


def test_prefix_caching_does_nothing_for_prompts_that_share_nothing() -> None:
    load = prompts(32, 60)
    off = drive(machine(enable_prefix_caching=False), load, 100, 16)
    on = drive(machine(enable_prefix_caching=True), load, 100, 16)
    assert on.hits == 0
    assert on.seconds == off.seconds


def test_prefix_caching_hits_are_exact_and_cut_ttft_for_a_shared_prefix() -> None:
    load = prompts(32, 2128, shared=2000)
    off = drive(machine(enable_prefix_caching=False), load, 32, 4)
    on = drive(machine(enable_prefix_caching=True), load, 32, 1)
    # 125 whole blocks are shared by all but the first.
    assert on.hits == 31 * 2000
    assert off.hits == 0
    quick = drive(machine(enable_prefix_caching=True), load, 32, 4)
    assert sorted(quick.ttft_s)[16] < sorted(off.ttft_s)[16] / 4
    assert quick.tokens_per_s > 2 * off.tokens_per_s


def test_a_prompt_that_is_wholly_cached_still_computes_its_last_token() -> None:
    prompt = prompts(1, 160)[0]
    run = drive(machine(), [prompt, prompt], 4, 1)
    assert run.hits == 144  # 160 tokens are ten blocks, the last of which must be computed


def test_ngram_guesses_pay_on_repetitive_text_and_cost_on_other() -> None:
    guess = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}}
    load = prompts(16, 200)
    plain = drive(machine(), load, 150, 4)
    repetitive = drive(machine(**guess), load, 150, 4, share=0.9)
    other = drive(machine(**guess), load, 150, 4, share=0.01)
    assert repetitive.tokens_per_s > 1.8 * plain.tokens_per_s
    assert repetitive.accepted / repetitive.drafted > 0.7
    assert 0.85 * plain.tokens_per_s < other.tokens_per_s < plain.tokens_per_s


def test_speculation_never_changes_the_answer() -> None:
    guess = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}
    answers = []
    for config in (None, guess, {"method": "draft_model", "model": "Qwen/Qwen2.5-0.5B", "num_speculative_tokens": 3}):
        server = machine(speculative_config=config)
        scheduler = Scheduler(server.limits, BlockPool(500, True), None, server.speculation)
        one = request(prompts(1, 80)[0], 200, share=0.6)
        scheduler.add(one)
        while scheduler.busy:
            scheduler.finish_step(scheduler.schedule(0.0), 1.0)
        answers.append(one.tokens[80:])
    assert len(answers[0]) == 200
    assert answers[0] == answers[1] == answers[2]


def test_a_draft_model_pays_at_batch_one_and_its_weights_take_room() -> None:
    config = {"method": "draft_model", "model": "Qwen/Qwen2.5-0.5B-Instruct", "num_speculative_tokens": 4}
    plain, guessed = machine(), machine(speculative_config=config)
    load = prompts(4, 100)
    assert drive(guessed, load, 150, 1).tokens_per_s > 1.3 * drive(plain, load, 150, 1).tokens_per_s
    assert guessed.weights_bytes - plain.weights_bytes == pytest.approx(494_032_768 * 2)
    assert guessed.kv_blocks < plain.kv_blocks


@pytest.mark.parametrize(
    ("options", "at_least"),
    [
        ({"quantization": "fp8"}, 1.5),
        ({"model": "Qwen/Qwen2.5-7B-Instruct-AWQ"}, 1.9),
        ({"quantization": "int8"}, 1.5),
        ({"tensor_parallel_size": 4, "gpu": "H100"}, 2.0),
    ],
)
def test_fewer_bytes_a_step_decode_faster(options: dict[str, object], at_least: float) -> None:
    load = prompts(16, 100)
    base = machine(gpu=options.get("gpu", "RTX 4090"))
    changed = machine(**options)
    assert drive(changed, load, 100, 8).tokens_per_s > at_least * drive(base, load, 100, 8).tokens_per_s


def test_prefill_time_is_near_its_floor() -> None:
    server = machine(max_num_batched_tokens=8192)
    run = drive(server, prompts(1, 4000), 2, 1)
    floor = ttft_floor_s(server.setup, server.card, 4000)
    assert floor is not None
    assert 1.0 < run.ttft_s[0] / floor < 1.5


def test_chunked_prefill_keeps_decoding_requests_going() -> None:
    server = machine(max_num_batched_tokens=512)
    scheduler = Scheduler(server.limits, BlockPool(server.kv_blocks, False))
    talking = request(prompts(1, 20)[0], 50)
    scheduler.add(talking)
    scheduler.finish_step(scheduler.schedule(0.0), 0.0)
    scheduler.add(request(prompts(1, 3000)[0], 5))
    step = scheduler.schedule(0.0)
    assert [(count, drafts) for _, count, drafts in step.shares] == [(1, 0), (511, 0)]
    outcomes = scheduler.finish_step(step, 0.0)
    assert [outcome.request for outcome in outcomes] == [talking]


def test_a_cache_that_is_too_small_preempts_and_still_answers_everything() -> None:
    server = machine()
    limits = Limits(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=8192)
    pool = BlockPool(40, caching=False)
    scheduler = Scheduler(limits, pool)
    waiting = [request(prompt, 120) for prompt in prompts(8, 64)]
    for one in waiting:
        scheduler.add(one)
    for _ in range(5000):
        if not scheduler.busy:
            break
        scheduler.finish_step(scheduler.schedule(0.0), 1.0)
    assert not scheduler.busy
    assert scheduler.preemptions > 0
    assert all(one.answer_tokens == 120 for one in waiting)
    assert pool.free == 40 and server.kv_blocks > 40


def test_kv_from_another_server_is_waited_for_and_not_computed() -> None:
    scheduler = Scheduler(Limits(8, 2048, 8192), BlockPool(500, False))
    one = request(prompts(1, 600)[0], 3)
    one.transferred_tokens, one.ready_at_s = 599, 5.0
    scheduler.add(one)
    assert not scheduler.schedule(4.9).shares
    assert scheduler.deferred(4.9) == 1 and scheduler.next_arrival_s() == 5.0
    assert [count for _, count, _ in scheduler.schedule(5.0).shares] == [1]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    blocks=st.integers(24, 80),
    budget=st.integers(16, 400),
    seqs=st.integers(1, 8),
    caching=st.booleans(),
    lookup=st.booleans(),
)
def test_any_load_ends_with_every_token_and_every_block(
    seed: int, blocks: int, budget: int, seqs: int, caching: bool, lookup: bool
) -> None:
    rng = random.Random(seed)
    plan = machine(speculative_config={"method": "ngram", "num_speculative_tokens": 3}).speculation if lookup else None
    pool = BlockPool(blocks, caching)
    scheduler = Scheduler(Limits(seqs, budget, 300), pool, None, plan)
    shared = prompts(1, 48, seed=seed)[0]
    live = []
    for number in range(10):
        prompt = shared[: rng.choice([0, 16, 48])] + prompts(1, rng.randrange(1, 120), seed=seed + number)[0]
        live.append(request(prompt, rng.randrange(1, 90), share=rng.choice([0.05, 0.9])))
        scheduler.add(live[-1])
    aborted = live.pop(rng.randrange(len(live)))
    steps = 0
    while scheduler.busy:
        step = scheduler.schedule(0.0)
        assert step.work.tokens <= budget
        assert len(scheduler.running) <= seqs
        assert 0 <= pool.usage <= 1
        if steps == 3:
            scheduler.abort(aborted)
        scheduler.finish_step(step, 1.0)
        steps += 1
        assert steps < 20_000
    assert all(one.answer_tokens == one.max_tokens for one in live)
    assert pool.free == blocks


def test_least_recently_used_blocks_go_first() -> None:
    pool = BlockPool(3, caching=True)
    for value in (1, 2, 3):
        block = pool.allocate(1)
        assert block is not None
        pool.remember(block[0], value)
        pool.release(block)
    held = pool.match([1])
    pool.hold(held)
    pool.release(held)  # 1 is now the latest used, 2 the oldest
    assert pool.allocate(1) is not None
    assert (pool.match([1]) != [], pool.match([2]) != [], pool.match([3]) != []) == (True, False, True)


def test_lookup_finds_what_followed_the_longest_match() -> None:
    index = NgramIndex(2, 3)
    tokens = [1, 2, 3, 9, 8, 2, 3, 7, 1, 2, 3]
    assert index.propose(tokens, 3) == [9, 8, 2]
    tokens.append(9)
    assert index.propose(tokens, 2) == [8, 2]
    assert NgramIndex(2, 3).propose([1, 2, 3, 4], 3) == []


def test_repetitiveness_is_measured_in_the_prompt() -> None:
    vocabulary = Vocabulary(150_000)
    again = vocabulary.encode("red green blue " * 40)
    once = prompts(1, 120)[0]
    assert repeated_share(again) > 0.9
    assert repeated_share(once) == 0.0
    assert repetition(once, "Repeat the following text word for word: ...") == 0.9


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_the_answer_repeats_as_much_as_asked(share: float) -> None:
    copied = total = 0
    for seed in range(40):
        tokens = prompts(1, 300, seed=seed)[0]
        language = Continuation(tokens, share, seed)
        for _ in range(400):
            language.append_next()
            copied += language.copied
            total += 1
    assert copied / total == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize("text", ["", "Hello, world!\n", "Größe 12345 – ok?", "a\tb  c", "日本語 text"])
def test_text_survives_the_vocabulary(text: str) -> None:
    vocabulary = Vocabulary(150_000)
    assert vocabulary.decode(vocabulary.encode(text)) == text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "nobody/nothing"}, "Invalid repository ID"),
        ({"model": "Qwen/Qwen2.5-32B-Instruct"}, "CUDA out of memory"),
        ({"max_model_len": 40_000}, "greater than the derived max_model_len"),
        ({"gpu_memory_utilization": 0.7}, "max seq len (32768)"),
        ({"gpu_memory_utilization": 0.3}, "No available memory for the cache blocks"),
        ({"tensor_parallel_size": 3}, "must be divisible by tensor parallel size (3)"),
        ({"quantization": "nonsense"}, "Unknown quantization method: nonsense"),
        ({"quantization": "awq"}, "Cannot find the config file for awq"),
    ],
)
def test_what_does_not_fit_fails_in_vllms_words(options: dict[str, object], words: str) -> None:
    with pytest.raises(StartFailure) as failure:
        build_machine(Options(**options))  # type: ignore[arg-type]
    assert words in str(failure.value)
