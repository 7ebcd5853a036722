"""Token events that are read by their form give what the JSON decoder gives."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop.load.answer import _decode, read_answer
from vtop.load.event_form import EventForm, learn

TEXTS = st.one_of(
    st.sampled_from(
        [" w", "", "a", '"', "\\", '\\"', '"content":"', '","', "}]}", "é", "\U0001f680", "\n", "\x7f", "0"]
    ),
    st.text(max_size=6),
)


def event(text: str | None, *, count: int | None = None, **more: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    fields: dict[str, Any] = {"id": "chatcmpl-1", "created": 17, "choices": [choice]}
    if count is not None:
        fields["usage"] = {"prompt_tokens": 20, "total_tokens": 20 + count, "completion_tokens": count}
    choice.update({key: value for key, value in more.items() if key in choice})
    fields.update({key: value for key, value in more.items() if key not in choice})
    return fields


@st.composite
def streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Mostly alike events, with every kind of other among them."""
    counted = draw(st.sampled_from(["all", "some", "none"]))
    key = draw(st.sampled_from(["chat", "completions"]))
    made: list[dict[str, Any]] = []
    for number in range(1, draw(st.integers(1, 14))):
        with_usage = counted == "all" or (counted == "some" and draw(st.booleans()))
        count = draw(st.sampled_from([number, number, 2 * number, 1, 0])) if with_usage else None
        made.append(event(draw(TEXTS), count=count))
        choice = made[-1]["choices"][0]
        if key == "completions":
            choice["text"] = choice.pop("delta")["content"]
        match draw(st.sampled_from(["plain"] * 12 + ["index", "end", "error", "think", "prompt", "cached", "late"])):
            case "index":
                choice["index"] = 1
            case "end":
                choice["finish_reason"] = "stop"
            case "error":
                made[-1]["error"] = {"message": "died"}
            case "think":
                choice.pop("text", None)
                choice["delta"] = {"content": None, "reasoning": "hm"}
            case "prompt" if "usage" in made[-1]:
                made[-1]["usage"]["prompt_tokens"] = 21
            case "cached" if "usage" in made[-1]:
                made[-1]["usage"]["prompt_tokens_details"] = {"cached_tokens": number}
            case "late":
                made[-1]["created"] = 18
    return made


@given(streams(), st.booleans(), st.booleans(), st.integers(1, 200))
def test_whole_events_and_cut_events_give_the_same_answer(
    made: list[dict[str, Any]], compact: bool, escaped: bool, cut: int
) -> None:
    separators = (",", ":") if compact else (", ", ": ")
    whole, parts = [], []
    for number, fields in enumerate(made):
        text = json.dumps(fields, separators=separators, ensure_ascii=escaped)
        data = b"data: " + text.encode("utf-8", "replace") + b"\n\n"
        whole.append((float(number), data))
        at = min(cut, len(data) - 1)
        # Half an event is of no form: these all go through the decoder.
        parts += [(float(number), data[:at]), (float(number), data[at:])]
    assert read_answer(whole, ended_in_order=True) == read_answer(parts, ended_in_order=True)


def form_of(fields: dict[str, Any], text: str) -> EventForm | None:
    return learn(json.dumps(fields).encode(), text, _decode)


def read(form: EventForm, fields: dict[str, Any]) -> tuple[str, int | None] | None:
    return form.read(b"data: " + json.dumps(fields).encode() + b"\n\n")


def test_a_form_reads_text_and_running_count() -> None:
    form = form_of(event(" a", count=3), " a")
    assert form is not None
    assert read(form, event(" bc", count=12)) == (" bc", 12)
    plain = form_of(event(" a"), " a")
    assert plain is not None
    assert read(plain, event(" bc")) == (" bc", None)


@pytest.mark.parametrize(
    "other",
    [
        event('"'),
        event("é"),
        event("a", finish_reason="stop"),
        event("a", index=1),
        event("a", id="chatcmpl-2"),
        event("a", count=1),
        event("a", error={"message": "died"}),
    ],
)
def test_what_is_not_of_the_form_is_left_to_the_decoder(other: dict[str, Any]) -> None:
    form = form_of(event(" a"), " a")
    assert form is not None
    assert read(form, other) is None


def test_bytes_shorter_than_the_form_are_not_of_it() -> None:
    form = EventForm(b'data: {"x":"', b'"}\n\n', None)
    assert form.read(b'data: {"x":"}\n\n') is None
    assert form.read(b'data: {"x":""}\n\n') == ("", None)


@pytest.mark.parametrize("number", ["1.5", "007", "-3", "1e3", "12345678901234567890"])
def test_a_count_that_is_no_count_is_left_to_the_decoder(number: str) -> None:
    form = form_of(event(" a", count=3), " a")
    assert form is not None
    data = json.dumps(event(" a", count=3)).replace('"completion_tokens": 3', f'"completion_tokens": {number}')
    assert form.read(b"data: " + data.encode() + b"\n\n") is None


def test_the_same_key_elsewhere_is_not_taken_for_the_text() -> None:
    """The first `content` is not the one that the decoder reads."""
    data = b'{"x":{"content":"a"},"choices":[{"index":0,"delta":{"content":"a"}}]}'
    assert learn(data, "a", _decode) is None
    twice = b'{"choices":[{"delta":{"content":"a","content":"a"}}]}'
    assert learn(twice, "a", _decode) is None


def test_a_count_that_is_written_twice_is_not_learnt() -> None:
    data = b'{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1,"completion_tokens":2}}'
    assert learn(data, "a", _decode) is None


def test_an_event_of_several_lines_is_not_learnt() -> None:
    assert learn(b'{"choices":[{"delta":{"content":"a"}}],\n"usage":null}', "a", _decode) is None


def test_learning_from_bytes_that_are_no_event_fails_quietly() -> None:
    def refuse(data: bytes) -> Any:
        raise msgspec.DecodeError("no")

    assert learn(b'{"content":"a"}', "a", refuse) is None
