from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtop.errors import UsageError
from vtop.load import files
from vtop.load.progress import LoadRequest
from vtop.load.workload import Prompt, Shape, resolve, settled


def opened(path: Path, **wishes: Any) -> tuple[Shape, list[Prompt]]:
    shape, prompts = files.open_file(resolve(LoadRequest(url="http://x", file=str(path), seed=3, **wishes)))
    return shape, list(prompts)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_prompts_with_their_own_lengths(tmp_path: Path) -> None:
    shape, prompts = opened(write(tmp_path / "p.jsonl", {"prompt": "Hi", "output_tokens": 9}, {"prompt": "Ho"}))
    assert (shape.requests, shape.endpoint) == (2, "chat")
    assert [(p.messages, p.max_tokens) for p in prompts] == [
        (({"role": "user", "content": "Hi"},), 9),
        (({"role": "user", "content": "Ho"},), None),
    ]


def test_plain_prompts_for_completions(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "Hi"}, {"prompt": [1, 2, 3]})
    shape, prompts = opened(path, endpoint="completions")
    assert shape.endpoint == "completions"
    assert [(p.text, p.token_ids) for p in prompts] == [("Hi", None), (None, (1, 2, 3))]


def test_sharegpt_conversations_become_turns(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    talk = [{"from": "human", "value": "A"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "C"}]
    path.write_text(json.dumps([{"id": "1", "conversations": talk}]), encoding="utf-8")
    _, (prompt,) = opened(path)
    assert prompt.messages == ({"role": "user", "content": "A"},)
    assert prompt.turns == ("C",)


def test_a_mooncake_trace_keeps_its_times_lengths_and_shared_blocks(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace.jsonl",
        {"timestamp": 2000, "input_length": 700, "output_length": 5, "hash_ids": [7, 8]},
        {"timestamp": 2500, "input_length": 600, "output_length": 6, "hash_ids": [7, 9]},
    )
    shape, prompts = opened(path)
    assert shape.trace and shape.open_loop and shape.endpoint == "completions"
    assert [p.at_s for p in prompts] == [0.0, 0.5]
    first, second = (p.token_ids for p in prompts)
    assert first is not None and second is not None
    assert (len(first), len(second)) == (700, 600)
    assert first[:512] == second[:512] and first[512:600] != second[512:600]
    assert [p.max_tokens for p in prompts] == [5, 6]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no requests"),
        ("{broken\n", "line 1 is not JSON"),
        ('{"prompt": "a"}\n{"promt": "b"}\n', "line 2: no request in it"),
        ("[1, 2]", "entry 1 is not an object"),
        ("[{]", "is not JSON"),
        ('{"prompt": "a"}\n{"prompt": [1]}\n', "mixes chats and plain prompts"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        opened(path)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        opened(tmp_path / "none.jsonl")
    binary = tmp_path / "b.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        opened(binary)


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x7f"])
def test_a_line_ends_where_json_lines_end_not_at_every_separator_of_unicode(tmp_path: Path, character: str) -> None:
    path = tmp_path / "p.jsonl"
    rows = [{"prompt": f"a{character}b"}, {"prompt": "c"}]
    text = "\r\n\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    _, prompts = opened(path)
    assert [prompt.messages for prompt in prompts] == [({"role": "user", "content": row["prompt"]},) for row in rows]


def test_prompts_of_a_file_are_not_said_to_have_the_length_of_the_workload(tmp_path: Path) -> None:
    """`vtop load chat --file FILE`: at once and answers as of `chat`, prompts as they are."""
    shape, _ = opened(write(tmp_path / "p.jsonl", {"prompt": "Hi"}), workload="chat")
    assert (shape.workload, shape.max_tokens, shape.made_to_length) == ("chat", 150, False)
    assert settled(LoadRequest(file="p.jsonl"), shape, "m").prompt_tokens is None
