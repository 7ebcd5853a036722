"""The simulated server's HTTP side: vLLM's endpoints on starlette, answered by the simulated engines."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from vtop.sim.answers import Answer, Call, StreamResponse, error_response
from vtop.sim.engine import Engine
from vtop.sim.gpu import GpuLoad, simulated_uuid
from vtop.sim.machine import Machine
from vtop.sim.metrics import Page
from vtop.sim.vocabulary import Vocabulary

VERSION = "0.33.0+vtop.simulated"
"""Says whose metric names these are, and that nothing here is vLLM."""
OWNER = "vtop-simulated"
_EVERY = 4
"""Faults in streams hit every fourth request."""
_STREAM_FAULTS = {"cut-streams", "reset-streams", "stream-errors"}
_ROLE_TOKENS = 3
_CHAT_FORMAT_TOKENS = 5
"""What a chat template adds around each message."""

Handler = Callable[[HttpRequest], Awaitable[Response | StreamResponse]]


class BadRequest(Exception):
    """A request that is answered with 400."""


class SimulatedServer:
    """The engines and everything around them."""

    def __init__(self, machine: Machine) -> None:
        options = machine.options
        self.machine = machine
        self.vocabulary = Vocabulary(machine.setup.shape.vocab)
        self.loads: list[GpuLoad] = []
        self.engines: list[Engine] = []
        for _ in range(options.data_parallel_size):
            load = GpuLoad(machine.card, machine.memory_used_bytes, options.speed)
            self.loads.append(load)
            self.engines.append(Engine(machine, self.vocabulary, load))
        self.fault = options.fault
        self.healthy = True
        self.closing = False
        self.active = 0
        """Calls that are being answered."""
        self.on_first_request: Callable[[], None] | None = None
        self._engine_id = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._turn = itertools.count()
        self._page = Page(
            options.served_name,
            self._cache_config(),
            speculation=machine.speculation is not None,
            mfu=options.enable_mfu_metrics,
            transfers=bool(options.kv_role),
        )

    def _cache_config(self) -> dict[str, str]:
        machine, options = self.machine, self.machine.options
        concurrency = machine.kv_tokens / machine.limits.max_model_len
        return {
            "block_size": "16",
            "cache_dtype": options.kv_cache_dtype,
            "enable_prefix_caching": str(options.enable_prefix_caching),
            "gpu_memory_utilization": str(options.gpu_memory_utilization),
            "kv_cache_max_concurrency": f"{concurrency:.4f}",
            "kv_cache_size_tokens": str(machine.kv_tokens),
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(machine.kv_blocks),
            "num_gpu_blocks_override": "None",
            "sliding_window": str(machine.setup.shape.sliding_window),
        }

    def app(self) -> ASGIApp:
        """The ASGI application."""
        routes = [
            Route("/health", self._health, methods=["GET"]),
            Route("/ping", self._health, methods=["GET", "POST"]),
            Route("/version", self._version, methods=["GET"]),
            Route("/load", self._load, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._completion, methods=["POST"]),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/detokenize", self._detokenize, methods=["POST"]),
            Route("/reset_prefix_cache", self._reset_cache, methods=["POST"]),
            Route("/vtop/sim/gpu", self._gpu, methods=["GET"]),
        ]
        application: ASGIApp = Starlette(routes=routes)
        key = os.environ.get("VLLM_API_KEY")
        return KeyCheck(application, key) if key else application

    # --- small endpoints ------------------------------------------------------------------------------------------

    async def _health(self, request: HttpRequest) -> Response:
        if self.fault == "slow-health":
            await asyncio.sleep(5.0 / self.machine.options.speed)
        return Response(status_code=200 if self.healthy else 503)

    async def _version(self, request: HttpRequest) -> Response:
        return JSONResponse({"version": VERSION})

    async def _load(self, request: HttpRequest) -> Response:
        return JSONResponse({"server_load": self.active})

    async def _metrics(self, request: HttpRequest) -> Response:
        text = self._page.text([engine.metrics for engine in self.engines])
        return PlainTextResponse(text, media_type="text/plain; version=1.0.0")

    async def _models(self, request: HttpRequest) -> Response:
        options = self.machine.options
        model = {
            "id": options.served_name,
            "object": "model",
            "created": int(self.engines[0].metrics.created_wall_s),
            "owned_by": OWNER,
            "root": options.model,
            "parent": None,
            "max_model_len": self.machine.limits.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def _reset_cache(self, request: HttpRequest) -> Response:
        for engine in self.engines:
            engine.scheduler.pool.forget()
        return Response(status_code=200)

    async def _gpu(self, request: HttpRequest) -> Response:
        now = time.monotonic()
        indices = self.machine.options.gpu_index
        per_engine = max(1, len(indices) // len(self.engines))
        gpus = []
        for place, index in enumerate(indices):
            load = self.loads[min(place // per_engine, len(self.loads) - 1)]
            gpus.append({"index": index, "uuid": simulated_uuid(index), **load.describe(now)})
        body = {
            "simulated": True,
            "version": 1,
            "pid": os.getpid(),
            "served_name": self.machine.options.served_name,
            "gpus": gpus,
            "engines": [engine.describe() for engine in self.engines],
        }
        return JSONResponse(body)

    async def _tokenize(self, request: HttpRequest) -> Response:
        body = await _json(request)
        try:
            if "messages" in body:
                tokens = self._chat_tokens(body["messages"])[0]
            else:
                tokens = self.vocabulary.encode(_string(body, "prompt"))
        except BadRequest as error:
            return error_response(400, str(error))
        length = self.machine.limits.max_model_len
        return JSONResponse({"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": None})

    async def _detokenize(self, request: HttpRequest) -> Response:
        tokens = (await _json(request)).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            return error_response(400, "tokens must be a list of token ids")
        return JSONResponse({"prompt": self.vocabulary.decode(tokens)})

    # --- generation -----------------------------------------------------------------------------------------------

    def _chat_tokens(self, messages: Any) -> tuple[list[int], str]:
        """A chat prompt in tokens, with a template's own tokens around each message, and its text."""
        if not isinstance(messages, list) or not messages:
            raise BadRequest("messages must be a list of messages")
        tokens: list[int] = []
        texts = []
        for message in messages:
            if not isinstance(message, dict):
                raise BadRequest("each message must be a table")
            text = _message_text(message.get("content"))
            texts.append(text)
            role = self.vocabulary.encode(f"<|im_start|>{message.get('role', 'user')}")[-_ROLE_TOKENS:]
            tokens += role + self.vocabulary.encode(text)
            tokens += self.vocabulary.encode("<|im_end|>\n")[: _CHAT_FORMAT_TOKENS - _ROLE_TOKENS]
        tokens += self.vocabulary.encode("<|im_start|>assistant")[-_ROLE_TOKENS:]
        return tokens, texts[-1]

    async def _chat(self, request: HttpRequest) -> Response | StreamResponse:
        body = await _json(request)
        try:
            tokens, text = self._chat_tokens(body.get("messages"))
            limit = body.get("max_completion_tokens") or body.get("max_tokens")
            call = self._call(body, True, [tokens], text, limit)
        except BadRequest as error:
            return error_response(400, str(error))
        return await self._answer(call)

    async def _completion(self, request: HttpRequest) -> Response | StreamResponse:
        body = await _json(request)
        try:
            prompts, text = self._prompts(body.get("prompt"))
            call = self._call(body, False, prompts, text, body.get("max_tokens", 16))
        except BadRequest as error:
            return error_response(400, str(error))
        return await self._answer(call)

    def _prompts(self, prompt: Any) -> tuple[list[list[int]], str]:
        if isinstance(prompt, str):
            return [self.vocabulary.encode(prompt)], prompt
        if isinstance(prompt, list) and prompt:
            if all(isinstance(item, int) for item in prompt):
                return [self._checked(prompt)], ""
            if all(isinstance(item, str) for item in prompt):
                return [self.vocabulary.encode(item) for item in prompt], prompt[0]
            if all(isinstance(item, list) and item for item in prompt):
                return [self._checked(item) for item in prompt], ""
        raise BadRequest("prompt must be a text, a list of texts, token ids or a list of token ids")

    def _checked(self, tokens: list[Any]) -> list[int]:
        size = self.vocabulary.size
        if not all(isinstance(token, int) and 0 <= token < size for token in tokens):
            raise BadRequest(f"Token id out of vocabulary (size {size})")
        return tokens

    def _call(self, body: dict[str, Any], chat: bool, prompts: list[list[int]], text: str, limit: Any) -> Call:
        length = self.machine.limits.max_model_len
        longest = max(len(prompt) for prompt in prompts)
        if not longest:
            raise BadRequest("the prompt is empty")
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            raise BadRequest(f"max_tokens must be at least 1, got {limit}.")
        if longest + (limit or 1) > length:
            raise BadRequest(
                f"This model's maximum context length is {length} tokens. However, you requested "
                f"{limit or 1} output tokens and your prompt contains {longest} input tokens, for a total of "
                f"{longest + (limit or 1)} tokens. Please reduce the length of the input prompt or the number of "
                "requested output tokens."
            )
        stream_options = body.get("stream_options") or {}
        transfer = body.get("kv_transfer_params") or {}
        seed = body.get("seed")
        if seed is None:
            seed = 0 if body.get("temperature") == 0 else self.machine.options.seed
        transferred = longest - 1 if transfer.get("do_remote_prefill") else 0
        return Call(
            chat=chat,
            model=str(body.get("model") or self.machine.options.served_name),
            prompts=prompts,
            text=text,
            n=_count(body, "n", 1),
            max_tokens=limit or length - longest,
            min_tokens=_count(body, "min_tokens", 0, least=0),
            ignore_eos=bool(body.get("ignore_eos")),
            seed=int(seed),
            stream=bool(body.get("stream")),
            include_usage=bool(stream_options.get("include_usage")),
            continuous_usage=bool(stream_options.get("continuous_usage_stats")),
            transferred_tokens=transferred,
            transfer_params=self._hand_over(longest) if transfer.get("do_remote_decode") else None,
        )

    def _hand_over(self, tokens: int) -> dict[str, Any]:
        """What a prefill server tells the router about where the KV of this prompt is."""
        options = self.machine.options
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._engine_id,
            "remote_block_ids": list(range(-(-tokens // 16))),
            "remote_host": options.host,
            "remote_port": options.port,
        }

    async def _answer(self, call: Call) -> Response | StreamResponse:
        number = next(self._numbers)
        if not self.healthy or self.closing:
            return error_response(500, "EngineCore encountered an issue.", "EngineDeadError")
        if call.model != self.machine.options.served_name:
            return error_response(404, f"The model `{call.model}` does not exist.", "NotFoundError")
        if self.on_first_request is not None:
            self.on_first_request()
        faulty = number % _EVERY == 0
        if self.fault == "refuse" and faulty:
            return error_response(503, "The server is overloaded; try again later.", "ServiceUnavailableError")
        answer = Answer(self._pick_engine(), call)
        self.active += 1
        if call.stream:
            fault = self.fault if faulty and self.fault in _STREAM_FAULTS else ""
            return StreamResponse(answer, fault, self._ended)
        try:
            while not answer.finished:
                await answer.next()
        finally:
            answer.abort()
            self._ended()
        return JSONResponse(answer.whole())

    def _ended(self) -> None:
        self.active -= 1

    def _pick_engine(self) -> Engine:
        """The engine with the fewest requests, in turn where they are equal."""
        turn = next(self._turn)
        order = self.engines[turn % len(self.engines) :] + self.engines[: turn % len(self.engines)]
        return min(order, key=lambda engine: len(engine.scheduler.running) + len(engine.scheduler.waiting))


class KeyCheck:
    """Asks for the API key under /v1, as vLLM does; the rest stays open."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI side."""
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _json(request: HttpRequest) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _string(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise BadRequest(f"{key} must be a text")
    return value


def _count(body: dict[str, Any], key: str, default: int, least: int = 1) -> int:
    value = body.get(key, default)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadRequest(f"{key} must be at least {least}, got {value}.")
    return value


def _message_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return ""
