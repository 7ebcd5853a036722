"""Workloads from files: JSONL prompts, ShareGPT conversations, several turns, timed traces."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vtop.errors import UsageError
from vtop.load.warmup import ANY_IDS
from vtop.load.workload import Prompt, Shape, chat_message, find_workload

BLOCK_TOKENS = 512
"""Tokens that one `hash_ids` entry of a Mooncake trace stands for."""


def open_file(shape: Shape) -> tuple[Shape, list[Prompt]]:
    """Reads the shape's file; settles how many requests there are and whether the file says when they leave.

    Raises:
        UsageError: the file cannot be read, or a line of it is no request.
    """
    assert shape.file is not None
    prompts = read_prompts(Path(shape.file), shape)
    count = min(shape.requests or len(prompts), len(prompts))
    timed = all(prompt.at_s is not None for prompt in prompts)
    trace = timed and shape.rate is None and not shape.burst
    # The number is that of a step where there are several, and each goes on in the file.
    kept = prompts if find_workload(shape.workload).ladder else prompts[:count]
    if trace:
        origin = min(prompt.at_s or 0.0 for prompt in kept)
        kept = sorted((replace(p, at_s=(p.at_s or 0.0) - origin) for p in kept), key=lambda p: p.at_s or 0.0)
    endpoint = "completions" if any(p.messages is None for p in kept) else "chat"
    settled = replace(
        shape,
        requests=count,
        file_prompts=len(kept),
        duration_s=None if trace else shape.duration_s,
        trace=trace,
        endpoint=endpoint,
        concurrency=None if trace else shape.concurrency,
    )
    return settled, kept


def digest_of(path: str) -> str:
    """Tells whether two tests had the same file, wherever it lay."""
    return hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()[:16]


def read_prompts(path: Path, shape: Shape) -> list[Prompt]:
    """Every request of a file.

    Raises:
        UsageError: see `open_file`.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the path.") from error
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text", "Save it as UTF-8 JSONL.") from None
    prompts: list[Prompt] = []
    for where, row in _rows(path, text):
        prompt = _prompt(row, shape)
        if prompt is None:
            raise UsageError(
                f"{path}, {where}: no request in it",
                'A line holds "prompt", "messages", "turns", "conversations", or "timestamp" with "input_length".',
            )
        prompts.append(prompt)
    if not prompts:
        raise UsageError(f"{path} holds no requests", "Write one JSON object a line.")
    kinds = {prompt.messages is None for prompt in prompts}
    if len(kinds) > 1:
        raise UsageError(f"{path} mixes chats and plain prompts", "Use one kind a file.")
    return prompts


def _rows(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    stripped = text.lstrip("\ufeff \t\r\n")
    if stripped.startswith("["):
        try:
            values: Sequence[Any] = json.loads(stripped)
        except ValueError as error:
            raise UsageError(f"{path} is not JSON: {error}", "Correct it there.") from None
        named = [(f"entry {i + 1}", value) for i, value in enumerate(values)]
    else:
        named = []
        for number, line in enumerate(stripped.split("\n"), 1):
            if not line.strip():
                continue
            try:
                named.append((f"line {number}", json.loads(line)))
            except ValueError as error:
                raise UsageError(f"{path}, line {number} is not JSON: {error}", "Correct that line.") from None
    for where, value in named:
        if not isinstance(value, dict):
            raise UsageError(f"{path}, {where} is not an object", "Write one JSON object a line.")
        yield where, value


def _count(row: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _prompt(row: Mapping[str, Any], shape: Shape) -> Prompt | None:
    length = _count(row, "max_tokens", "output_tokens", "output_len", "output_length")
    stamp = row.get("timestamp")
    at = stamp / 1000.0 if isinstance(stamp, int | float) and not isinstance(stamp, bool) else None
    chat = shape.endpoint == "chat"
    text = row.get("prompt")
    if isinstance(text, str) and text:
        if chat:
            return Prompt(messages=chat_message(text), max_tokens=length, at_s=at)
        return Prompt(text=text, max_tokens=length, at_s=at)
    if isinstance(text, list) and text and all(isinstance(token, int) for token in text):
        return Prompt(token_ids=tuple(text), max_tokens=length, at_s=at, prompt_tokens=len(text))
    messages = row.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(m, dict) and "role" in m for m in messages):
        return Prompt(messages=tuple(messages), max_tokens=length, at_s=at)
    turns = row.get("turns")
    if isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns):
        return Prompt(messages=chat_message(turns[0]), turns=tuple(turns[1:]), max_tokens=length, at_s=at)
    said = row.get("conversations", row.get("conversation"))
    if isinstance(said, list):
        human = [
            str(part.get("value", part.get("content")))
            for part in said
            if isinstance(part, dict) and part.get("from", part.get("role")) in ("human", "user")
        ]
        if human:
            return Prompt(messages=chat_message(human[0]), turns=tuple(human[1:]), max_tokens=length, at_s=at)
    size = _count(row, "input_length", "input_len", "prompt_tokens")
    if size is not None:
        ids = _trace_ids(size, row.get("hash_ids"), shape.seed, row)
        return Prompt(token_ids=ids, max_tokens=length, at_s=at, prompt_tokens=size)
    return None


def _trace_ids(size: int, hashes: Any, seed: int, row: Mapping[str, Any]) -> tuple[int, ...]:
    """Token ids in which equal `hash_ids` give equal blocks, so that prefixes are shared as in the trace.

    The trace says which blocks are alike, not what they hold.
    """
    ids: list[int] = []
    for value in hashes if isinstance(hashes, list) else ():
        ids += random.Random(f"{seed}:{value}").choices(ANY_IDS, k=min(BLOCK_TOKENS, size - len(ids)))
        if len(ids) >= size:
            break
    if len(ids) < size:
        tail = random.Random(f"{seed}:{json.dumps(row, sort_keys=True)}")
        ids += tail.choices(ANY_IDS, k=size - len(ids))
    return tuple(ids)
