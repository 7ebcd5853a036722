"""Recorded streams with their right values: once from their recorded times exactly, once over real sockets."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_helpers import DATA, replaying, send

from vtop.load.answer import Answer, read_answer, tpot_by_choice_s, tpot_s, verdict

CASES: list[dict[str, Any]] = json.loads((DATA / "streams.json").read_text(encoding="utf-8"))
NOTES = {"no_terminator": "no terminator"}
SPEED = 8.0


def recorded(case: dict[str, Any]) -> list[tuple[float, bytes]]:
    data = (DATA / f"{case['name']}.sse").read_bytes()
    offsets = [0, *(until for _, until in case["reads_ms_offset"])]
    pieces = [data[a:b] for a, b in pairwise(offsets)]
    return [(at / 1000.0, piece) for (at, _), piece in zip(case["reads_ms_offset"], pieces, strict=True)]


def between(value: float | None, expected: float | list[float]) -> bool:
    low, high = expected if isinstance(expected, list) else (expected, expected)
    return value is not None and low - 1e-6 <= value * 1000 <= high + 1e-6


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_recorded_stream_gives_the_right_numbers(case: dict[str, Any]) -> None:
    expect = case["expect"]
    answer = read_answer(recorded(case), ended_in_order=True)
    failure, _, note = verdict(answer, ended_in_order=True)
    assert (not failure) == expect["ok"]
    if "reason" in expect:
        assert failure == expect["reason"]
        assert len(answer.token_stamps) == expect["partial_tokens"]
    if "error_code" in expect:
        assert answer.error_code == str(expect["error_code"])
    if "note" in expect:
        assert note == NOTES[expect["note"]]
    if "ttft_ms" in expect:
        assert between(answer.token_stamps[0], expect["ttft_ms"])
    if "last_token_ms" in expect:
        assert between(answer.token_stamps[-1], expect["last_token_ms"])
    if "tpot_ms" in expect:
        assert between(tpot_s(answer), expect["tpot_ms"])
    if expect["ok"]:
        assert answer.output_tokens == expect["output_tokens"]
    _check_contents(answer, expect)


def _check_contents(answer: Answer, expect: dict[str, Any]) -> None:
    if "finish_reason" in expect:
        assert answer.finish_reason == expect["finish_reason"]
    if "text" in expect:
        assert answer.text == expect["text"]
    if "reasoning_text" in expect:
        assert answer.reasoning == expect["reasoning_text"]
        assert answer.first_answer_stamp is None
    if "tool_name" in expect:
        assert answer.tool_calls == {0: [expect["tool_name"], expect["tool_arguments"]]}
    if "content_chunks" in expect:
        assert len(answer.token_stamps) == expect["content_chunks"]
    if "tpot_ms_per_choice" in expect:
        assert tpot_s(answer) is None
        per_choice = {str(k): round(v * 1000, 6) for k, v in tpot_by_choice_s(answer).items()}
        assert per_choice == expect["tpot_ms_per_choice"]
        assert {str(k): v for k, v in answer.texts.items()} == expect["texts"]


OVER_SOCKETS = [(case, "eof") for case in CASES] + [(c, "reset") for c in CASES if c["name"] == "cut-without-end"]


@pytest.mark.parametrize(("case", "end"), OVER_SOCKETS, ids=lambda v: v if isinstance(v, str) else v["name"])
async def test_recorded_stream_over_a_socket(case: dict[str, Any], end: str) -> None:
    expect = case["expect"]
    reads = [(at / SPEED, data) for at, data in recorded(case)]
    async with replaying(reads, end) as (url, replay):
        (record,) = await send(url, "any", requests=1, concurrency=1)
    assert record.ok == expect["ok"]
    assert record.failure == expect.get("reason", "")
    if expect["ok"]:
        assert record.output_tokens == expect["output_tokens"]
    if "ttft_ms" not in expect:
        return
    # The client cannot see a token before the server wrote it, and sees it long before the stream's next second.
    low = expect["ttft_ms"] if isinstance(expect["ttft_ms"], int | float) else expect["ttft_ms"][0]
    index = next(i for i, (at, _) in enumerate(reads) if at * SPEED * 1000 >= low - 1e-6)
    assert record.first_token_s is not None
    assert replay.written_s[index] - 0.001 <= record.first_token_s
    assert record.ttft_s is not None
    assert record.ttft_s >= low / 1000 / SPEED - 0.005


def _token(text: str, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({"id": "1", "choices": [choice], **more}, ensure_ascii=False).encode() + b"\n\n"


TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(['"', "\\", '\\"', '"content": "', " w", "", "é\U0001f680"]))


@given(st.lists(TEXTS, max_size=12))
def test_whatever_the_text_holds_it_comes_out_as_json_says(texts: list[str]) -> None:
    events = [_token(text) for text in texts]
    answer = read_answer([(float(i), event) for i, event in enumerate(events)])
    assert answer.text == "".join(texts)
    assert answer.token_stamps == [float(i) for i, text in enumerate(texts) if text]


def test_an_error_beside_choices_ends_the_answer() -> None:
    events = [_token("a"), _token("b"), _token("c", error={"message": "died"}), _token("d")]
    answer = read_answer([(float(i), event) for i, event in enumerate(events)])
    assert (answer.text, answer.error) == ("ab", "died")
