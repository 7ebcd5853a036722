"""What one streamed answer said: its stamped bytes to tokens, usage, ends and errors (definitions of the numbers).

TTFT: arrival of the first event that carries a generated token (text, reasoning or a tool call; or, where the server
sends its running usage with every event, the first event in which that count rises) minus the write of the request.
TPOT: (last token event - first token event) / (n - 1), n = `usage.completion_tokens`; unknown without usage, for one
token, and for a request with several choices. E2E: last token event minus the write of the request.

A request succeeded only with status 200, a finish_reason other than `abort` or `error` for every choice, no error
event, and `[DONE]`. One exception, applied to every run alike: a body that ended in order after finish_reason and
usage, where only `[DONE]` is missing, is complete and carries the note `no terminator`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from vtop.load.event_form import EventForm, learn
from vtop.load.sse import SseParser

FAILED_ENDS = frozenset({"abort", "error"})
"""finish_reasons that say the server gave up."""


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Any = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None
    code: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class Answer(msgspec.Struct, kw_only=True):
    """What came out of one stream. Times are stamps of the same clock as the reads."""

    token_stamps: list[float] = []
    """When each event with generated tokens was complete."""
    token_counts: list[int] | None = None
    """Tokens of each such event, where the running usage tells."""
    token_choices: list[int] | None = None
    """The choice of each such event; only with several choices."""
    first_answer_stamp: float | None = None
    """The first text or tool call, when reasoning came before it or instead of it."""
    reasoning_seen: bool = False
    text: str = ""
    reasoning: str = ""
    texts: dict[int, str] = {}
    """By choice; only with several choices."""
    tool_calls: dict[int, list[str]] = {}
    """[name, arguments] by index."""
    finish_reasons: dict[int, str] = {}
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    done: bool = False
    error: str = ""
    error_code: str = ""
    malformed: bool = False
    events: int = 0

    @property
    def finish_reason(self) -> str | None:
        """The first choice's."""
        return self.finish_reasons.get(min(self.finish_reasons)) if self.finish_reasons else None


def error_words(body: Any) -> tuple[str, str]:
    """The message and code of an error body of any of the usual shapes."""
    if isinstance(body, dict):
        inner = body.get("error", body.get("detail"))
        if isinstance(inner, dict):
            message = inner.get("message") or inner.get("type") or json.dumps(inner)
            code = inner.get("code") or inner.get("type") or ""
            return str(message), str(code)
        if inner:
            return inner if isinstance(inner, str) else json.dumps(inner), str(body.get("code") or "")
        if body.get("message"):
            return str(body["message"]), str(body.get("code") or "")
    return (body if isinstance(body, str) else json.dumps(body)), ""


def read_answer(
    reads: Iterable[tuple[float, bytes]], *, ended_in_order: bool = False, keep_text: bool = True
) -> Answer:
    """Reads a whole stream from its stamped reads.

    Args:
        reads: (stamp, bytes) in order of arrival; an event counts at the read that completes it.
        ended_in_order: the body ended as HTTP says it should, so an event without its blank line still counts.
        keep_text: collect the generated text.
    """
    parser = SseParser()
    reader = _Reader(keep_text)
    stamp = 0.0
    for stamp, chunk in reads:
        if reader.form is not None and parser.between and reader.repeated(stamp, chunk):
            continue
        for data in parser.feed(chunk):
            reader.event(stamp, data)
    if ended_in_order:
        for data in parser.close():
            reader.event(stamp, data)
    return reader.finish()


class _Reader:
    def __init__(self, keep_text: bool) -> None:
        self.form: EventForm | None = None
        """How the stream's token events look, once that is known."""
        self._may_learn = 4
        self._keep_text = keep_text
        self._answer = Answer()
        self._counts: list[int] = []
        self._choices: list[int] = []
        self._running: int | None = None
        self._all_counted = True
        self._first_text: list[str] = []
        self._texts: dict[int, list[str]] = {0: self._first_text}
        self._reasoning: list[str] = []

    def event(self, stamp: float, data: bytes) -> None:
        answer = self._answer
        if answer.done or answer.error:
            return
        if data[:6] == b"[DONE]":
            answer.done = True
            self.form = None
            return
        answer.events += 1
        try:
            event = _decode(data)
        except msgspec.DecodeError:
            # A shape that vLLM never sends is still an answer if it is JSON; other bytes are not.
            try:
                event = msgspec.convert(_tolerant(json.loads(data)), _Event)
            except (ValueError, TypeError, msgspec.ValidationError):
                answer.malformed = True
                return
        choices = event.choices
        bare = event.usage is None and event.error is None and choices is not None and len(choices) == 1
        if bare and choices is not None and self._plain_token(stamp, choices[0]):
            if self._may_learn:
                self._learn(data, choices[0])
            return
        if event.error or event.object == "error":
            raw = {"error": event.error} if event.error else {"message": event.message, "code": event.code}
            answer.error, answer.error_code = error_words(raw)
            self.form = None
            return
        usage = event.usage
        if usage is not None:
            if usage.prompt_tokens is not None and usage.prompt_tokens != answer.prompt_tokens:
                answer.prompt_tokens = usage.prompt_tokens
                self.form = None
            if usage.completion_tokens is not None:
                answer.output_tokens = usage.completion_tokens
            if isinstance(usage.prompt_tokens_details, dict):
                cached = usage.prompt_tokens_details.get("cached_tokens")
                if isinstance(cached, int) and cached != answer.cached_tokens:
                    answer.cached_tokens = cached
                    self.form = None
        if choices:
            self._choices_of(stamp, choices, None if usage is None else usage.completion_tokens)
            if self._may_learn and len(choices) == 1 and _is_plain(choices[0]):
                self._learn(data, choices[0])

    def _learn(self, data: bytes, choice: _Choice) -> None:
        """Tries to take the form of this event for that of the stream's others."""
        self._may_learn -= 1
        found = learn(data, choice.text if choice.delta is None else choice.delta.content, _decode)
        if found is not None:
            self.form = found

    def repeated(self, stamp: float, chunk: bytes) -> bool:
        """Takes in a read that is one event of the known form; False if it is anything else."""
        assert self.form is not None
        found = self.form.read(chunk)
        if found is None:
            return False
        text, running = found
        answer = self._answer
        answer.events += 1
        rose = 0
        if running is not None:
            rose = running if self._running is None else max(0, running - self._running)
            self._running = answer.output_tokens = running
        if text:
            if answer.first_answer_stamp is None:
                answer.first_answer_stamp = stamp
            if self._keep_text:
                self._first_text.append(text)
        if text or rose:
            answer.token_stamps.append(stamp)
            self._choices.append(0)
            self._counts.append(rose)
            if running is None:
                self._all_counted = False
        return True

    def _plain_token(self, stamp: float, choice: _Choice) -> bool:
        """Takes in the most frequent event, text and nothing else; False if it is any other."""
        if not _is_plain(choice):
            return False
        answer = self._answer
        if answer.first_answer_stamp is None:
            answer.first_answer_stamp = stamp
        answer.token_stamps.append(stamp)
        self._choices.append(0)
        self._counts.append(0)
        self._all_counted = False
        if self._keep_text:
            self._first_text.append(choice.text if choice.delta is None else choice.delta.content)
        return True

    def _choices_of(self, stamp: float, choices: list[_Choice], running: int | None) -> None:
        answer = self._answer
        rose = 0
        if running is not None:
            if self._running is not None:
                rose = max(0, running - self._running)
            elif not choices[0].finish_reason:
                rose = running
            self._running = running
        for choice in choices:
            generated = self._content_of(stamp, choice)
            if choice.finish_reason:
                answer.finish_reasons[choice.index] = str(choice.finish_reason)
            if generated or rose:
                answer.token_stamps.append(stamp)
                self._choices.append(choice.index)
                self._all_counted = self._all_counted and running is not None
                self._counts.append(rose)
                rose = 0

    def _content_of(self, stamp: float, choice: _Choice) -> bool:
        answer = self._answer
        delta = choice.delta
        if delta is None:
            text, thought, tools = choice.text, None, None
        else:
            text = delta.content
            thought = delta.reasoning or delta.reasoning_content
            tools = delta.tool_calls or delta.function_call
        if not (text or thought or tools):
            return False
        if thought:
            answer.reasoning_seen = True
            if self._keep_text:
                self._reasoning.append(str(thought))
        if (text or tools) and answer.first_answer_stamp is None:
            answer.first_answer_stamp = stamp
        if text and self._keep_text:
            self._texts.setdefault(choice.index, []).append(text if isinstance(text, str) else json.dumps(text))
        if isinstance(tools, list):
            for call in tools:
                self._tool_call(call)
        return True

    def _tool_call(self, call: Any) -> None:
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            return
        entry = self._answer.tool_calls.setdefault(int(call.get("index") or 0), ["", ""])
        entry[0] = call["function"].get("name") or entry[0]
        entry[1] += call["function"].get("arguments") or ""

    def finish(self) -> Answer:
        answer = self._answer
        texts = {index: "".join(parts) for index, parts in sorted(self._texts.items()) if parts}
        answer.text = texts[min(texts)] if texts else ""
        answer.reasoning = "".join(self._reasoning)
        if len(set(self._choices)) > 1:
            answer.texts = texts
            answer.token_choices = self._choices
        if self._counts and self._all_counted:
            answer.token_counts = self._counts
        return answer


def _is_plain(choice: _Choice) -> bool:
    """Text of the first choice and nothing else: the most frequent event."""
    delta = choice.delta
    if choice.finish_reason or choice.index:
        return False
    if delta is None:
        return type(choice.text) is str and choice.text != ""
    return (
        type(delta.content) is str
        and delta.content != ""
        and not (delta.reasoning or delta.reasoning_content or delta.tool_calls or delta.function_call)
    )


def _tolerant(value: Any) -> Any:
    """Drops parts of an event whose types no reader could use, so that the rest still counts."""
    if not isinstance(value, dict):
        raise TypeError("an event is an object")
    choices = value.get("choices")
    if isinstance(choices, list):
        value["choices"] = [
            {
                **choice,
                "index": choice.get("index") if isinstance(choice.get("index"), int) else 0,
                "delta": choice.get("delta") if isinstance(choice.get("delta"), dict) else None,
            }
            for choice in choices
            if isinstance(choice, dict)
        ]
    else:
        value["choices"] = None
    usage = value.get("usage")
    counts = ("prompt_tokens", "completion_tokens")
    value["usage"] = (
        {key: usage[key] for key in counts if isinstance(usage.get(key), int)} if isinstance(usage, dict) else None
    )
    return value


def tpot_s(answer: Answer) -> float | None:
    """Seconds per output token after the first, by the definition at the top of this module."""
    stamps = answer.token_stamps
    if answer.token_choices is not None or answer.output_tokens is None or answer.output_tokens < 2 or len(stamps) < 2:
        return None
    return (stamps[-1] - stamps[0]) / (answer.output_tokens - 1)


def tpot_by_choice_s(answer: Answer) -> dict[int, float]:
    """TPOT of each of several choices, where the tokens of each are known (running usage, or one token an event)."""
    if answer.token_choices is None or answer.output_tokens is None:
        return {}
    counts = answer.token_counts or [1] * len(answer.token_stamps)
    if sum(counts) != answer.output_tokens:
        return {}
    result: dict[int, float] = {}
    for choice in sorted(set(answer.token_choices)):
        mine = [i for i, index in enumerate(answer.token_choices) if index == choice]
        tokens = sum(counts[i] for i in mine)
        if tokens > 1:
            result[choice] = (answer.token_stamps[mine[-1]] - answer.token_stamps[mine[0]]) / (tokens - 1)
    return result


def gaps_s(answer: Answer) -> list[float]:
    """Seconds between consecutive token events of the same choice (chunk gaps; ITL where each carries one token)."""
    if answer.token_choices is None:
        stamps = answer.token_stamps
        return [later - earlier for earlier, later in itertools.pairwise(stamps)]
    last: dict[int, float] = {}
    gaps: list[float] = []
    for stamp, choice in zip(answer.token_stamps, answer.token_choices, strict=True):
        if choice in last:
            gaps.append(stamp - last[choice])
        last[choice] = stamp
    return gaps


def verdict(answer: Answer, *, ended_in_order: bool) -> tuple[str, str, str]:
    """(cause of failure or "", detail, note) for an answer with status 200, by the rule at the top of this module."""
    if answer.error:
        return (
            "server_error_in_stream",
            f"{answer.error} ({answer.error_code})" if answer.error_code else answer.error,
            "",
        )
    if answer.malformed:
        return "malformed_event", "the stream carried something that is not JSON", ""
    failed = sorted(FAILED_ENDS.intersection(answer.finish_reasons.values()))
    if failed:
        return f"finish_{failed[0]}", f"the server ended the request with finish_reason {failed[0]!r}", ""
    if answer.token_choices is not None:
        finished = all(choice in answer.finish_reasons for choice in answer.token_choices)
    else:
        finished = bool(answer.finish_reasons)
    if finished and answer.done:
        return "", "", "hit max_tokens while thinking" if _only_thought(answer) else ""
    if finished and ended_in_order and answer.output_tokens is not None:
        return "", "", "no terminator"
    if answer.done:
        return "no_finish_reason", "[DONE] came without a finish_reason", ""
    return "stream_cut", "the stream ended without finish_reason and [DONE]", ""


def _only_thought(answer: Answer) -> bool:
    return answer.reasoning_seen and answer.first_answer_stamp is None and answer.finish_reason == "length"
