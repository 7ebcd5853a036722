from __future__ import annotations

import itertools
import json
import random
import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from vtop.cli import build_parser
from vtop.errors import UsageError
from vtop.load.command import command_line
from vtop.load.progress import LoadRequest
from vtop.load.stage import prompts_of, warmup_prompts_of
from vtop.load.words import COMMON_WORDS, WordSource, learn_words, parse_tokens
from vtop.load.workload import LEAD, REPEAT_LEAD, WORKLOADS, body, resolve


def shape_of(**wishes: Any) -> Any:
    return resolve(LoadRequest(url="http://x", model="m", **wishes))


def text_of(prompt: Any) -> str:
    return prompt.text if prompt.text is not None else prompt.messages[0]["content"]


class FakeTokenizer:
    """A vocabulary in which every word after a space is one token, except some that take two."""

    def __init__(self, split: tuple[str, ...] = (), template: int = 9) -> None:
        self._split = split
        self._template = template
        self.calls = 0

    async def __call__(self, fields: Mapping[str, Any]) -> list[int] | None:
        self.calls += 1
        if "messages" in fields:
            return self._ids(fields["messages"][0]["content"]) + [0] * self._template
        return self._ids(fields["prompt"]) + ([] if fields.get("add_special_tokens") is False else [1])

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in text.split():
            ids += [hash(word) % 50_000] * (2 if word in self._split else 1)
        return ids


def test_every_workload_settles_and_makes_prompts() -> None:
    for name, workload in WORKLOADS.items():
        shape = shape_of(workload=name)
        assert workload.title and workload.summary
        prompts = list(itertools.islice(prompts_of(shape, WordSource()), 5))
        assert len({text_of(prompt) for prompt in prompts}) == 5, name


def test_demo_is_the_load_people_know() -> None:
    shape = shape_of(workload="demo")
    assert (shape.concurrency, shape.requests, shape.max_tokens, shape.temperature) == (16, 64, 150, 0.7)
    assert shape.endpoint == "chat" and not shape.ignore_eos


def test_seeds_are_fresh_unless_given_and_make_the_prompts() -> None:
    assert shape_of(workload="chat").seed != shape_of(workload="chat").seed
    words = WordSource()
    first, again = (
        [text_of(p) for p in itertools.islice(prompts_of(shape_of(workload="chat", seed=5), words), 3)]
        for _ in range(2)
    )
    assert first == again


def test_warm_up_prompts_occur_nowhere_in_the_test() -> None:
    shape = shape_of(workload="chat", seed=5)
    words = WordSource()
    test = {text_of(p) for p in itertools.islice(prompts_of(shape, words), 200)}
    warm = {text_of(p) for p in itertools.islice(warmup_prompts_of(shape, words), 16)}
    assert not test & warm


def test_prefixes_are_shared_by_groups_and_nothing_else() -> None:
    shape = shape_of(workload="prefix", seed=5)
    texts = [text_of(p) for p in itertools.islice(prompts_of(shape, WordSource()), 20)]
    assert len({text[:8000] for text in texts}) == 10
    assert texts[0][:8000] == texts[10][:8000]
    assert len(set(texts)) == 20


async def test_prompts_are_exact_in_the_servers_own_tokens() -> None:
    tokenizer = FakeTokenizer(split=("government", "technology", "pattern"))
    words = await learn_words(tokenizer, (LEAD, REPEAT_LEAD), chat=True)
    assert words.exact
    assert not set(words.words) & {"government", "technology"}
    assert len(words.words) > len(COMMON_WORDS) - 12
    assert tokenizer.calls < 40
    for name in ("chat", "long", "decode", "repeat"):
        shape = shape_of(workload=name)
        prompt = next(prompts_of(shape, words))
        ids = await tokenizer({"messages": prompt.messages})
        assert ids is not None
        assert len(ids) == shape.prompt_tokens == prompt.prompt_tokens
    prefix = shape_of(workload="prefix")
    ids = await tokenizer({"messages": next(prompts_of(prefix, words)).messages})
    assert ids is not None and len(ids) == 2048 + 128


def test_lengths_are_near_where_words_are_several_tokens() -> None:
    """The shared prefix counts in tokens, not in words: 2,048 + 128 tokens, not 3,500."""
    words = WordSource(tokens_per_word=2.8)
    drawn = [len(text_of(p).split()) for p in itertools.islice(prompts_of(shape_of(workload="prefix"), words), 3)]
    assert all(2000 <= 2.8 * count <= 2300 for count in drawn), drawn


async def test_a_small_vocabulary_with_some_whole_words_is_found() -> None:
    """Three quarters of the words spelt out in four tokens: the others still give exact lengths."""
    few = set(COMMON_WORDS[:64])

    async def tokenizer(fields: Mapping[str, Any]) -> list[int]:
        text = str(fields.get("prompt") or fields["messages"][0]["content"])
        return [number for word in text.split() for number in range(1 if word in few else 4)]

    words = await learn_words(tokenizer, (LEAD,), chat=True)
    assert words.ids is not None and set(words.words) <= few and len(words.words) >= 32


async def test_random_prompts_are_token_ids_the_server_knows() -> None:
    words = await learn_words(FakeTokenizer(), (LEAD,), chat=False)
    prompt = next(prompts_of(shape_of(workload="random"), words))
    assert prompt.token_ids is not None and len(prompt.token_ids) == 512
    assert words.ids is not None and set(prompt.token_ids) <= set(words.ids)


async def test_without_a_tokenizer_lengths_are_not_called_exact() -> None:
    async def none(fields: Mapping[str, Any]) -> None:
        return None

    words = await learn_words(none, (LEAD,), chat=True)
    assert not words.exact
    assert next(prompts_of(shape_of(workload="chat"), words)).prompt_tokens is None


async def test_a_vocabulary_of_characters_gives_up_after_one_call() -> None:
    calls = 0

    async def characters(fields: Mapping[str, Any]) -> list[int]:
        nonlocal calls
        calls += 1
        return list(range(len(str(fields.get("prompt", "")))))

    assert not (await learn_words(characters, (LEAD,), chat=True)).exact
    assert calls == 1


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"tokens": "a"}', b'{"tokens": [1, "b"]}', b"<html>"])
def test_an_answer_that_is_no_token_list_is_none(payload: bytes) -> None:
    assert parse_tokens(payload) is None


def test_the_body_asks_for_usage_and_fixes_the_length() -> None:
    shape = shape_of(workload="chat", max_tokens=7)
    fields = json.loads(body(next(prompts_of(shape, WordSource())), shape, "m", running_usage=True))
    assert fields["stream"] is True
    assert fields["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (fields["max_tokens"], fields["min_tokens"], fields["ignore_eos"]) == (7, 7, True)
    demo = shape_of(workload="demo")
    fields = json.loads(body(next(prompts_of(demo, WordSource())), demo, "m", running_usage=False))
    assert "ignore_eos" not in fields and "min_tokens" not in fields
    assert fields["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"workload": "chatt"}, "no workload 'chatt'"),
        ({"concurrency": 0}, "concurrency"),
        ({"requests": -1}, "requests"),
        ({"rate": 0.0}, "rate"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 3.0}, "temperature"),
        ({"endpoint": "embeddings"}, "endpoint"),
        ({"warmup": -1}, "warmup"),
        ({"burstiness": 2.0}, "open loop"),
        ({"workload": "file"}, "needs a file"),
        ({"arrival": "burst", "rate": 2.0}, "burst"),
        ({"arrival": "sometimes"}, "arrival"),
    ],
)
def test_impossible_wishes_are_refused_in_words(wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        shape_of(**wishes)


def test_a_duration_replaces_the_count() -> None:
    shape = shape_of(workload="chat", duration_s=5.0)
    assert (shape.requests, shape.duration_s) == (None, 5.0)
    assert shape_of(workload="chat", rate=2.0).concurrency is None


def test_the_repeat_command_names_what_was_asked_and_keeps_secrets_out() -> None:
    request = LoadRequest(
        workload="chat",
        url="http://h:1",
        model="m x",
        api_key="env:KEY",
        concurrency=4,
        slo_ttft_s=0.2,
        ignore_eos=False,
    )
    assert command_line(request) == (
        "vtop load chat --url http://h:1 --model 'm x' --api-key env:KEY -c 4 --slo-ttft 0.2 --no-ignore-eos"
    )
    by_name = LoadRequest(workload="demo", url="http://h:1", model="m", server="baseline")
    assert command_line(by_name) == "vtop load demo --server baseline"


def test_words_are_drawn_from_the_seed_alone() -> None:
    assert WordSource().draw(random.Random(1), 5) == WordSource().draw(random.Random(1), 5)


def test_the_repeat_command_loses_no_digit_and_is_read_back_as_it_was() -> None:
    request = LoadRequest(rate=10 / 3, duration_s=1_234_567.0, slo_ttft_s=0.05, label="--fast", file="-f.jsonl")
    words = shlex.split(command_line(request))
    found = build_parser().parse_args(words[1:])
    assert (found.rate, found.duration, found.slo_ttft) == (10 / 3, 1_234_567.0, 0.05)
    assert (found.label, found.file) == ("--fast", "-f.jsonl")
    assert command_line(LoadRequest(rate=20.0)) == "vtop load demo --rate 20"


@pytest.mark.parametrize(
    "wishes", [{"workload": "ladder"}, {"workload": "rate"}, {"workload": "chat", "search": True, "slo_ttft_s": 1.0}]
)
def test_a_burst_is_refused_where_a_rate_is_sought(wishes: dict[str, Any]) -> None:
    """Each step would have sent one request."""
    with pytest.raises(UsageError, match="a burst sends all at once"):
        shape_of(arrival="burst", requests=50, **wishes)


def test_a_ladder_at_a_rate_is_refused() -> None:
    """Its steps would differ in nothing, and its plateau would be the rate."""
    with pytest.raises(UsageError, match="a rate sends by the clock"):
        shape_of(workload="ladder", rate=5.0)


@pytest.mark.parametrize("name", ["label", "file"])
def test_words_that_no_saved_run_could_hold_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is not UTF-8: 'a.udcff'"):
        resolve(LoadRequest(**{"url": "http://x", name: "a\udcff"}))
