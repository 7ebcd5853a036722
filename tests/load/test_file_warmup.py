"""Warm-up for prompts from files: as long as they are, never one of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from load_helpers import MockProcess, StartMock, run_stage

from vtop.load import files
from vtop.load.progress import LoadRequest
from vtop.load.warmup import file_warmups
from vtop.load.workload import Prompt, resolve

LONG = "The quick brown fox jumps over the lazy dog while seven wizards mix a dozen jugs of liquor for the banquet. "


def prompts_and_warmups(path: Path, many: int = 40, **wishes: Any) -> tuple[list[Prompt], list[Prompt]]:
    shape, prompts = files.open_file(resolve(LoadRequest(url="http://x", file=str(path), seed=3, **wishes)))
    return prompts, list(itertools.islice(file_warmups(prompts, shape), many))


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def only_text(prompt: Prompt) -> str:
    assert prompt.messages is not None
    (message,) = prompt.messages
    return str(message["content"])


@pytest.mark.parametrize("unit", [LONG, "今天天气很好我们一起去公园散步吧", "x=1;y=2;print(x+y)\n"])
def test_texts_are_as_long_as_the_files_and_other_texts(tmp_path: Path, unit: str) -> None:
    rows = [{"prompt": unit * 3 + str(i), "output_tokens": 9} for i in range(20)]
    prompts, warm = prompts_and_warmups(write(tmp_path / "p.jsonl", *rows))
    measured = {only_text(prompt) for prompt in prompts}
    for prompt in warm:
        text = only_text(prompt)
        assert text not in measured
        assert 0.7 < len(text) / len(unit * 3) < 1.3
        assert prompt.max_tokens == 9
        assert not any(text[:6] == other[:6] for other in measured)
    assert len({only_text(prompt) for prompt in warm}) == len(warm)


def test_short_prompts_have_the_lengths_of_the_file_too(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "Hi"}, {"prompt": LONG * 30})
    _, warm = prompts_and_warmups(path)
    lengths = sorted(len(only_text(prompt)) for prompt in warm)
    assert lengths[0] == 6 and lengths[-1] > 2500


def test_token_ids_have_the_same_number_and_the_files_vocabulary(tmp_path: Path) -> None:
    rows = [{"prompt": list(range(i, i + 100))} for i in range(0, 2000, 100)]
    prompts, warm = prompts_and_warmups(write(tmp_path / "p.jsonl", *rows), endpoint="completions")
    known = {token for prompt in prompts for token in prompt.token_ids or ()}
    for prompt in warm:
        assert prompt.token_ids is not None and len(prompt.token_ids) == 100
        assert set(prompt.token_ids) <= known
        assert prompt.token_ids not in {other.token_ids for other in prompts}


def test_few_token_ids_do_not_come_out_as_the_files_own(tmp_path: Path) -> None:
    prompts, warm = prompts_and_warmups(write(tmp_path / "p.jsonl", {"prompt": [7, 7, 7]}), endpoint="completions")
    assert not {prompt.token_ids for prompt in warm} & {prompt.token_ids for prompt in prompts}


def test_roles_and_system_prompts_keep_their_place_and_lose_their_words(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": LONG * 4}, {"role": "user", "content": LONG}]
    _, warm = prompts_and_warmups(write(tmp_path / "p.jsonl", {"messages": chat}))
    for prompt in warm:
        assert prompt.messages is not None
        assert [message["role"] for message in prompt.messages] == ["system", "user"]
        assert all(message["content"] not in (LONG * 4, LONG) for message in prompt.messages)
        assert len(prompt.messages[0]["content"]) > 2 * len(prompt.messages[1]["content"])


def test_images_are_left_out_so_that_the_server_does_not_know_them(tmp_path: Path) -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:..."}},
        {"type": "text", "text": "What is this thing here?"},
    ]
    _, warm = prompts_and_warmups(write(tmp_path / "p.jsonl", {"messages": [{"role": "user", "content": parts}]}))
    assert all(isinstance(only_text(prompt), str) and "data:" not in only_text(prompt) for prompt in warm)


def test_conversations_are_warmed_up_at_every_length(tmp_path: Path) -> None:
    _, warm = prompts_and_warmups(write(tmp_path / "p.jsonl", {"turns": [LONG, LONG, LONG], "output_tokens": 20}))
    assert {len(prompt.messages or ()) for prompt in warm} == {1, 3, 5}
    assert not any(prompt.turns for prompt in warm)
    longest = max(warm, key=lambda prompt: len(prompt.messages or ()))
    assert [message["role"] for message in longest.messages or ()] == ["user", "assistant"] * 2 + ["user"]


def test_a_trace_is_warmed_up_with_its_lengths_and_without_its_times(tmp_path: Path) -> None:
    rows = [{"timestamp": i * 100, "input_length": 64 * (i + 1), "output_length": 5, "hash_ids": [i]} for i in range(5)]
    prompts, warm = prompts_and_warmups(write(tmp_path / "t.jsonl", *rows))
    heads = {(prompt.token_ids or ())[:16] for prompt in prompts}
    assert {len(prompt.token_ids or ()) for prompt in warm} == {64, 128, 192, 256, 320}
    assert not any((prompt.token_ids or ())[:16] in heads for prompt in warm)
    assert all(prompt.at_s is None for prompt in warm)


async def test_the_server_sees_no_measured_prompt_before_the_clock(mock_server: StartMock, tmp_path: Path) -> None:
    server: MockProcess = mock_server("--first", "0.02", "--step", "0.002")
    file = write(tmp_path / "p.jsonl", *({"prompt": f"{LONG}{i}"} for i in range(6)))
    driver, _ = await run_stage(
        server.url, "normal", workload="file", file=str(file), concurrency=3, warmup=5, max_tokens=3
    )
    assert (len(driver.warmup_records), len(driver.records)) == (5, 6)
    sent = [body["messages"][0]["content"] for body in server.seen()["bodies"]]
    warm, measured = sent[:5], sent[5:]
    assert sorted(measured) == [f"{LONG}{i}" for i in range(6)]
    assert not set(warm) & set(measured)
    assert all(0.7 < len(text) / len(LONG) < 1.3 for text in warm)
