"""OpenAI-shaped answers of the simulated server, as vLLM words them: streams, whole answers, errors."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from vtop.sim.engine import Engine
from vtop.sim.scheduler import Request

FAULTY_STREAM_TOKENS = 5
"""Where a stream that is told to break does so."""


def error_response(status: int, message: str, kind: str = "BadRequestError") -> JSONResponse:
    """An error as vLLM's API answers it."""
    return JSONResponse(
        {"error": {"message": message, "type": kind, "param": None, "code": status}}, status_code=status
    )


@dataclass(slots=True)
class Sequence:
    """One answer of a request."""

    index: int
    tokens: list[int] = field(default_factory=list)
    reason: str | None = None
    started: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A request as understood, ready to run."""

    chat: bool
    model: str
    prompts: list[list[int]]
    text: str
    """The prompt's words where it had some."""
    n: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    seed: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    transferred_tokens: int = 0
    transfer_params: dict[str, Any] | None = None
    """What a prefill server hands on; None otherwise."""


class Answer:
    """Collects the tokens of all sequences of one call."""

    def __init__(self, engine: Engine, call: Call) -> None:
        self.engine = engine
        self.call = call
        self.created = int(time.time())
        self.answer_id = ("chatcmpl-" if call.chat else "cmpl-") + uuid.uuid4().hex
        self.sequences: list[Sequence] = []
        self._pending: list[tuple[Sequence, list[int], str | None]] = []
        self._event = asyncio.Event()
        self._requests: list[Request] = []
        for prompt in call.prompts:
            for _ in range(call.n):
                self._start(prompt)

    def _start(self, prompt: list[int]) -> None:
        call = self.call
        sequence = Sequence(len(self.sequences))
        self.sequences.append(sequence)

        def deliver(tokens: list[int], reason: str | None) -> None:
            sequence.tokens.extend(tokens)
            if reason is not None:
                sequence.reason = reason
            self._pending.append((sequence, tokens, reason))
            self._event.set()

        request = self.engine.submit(
            prompt,
            call.text,
            deliver,
            max_tokens=call.max_tokens,
            min_tokens=call.min_tokens,
            ignore_eos=call.ignore_eos,
            seed=call.seed + sequence.index,
            transferred_tokens=call.transferred_tokens,
            want_transfer=call.transfer_params is not None,
            params_n=call.n,
        )
        self._requests.append(request)

    @property
    def finished(self) -> bool:
        """Every sequence has ended."""
        return all(sequence.reason is not None for sequence in self.sequences)

    def wake(self) -> None:
        """Makes `next` look again."""
        self._event.set()

    async def next(self) -> list[tuple[Sequence, list[int], str | None]]:
        """What has come since the last call; empty after a `wake`."""
        await self._event.wait()
        self._event.clear()
        pending, self._pending = self._pending, []
        return pending

    def abort(self) -> None:
        """Ends what is still running."""
        for request in self._requests:
            self.engine.abort(request)

    def usage(self) -> dict[str, int]:
        """Token counts."""
        prompt = sum(len(prompt) for prompt in self.call.prompts)
        answer = sum(len(sequence.tokens) for sequence in self.sequences)
        return {"prompt_tokens": prompt, "total_tokens": prompt + answer, "completion_tokens": answer}

    def whole(self) -> dict[str, Any]:
        """The answer of a call that did not stream."""
        chat = self.call.chat
        choices: list[dict[str, Any]] = []
        for sequence in self.sequences:
            text = self.engine.vocabulary.decode(sequence.tokens)
            content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choices.append({"index": sequence.index, **content, "logprobs": None, "finish_reason": sequence.reason})
        return {
            "id": self.answer_id,
            "object": "chat.completion" if chat else "text_completion",
            "created": self.created,
            "model": self.call.model,
            "choices": choices,
            "usage": self.usage(),
            "kv_transfer_params": self.call.transfer_params,
        }

    def chunk(self, sequence: Sequence, tokens: list[int], reason: str | None) -> str:
        """One event of the stream; the first of a chat brings the role event along, as vLLM sends it."""
        json_text = self.engine.vocabulary.json_text
        text = "".join(map(json_text, tokens))
        head = self._head()
        ending = f'"logprobs":null,"finish_reason":{"null" if reason is None else json.dumps(reason)}}}]'
        usage = f',"usage":{json.dumps(self.usage())}' if self.call.continuous_usage else ""
        if not self.call.chat:
            return f'{head}{{"index":{sequence.index},"text":"{text}",{ending}{usage}}}\n\n'
        role = ""
        if not sequence.started:
            sequence.started = True
            role = (
                f'{head}{{"index":{sequence.index},"delta":{{"role":"assistant","content":""}},"logprobs":null,'
                f'"finish_reason":null}}]{usage}}}\n\n'
            )
        return f'{role}{head}{{"index":{sequence.index},"delta":{{"content":"{text}"}},{ending}{usage}}}\n\n'

    def _head(self) -> str:
        kind = "chat.completion.chunk" if self.call.chat else "text_completion"
        return (
            f'data: {{"id":"{self.answer_id}","object":"{kind}","created":{self.created},'
            f'"model":{json.dumps(self.call.model)},"choices":['
        )

    def last_chunks(self) -> str:
        """The usage event where it was asked for, and the end mark."""
        usage = f'{self._head()}],"usage":{json.dumps(self.usage())}}}\n\n' if self.call.include_usage else ""
        return usage + "data: [DONE]\n\n"


class StreamResponse:
    """Sends an answer as server-sent events, one write a step, and ends it when the client goes."""

    def __init__(self, answer: Answer, fault: str = "", on_end: Callable[[], None] | None = None) -> None:
        self._answer = answer
        self._fault = fault
        self._on_end = on_end
        self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI side."""
        answer = self._answer
        watcher = asyncio.create_task(self._watch(receive))
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not self._gone:
                pending = await answer.next()
                text = "".join(answer.chunk(*item) for item in pending if item[1] or item[2])
                if self._fault and len(answer.sequences[0].tokens) >= FAULTY_STREAM_TOKENS:
                    await self._break(text, send)
                    return
                done = answer.finished
                if done:
                    text += answer.last_chunks()
                if text:
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": not done})
                if done:
                    return
        except OSError:
            return  # the client went away between two events
        finally:
            watcher.cancel()
            answer.abort()
            if self._on_end is not None:
                self._on_end()

    async def _break(self, text: str, send: Send) -> None:
        if self._fault == "stream-errors":
            error = {"error": {"message": "simulated failure", "type": "InternalServerError", "code": 500}}
            text += f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n"
        await send({"type": "http.response.body", "body": text.encode(), "more_body": self._fault == "reset-streams"})
        if self._fault == "reset-streams":
            # uvicorn closes the connection of an application that fails in the middle of its answer.
            raise RuntimeError("told to reset this stream")

    async def _watch(self, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._gone = True
                self._answer.wake()
                return
