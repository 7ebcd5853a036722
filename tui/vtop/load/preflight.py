"""What must be known of the server and of this machine before the clock starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtop.errors import UsageError, VtopError
from vtop.load.client import Exchange, Target, fetch
from vtop.load.words import WordSource, learn_words, parse_tokens
from vtop.load.workload import LEAD, REPEAT_LEAD, Shape

SPARE_FILES = 64
"""Open files that the process needs beside its connections."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says about itself."""

    model: str
    max_model_len: int | None
    is_vllm: bool
    version: str | None


def ensure_files(streams: int) -> None:
    """Raises the soft limit of open files where it is too low for so many connections.

    Raises:
        VtopError: the hard limit does not allow it.
    """
    try:
        import resource
    except ImportError:
        return
    need = streams + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need:
        raise VtopError(
            f"{streams:,} streams need {need:,} open files; this shell allows {hard:,}",
            f"Raise the limit (ulimit -Hn {need}, as root or in limits.conf), or use fewer streams.",
        )
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    except (ValueError, OSError) as error:
        raise VtopError(f"cannot allow {need:,} open files: {error}", f"Run: ulimit -n {need}") from error


def _object(exchange: Exchange) -> dict[str, Any]:
    try:
        value = json.loads(exchange.body())
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def ask_server(target: Target, wanted_model: str, api_key: str | None) -> ServerFacts:
    """Asks which models there are and who answers.

    Raises:
        VtopError: nothing answers, the key is refused, or the model is not served.
    """
    models = await fetch(target, "GET", "/v1/models", api_key=api_key)
    where = target.host_header
    if models.status in (401, 403):
        raise VtopError(
            f"{where} refuses the request ({models.status}: {models.server_words()})",
            "Give its key by reference: --api-key env:NAME.",
        )
    listed = _object(models).get("data") if models.status == 200 else None
    if not isinstance(listed, list) or not listed:
        if not wanted_model:
            raise VtopError(
                f"{where} lists no models (/v1/models answered {models.status})",
                "Name the model with --model, or check that this is an OpenAI-compatible server.",
            )
        return ServerFacts(wanted_model, None, False, None)
    cards: dict[str, Mapping[str, Any]] = {str(card.get("id")): card for card in listed if isinstance(card, dict)}
    model = wanted_model or next(iter(cards))
    if model not in cards:
        raise VtopError(f"{where} does not serve {model!r}", f"It serves: {', '.join(cards)}.")
    card = cards[model]
    length = card.get("max_model_len")
    version = None
    is_vllm = card.get("owned_by") == "vllm"
    if is_vllm:
        answer = await fetch(target, "GET", "/version", api_key=api_key)
        version = _object(answer).get("version") if answer.status == 200 else None
    return ServerFacts(model, length if isinstance(length, int) else None, is_vllm, version)


def check_lengths(shape: Shape, facts: ServerFacts) -> None:
    """Refuses a test whose requests the server cannot hold.

    Raises:
        UsageError: prompt and answer are longer than the server's max_model_len.
    """
    if facts.max_model_len is None or not shape.made_to_length:
        return
    need = shape.prefix_tokens + shape.prompt_tokens + shape.max_tokens
    if need > facts.max_model_len:
        raise UsageError(
            f"a request of {shape.workload} takes {need:,} tokens; {facts.model} takes {facts.max_model_len:,}",
            "Give smaller --prompt-tokens and --max-tokens, or start the server with a larger max_model_len.",
        )


async def words_of(target: Target, shape: Shape, facts: ServerFacts, api_key: str | None) -> WordSource:
    """Words of one token each, where the prompts are made to a length and the server can say."""
    if not shape.made_to_length:
        return WordSource()

    async def tokenize(fields: Mapping[str, Any]) -> list[int] | None:
        body = json.dumps({"model": facts.model, **fields}).encode()
        try:
            answer = await fetch(target, "POST", "/tokenize", body=body, api_key=api_key)
        except VtopError:
            return None
        return parse_tokens(answer.body()) if answer.status == 200 else None

    return await learn_words(tokenize, (LEAD, REPEAT_LEAD), chat=shape.endpoint == "chat")
