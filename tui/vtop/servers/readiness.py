"""Is it really our server, and does it really answer? Nothing that a log says counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vtop.late_httpx import httpx
from vtop.servers.ports import Listeners, answered_by_another, base_url, listeners
from vtop.servers.process import ProcessIdentity
from vtop.servers.state_files import ServerRecord

HEALTH_TIMEOUT_S = 2.0
FIRST_ANSWER_TIMEOUT_S = 300.0
"""The first request may compile kernels."""
_ANSWER_TOKENS = 4
_SENTENCE = "The quick brown fox jumps over the lazy dog while the river runs on to the sea and the wind is still. "
"""About 22 tokens of any tokenizer."""


class Readiness(StrEnum):
    """How far a server is from READY."""

    SILENT = "silent"
    """Nobody listens yet."""
    CONFLICT = "conflict"
    """Somebody else answers on the port."""
    UNHEALTHY = "unhealthy"
    """It listens, and /health is not 200 (yet)."""
    NEEDS_KEY = "needs-key"
    WRONG_MODEL = "wrong-model"
    NO_ANSWER = "no-answer"
    """All is well but the real request."""
    READY = "ready"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one look at a server found."""

    readiness: Readiness
    message: str = ""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of /v1/models."""

    name: str
    max_model_len: int | None


def prompt_of(tokens: int, max_model_len: int | None = None) -> str:
    """A prompt of about so many tokens, shorter where the model could not take it.

    The first request to a real server should carry some 40 tokens: a three-token one has killed CPU workers behind a
    healthy /health.
    """
    if max_model_len is not None:
        # A byte-level tokenizer makes up to five tokens of a word.
        tokens = min(tokens, max(4, (max_model_len - _ANSWER_TOKENS) // 6))
    words = (_SENTENCE * (tokens // 20 + 1)).split()
    return " ".join(words[:tokens])


def authorization(key: str | None) -> dict[str, str]:
    """The header that carries an API key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


async def read_health(client: httpx.AsyncClient, url: str, timeout_s: float = HEALTH_TIMEOUT_S) -> int:
    """The status of /health.

    Raises:
        httpx.HTTPError: no answer.
    """
    return (await client.get(f"{url}/health", timeout=timeout_s)).status_code


async def read_models(
    client: httpx.AsyncClient, url: str, key: str | None, timeout_s: float = 5.0
) -> tuple[int, list[ServedModel]]:
    """Status and content of /v1/models; no models where the answer is something else.

    Raises:
        httpx.HTTPError: no answer.
    """
    response = await client.get(f"{url}/v1/models", headers=authorization(key), timeout=timeout_s)
    try:
        entries = response.json()["data"] if response.status_code == 200 else []
        models = [
            ServedModel(str(entry["id"]), length if isinstance(length := entry.get("max_model_len"), int) else None)
            for entry in entries
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        models = []
    return response.status_code, models


async def really_answers(
    client: httpx.AsyncClient, url: str, model: str, key: str | None, prompt: str, timeout_s: float
) -> str:
    """Sends one real request; "" when it was answered, else why it was not.

    Models that do not complete text are asked in the way they understand: chat, then embedding.
    """
    generation = {"model": model, "max_tokens": _ANSWER_TOKENS, "temperature": 0}
    attempts: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("/v1/completions", {**generation, "prompt": prompt}, "choices"),
        ("/v1/chat/completions", {**generation, "messages": [{"role": "user", "content": prompt}]}, "choices"),
        ("/v1/embeddings", {"model": model, "input": prompt}, "data"),
    )
    reason = ""
    for path, body, wanted in attempts:
        try:
            response = await client.post(url + path, json=body, headers=authorization(key), timeout=timeout_s)
        except httpx.HTTPError as error:
            return f"{path} was not answered: {error or type(error).__name__}"
        if response.status_code == 200:
            return "" if _holds(response, wanted) else f"{path} answered without {wanted}"
        reason = reason or f"{path} answered {response.status_code}: {response.text[:200].strip()}"
        if response.status_code not in (400, 404, 405, 422, 501):
            break
    return reason


def _holds(response: httpx.Response, wanted: str) -> bool:
    try:
        return bool(response.json()[wanted])
    except (ValueError, KeyError, TypeError):
        return False


async def probe(
    client: httpx.AsyncClient, record: ServerRecord, tree: Sequence[ProcessIdentity], key: str | None
) -> ProbeResult:
    """One look: whose port, /health, /v1/models, and a real request when all the rest is right."""
    url = base_url(record.host, record.port, record.scheme)
    found = await asyncio.to_thread(listeners, record.port, tree)
    contained = record.stop_argv is not None  # a container's listener is not a child of ours
    if found.stranger is not None and not contained:
        return ProbeResult(Readiness.CONFLICT, await _conflict(client, url, record, found))
    try:
        status = await read_health(client, url)
    except httpx.ConnectError:
        return ProbeResult(Readiness.SILENT)
    except httpx.HTTPError as error:
        return ProbeResult(Readiness.UNHEALTHY, f"listens, but /health does not answer ({type(error).__name__})")
    if status != 200:
        return ProbeResult(Readiness.UNHEALTHY, f"/health answers {status}")
    wrong = await _wrong_models(client, url, record, key, proven=found.ours)
    if wrong is not None:
        return wrong
    tokens = 300 if record.role == "router" else 40  # a prefill server only hands over whole KV blocks
    prompt = prompt_of(tokens, record.max_model_len)
    reason = await really_answers(client, url, record.served_name, key, prompt, FIRST_ANSWER_TIMEOUT_S)
    if reason:
        return ProbeResult(Readiness.NO_ANSWER, reason)
    if not found.ours and not contained:
        # Nobody listened at the first look: a stranger may have begun since, and may be who answered.
        found = await asyncio.to_thread(listeners, record.port, tree)
        if found.stranger is not None:
            return ProbeResult(Readiness.CONFLICT, await _conflict(client, url, record, found))
    return ProbeResult(Readiness.READY)


async def _wrong_models(
    client: httpx.AsyncClient, url: str, record: ServerRecord, key: str | None, proven: bool
) -> ProbeResult | None:
    """What is wrong with /v1/models, or None."""
    try:
        status, models = await read_models(client, url, key)
    except httpx.HTTPError as error:
        return ProbeResult(Readiness.UNHEALTHY, f"/v1/models does not answer ({type(error).__name__})")
    if status in (401, 403):
        have = "the key that vtop has is refused" if key else "vtop has no key for it here"
        return ProbeResult(Readiness.NEEDS_KEY, f"/v1/models answers {status}: {have}")
    if not models and record.role == "router" and proven:
        return None  # not every router lists models; its process and the real request prove it
    named = [model for model in models if model.name == record.served_name]
    if not named:
        names = ", ".join(model.name for model in models) or f"nothing (status {status})"
        if proven:
            return ProbeResult(Readiness.WRONG_MODEL, f"serves {names}, not {record.served_name}")
        return ProbeResult(Readiness.CONFLICT, answered_by_another(record.port, names))
    length = named[0].max_model_len
    if not proven and None not in (length, record.max_model_len) and length != record.max_model_len:
        what = f"{record.served_name} with max_model_len {length}, not {record.max_model_len}"
        return ProbeResult(Readiness.CONFLICT, answered_by_another(record.port, what))
    return None


async def _conflict(client: httpx.AsyncClient, url: str, record: ServerRecord, found: Listeners) -> str:
    """Names the stranger on our port, with the models it serves where it says so. No key is sent to it."""
    names = ""
    try:
        _, models = await read_models(client, url, None, timeout_s=HEALTH_TIMEOUT_S)
        names = ", ".join(model.name for model in models)
    except httpx.HTTPError:
        pass
    return answered_by_another(record.port, ", ".join(part for part in (names, str(found.stranger)) if part))
