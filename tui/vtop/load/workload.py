"""The built-in workloads: what is sent, and the shape of a test after the user's wishes."""

from __future__ import annotations

import json
import math
import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vtop.errors import UsageError
from vtop.load.progress import LoadRequest
from vtop.load.words import WordSource
from vtop.strict_toml import nearest


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's content."""

    messages: tuple[Mapping[str, Any], ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    max_tokens: int | None = None
    """None: the shape's."""
    at_s: float | None = None
    """Its time in a trace."""
    turns: tuple[str, ...] = ()
    """What the user says after each answer (multi-turn)."""
    prompt_tokens: int | None = None
    """How long it was made, where that is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A load test with every value settled."""

    workload: str
    endpoint: str
    concurrency: int | None
    """Streams of a closed loop; the cap of an open one, or None for no cap."""
    requests: int | None
    duration_s: float | None
    rate: float | None
    burstiness: float
    max_tokens: int
    prompt_tokens: int
    prefix_tokens: int
    prefixes: int
    temperature: float | None
    ignore_eos: bool
    seed: int
    warmup: int
    timeout_s: float
    ramp_s: float = 0.0
    choices: int = 1
    file: str | None = None
    file_prompts: int = 0
    """How many prompts the file holds."""
    skip: int = 0
    """How many of the file's prompts earlier stages have sent."""
    trace: bool = False
    """The file says when each request leaves."""
    burst: bool = False
    """All requests leave at once."""

    @property
    def open_loop(self) -> bool:
        """Requests leave by the clock, not by the answers."""
        return self.rate is not None or self.trace or self.burst

    @property
    def made_to_length(self) -> bool:
        """Prompts are made to a length in tokens; those of a file are as they are, whatever the workload."""
        return self.file is None and find_workload(self.workload).equal_lengths

    @property
    def streams(self) -> int:
        """How many connections to open before the clock starts."""
        if self.concurrency is not None:
            return min(self.concurrency, self.requests or self.concurrency)
        expected = math.ceil((self.rate or 16.0) * 4)
        return max(8, min(expected, self.requests or expected, 512))


Prompts = Callable[[Shape, WordSource, random.Random], Iterator[Prompt]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A named load: its defaults and its prompts."""

    name: str
    title: str
    summary: str
    prompts: Prompts
    concurrency: int = 16
    requests: int | None = 200
    duration_s: float | None = None
    rate_share: float | None = None
    """Open loop at this share of the highest rate found first."""
    max_tokens: int = 150
    prompt_tokens: int = 512
    prefix_tokens: int = 0
    prefixes: int = 0
    temperature: float | None = 0.7
    ignore_eos: bool = True
    endpoint: str = "chat"
    ladder: bool = False
    equal_lengths: bool = True
    """Prompts are made to a length in tokens, so the server's words are needed."""


_SUBJECTS = (
    "how a cache keeps recent work at hand",
    "why batching requests makes a server faster",
    "what a queue does when work arrives faster than it is done",
    "how memory bandwidth limits reading large tables",
    "why the first step of a job can take longer than the others",
    "what happens when two programs share one disk",
    "how compression trades work for space",
    "why guessing ahead can save time",
)
LEAD = "Continue this list of words in the same style, one line, no comments:"
REPEAT_LEAD = "Repeat the following text word for word, again and again without stopping:"


def chat_message(text: str) -> tuple[Mapping[str, Any], ...]:
    """A chat of one user message."""
    return ({"role": "user", "content": text},)


def _demo(shape: Shape, words: WordSource, rng: random.Random) -> Iterator[Prompt]:
    number = rng.randrange(1000, 900_000)
    while True:
        number += 1
        subject = _SUBJECTS[number % len(_SUBJECTS)]
        yield _as_endpoint(shape, f"Question {number}: explain in a few sentences {subject}.")


def _as_endpoint(shape: Shape, text: str, prompt_tokens: int | None = None) -> Prompt:
    if shape.endpoint == "completions":
        return Prompt(text=text, prompt_tokens=prompt_tokens)
    return Prompt(messages=chat_message(text), prompt_tokens=prompt_tokens)


def _sized(shape: Shape, words: WordSource, rng: random.Random, lead: str, length: int, head: str = "") -> Prompt:
    """A prompt of `length` tokens: a lead, then random words of one token each."""
    chat = shape.endpoint == "chat"
    overhead = words.overhead(lead, chat=chat)
    count = max(1, length - overhead - words.tokens_in(head))
    text = lead + head + words.draw(rng, count)
    total = overhead + words.tokens_in(head) + count
    return _as_endpoint(shape, text, total if words.exact else None)


def _filler(shape: Shape, words: WordSource, rng: random.Random) -> Iterator[Prompt]:
    while True:
        yield _sized(shape, words, rng, LEAD, shape.prompt_tokens)


def _prefix(shape: Shape, words: WordSource, rng: random.Random) -> Iterator[Prompt]:
    heads = [words.draw(rng, shape.prefix_tokens) for _ in range(max(1, shape.prefixes))]
    number = 0
    while True:
        # Prefixes take turns, so that each is warm after its first request and none is favoured.
        head = heads[number % len(heads)]
        number += 1
        yield _sized(shape, words, rng, LEAD, shape.prefix_tokens + shape.prompt_tokens, head)


def _repeat(shape: Shape, words: WordSource, rng: random.Random) -> Iterator[Prompt]:
    while True:
        yield _sized(shape, words, rng, REPEAT_LEAD, shape.prompt_tokens)


def _random(shape: Shape, words: WordSource, rng: random.Random) -> Iterator[Prompt]:
    if words.ids is None or shape.endpoint == "chat":
        yield from _filler(shape, words, rng)
        return
    while True:
        ids = tuple(rng.choices(words.ids, k=shape.prompt_tokens))
        yield Prompt(token_ids=ids, prompt_tokens=len(ids))


WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            name="demo",
            title="Demo",
            summary="16 at once, 64 short chats, up to 150 tokens each: four waves, for a quick look",
            prompts=_demo,
            requests=64,
            ignore_eos=False,
            equal_lengths=False,
        ),
        Workload(
            name="chat",
            title="Chat",
            summary="16 at once, 200 chats of 512 tokens in and 150 out: the one for comparing",
            prompts=_filler,
        ),
        Workload(
            name="prefix",
            title="Shared prefixes",
            summary="10 prefixes of 2,048 tokens, 20 requests each with 128 own tokens: shows prefix caching",
            prompts=_prefix,
            prefix_tokens=2048,
            prefixes=10,
            prompt_tokens=128,
            max_tokens=128,
        ),
        Workload(
            name="long",
            title="Long prompts",
            summary="4 at once, 7,600 tokens in and 64 out: prefill, P/D disaggregation",
            prompts=_filler,
            concurrency=4,
            requests=32,
            prompt_tokens=7600,
            max_tokens=64,
        ),
        Workload(
            name="decode",
            title="Long answers",
            summary="8 at once, 32 tokens in and 1,024 out: decode, speculation, quantization",
            prompts=_filler,
            concurrency=8,
            requests=32,
            prompt_tokens=32,
            max_tokens=1024,
        ),
        Workload(
            name="repeat",
            title="Repeat a text",
            summary="8 at once, the answer repeats the prompt: where n-gram speculation helps most",
            prompts=_repeat,
            concurrency=8,
            requests=64,
            prompt_tokens=256,
            max_tokens=256,
            temperature=0.0,
        ),
        Workload(
            name="random",
            title="Random tokens",
            summary="16 at once, random tokens: nothing to share and nothing to guess",
            prompts=_random,
            endpoint="completions",
            max_tokens=128,
            temperature=1.0,
        ),
        Workload(
            name="rate",
            title="Fixed rate",
            summary="Poisson arrivals for 60 s at 70 % of the rate that the server was just found to hold",
            prompts=_filler,
            requests=None,
            duration_s=60.0,
            rate_share=0.7,
        ),
        Workload(
            name="ladder",
            title="Ladder",
            summary="1, 2, 4 ... 128 at once, 10 s each, until throughput gains less than 3 %",
            prompts=_filler,
            requests=None,
            duration_s=10.0,
            concurrency=128,
            ladder=True,
        ),
    )
}
"""By name."""

FILE_WORKLOAD = Workload(
    name="file",
    title="File",
    summary="prompts from a file: JSONL, ShareGPT conversations, or a timed trace",
    prompts=_filler,
    requests=None,
    ignore_eos=False,
    equal_lengths=False,
)


def find_workload(name: str) -> Workload:
    """The workload of a name.

    Raises:
        UsageError: there is none.
    """
    if name == FILE_WORKLOAD.name:
        return FILE_WORKLOAD
    try:
        return WORKLOADS[name]
    except KeyError:
        otherwise = f"Choose one of: {', '.join(WORKLOADS)}. Load shapes are run with --shape NAME."
        raise UsageError(f"there is no workload {name!r}", nearest(name, WORKLOADS, otherwise)) from None


def _positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        wanted = "finite" if value == math.inf else "above 0"
        raise UsageError(f"{name} must be {wanted}, not {value:g}", "Correct it, or leave it out.")


def _writable(request: LoadRequest) -> None:
    """Runs are saved as UTF-8; the names of files, and words from a terminal, may be other bytes."""
    for name in ("label", "file", "model", "url", "ca_file"):
        value = getattr(request, name)
        try:
            (value or "").encode()
        except UnicodeEncodeError:
            raise UsageError(f"{name} is not UTF-8: {value!a}", "Rename it, or give it otherwise.") from None


def resolve(request: LoadRequest) -> Shape:
    """Settles every value of a test: the request's own, else the workload's.

    Raises:
        UsageError: the values make no test.
    """
    _writable(request)
    workload = (
        FILE_WORKLOAD if request.file and request.workload in ("", "demo", "file") else find_workload(request.workload)
    )
    if workload is FILE_WORKLOAD and not request.file:
        raise UsageError("the workload 'file' needs a file", "Give --file FILE.")
    if request.rate is not None and math.isinf(request.rate):
        raise UsageError("a rate of inf cannot be sent", "For every request at once: --arrival burst with -n N.")
    for name, value in (
        ("concurrency", request.concurrency),
        ("requests", request.requests),
        ("rate", request.rate),
        ("max_tokens", request.max_tokens),
        ("prompt_tokens", request.prompt_tokens),
        ("prefix_tokens", request.prefix_tokens),
        ("prefixes", request.prefixes),
        ("duration", request.duration_s),
        ("timeout", request.timeout_s),
        ("burstiness", request.burstiness),
        ("processes", request.processes),
        ("choices", request.choices),
        ("ramp", request.ramp_s),
        ("slo_ttft", request.slo_ttft_s),
        ("slo_tpot", request.slo_tpot_s),
        ("slo_e2e", request.slo_e2e_s),
    ):
        _positive(name, value)
    if request.warmup is not None and request.warmup < 0:
        raise UsageError("warmup cannot be negative", "Give 0 to send none.")
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise UsageError(f"a temperature of {request.temperature:g} is refused by servers", "Give 0 to 2.")
    if request.endpoint not in (None, "chat", "completions"):
        raise UsageError(f"there is no endpoint {request.endpoint!r}", "Choose chat or completions.")
    timed = request.duration_s is not None and request.requests is None
    requests = None if timed else request.requests or workload.requests
    duration = request.duration_s if request.duration_s is not None else (None if requests else workload.duration_s)
    if request.arrival not in (None, "burst"):
        raise UsageError(f"there is no arrival {request.arrival!r}", "Choose burst, or leave it out.")
    if workload.ladder and request.rate is not None:
        raise UsageError(
            "a ladder climbs by requests at once, and a rate sends by the clock",
            "Leave --rate out; --search finds the highest rate that holds.",
        )
    burst = request.arrival == "burst"
    if burst and (request.search or workload.ladder or workload.rate_share is not None):
        what = "search" if request.search else workload.name
        raise UsageError(f"a burst sends all at once, so a {what} has nothing to choose", "Leave --arrival out.")
    if burst and (requests is None or request.rate is not None):
        raise UsageError("a burst sends a number of requests at once", "Give requests, and neither rate nor duration.")
    if not workload.prefixes and (request.prefix_tokens or request.prefixes):
        raise UsageError(f"the workload {workload.name} has no shared prefixes", "Choose the workload prefix.")
    open_loop = burst or request.rate is not None
    concurrency = request.concurrency if open_loop else request.concurrency or workload.concurrency
    if not open_loop and request.burstiness is not None:
        raise UsageError("burstiness belongs to an open loop", "Give a rate too.")
    warmup = request.warmup if request.warmup is not None else min(concurrency or 16, 64 if open_loop else 10**6)
    return Shape(
        workload=workload.name,
        endpoint=request.endpoint or workload.endpoint,
        concurrency=concurrency,
        requests=requests,
        duration_s=duration,
        rate=request.rate,
        burstiness=request.burstiness or 1.0,
        max_tokens=request.max_tokens or workload.max_tokens,
        prompt_tokens=request.prompt_tokens or workload.prompt_tokens,
        prefix_tokens=request.prefix_tokens or workload.prefix_tokens,
        prefixes=request.prefixes or workload.prefixes,
        temperature=request.temperature if request.temperature is not None else workload.temperature,
        ignore_eos=request.ignore_eos if request.ignore_eos is not None else workload.ignore_eos,
        seed=request.seed if request.seed is not None else secrets.randbelow(2**31),
        warmup=warmup,
        timeout_s=request.timeout_s or 600.0,
        ramp_s=request.ramp_s or 0.0,
        choices=request.choices or 1,
        file=request.file,
        burst=burst,
    )


def warmup_shape(shape: Shape) -> Shape:
    """The same shape with other prompts."""
    return replace(shape, seed=shape.seed ^ 0x5EED_0F_3A)


def body(prompt: Prompt, shape: Shape, model: str, *, running_usage: bool) -> bytes:
    """The JSON of one request.

    Args:
        prompt: what to ask.
        shape: lengths and sampling.
        model: the served name.
        running_usage: ask for the token count with every event (vLLM's `continuous_usage_stats`).
    """
    max_tokens = prompt.max_tokens or shape.max_tokens
    options: dict[str, Any] = {"include_usage": True}
    if running_usage:
        options["continuous_usage_stats"] = True
    fields: dict[str, Any] = {"model": model}
    if prompt.messages is not None:
        fields["messages"] = list(prompt.messages)
    else:
        fields["prompt"] = list(prompt.token_ids) if prompt.token_ids is not None else prompt.text
    fields["max_tokens"] = max_tokens
    if shape.temperature is not None:
        fields["temperature"] = shape.temperature
    if shape.ignore_eos:
        # Both: a stop token must not end the answer, and servers that know only one of them still keep the length.
        fields["ignore_eos"] = True
        fields["min_tokens"] = max_tokens
    if shape.choices > 1:
        fields["n"] = shape.choices
    fields["stream"] = True
    fields["stream_options"] = options
    return json.dumps(fields, separators=(",", ":")).encode()


def settled(request: LoadRequest, shape: Shape, model: str) -> LoadRequest:
    """The request with the values that were really used."""
    return replace(
        request,
        workload=shape.workload,
        model=model,
        concurrency=shape.concurrency,
        requests=shape.requests,
        rate=shape.rate,
        burstiness=shape.burstiness if shape.rate is not None else None,
        max_tokens=shape.max_tokens,
        prompt_tokens=shape.prompt_tokens if shape.made_to_length else None,
        prefix_tokens=shape.prefix_tokens or None,
        prefixes=shape.prefixes or None,
        temperature=shape.temperature,
        ignore_eos=shape.ignore_eos,
        duration_s=shape.duration_s,
        seed=shape.seed,
        warmup=shape.warmup,
        endpoint=shape.endpoint,
        timeout_s=shape.timeout_s,
    )
