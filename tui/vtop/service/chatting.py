"""One prompt to a server, streamed: the smoke test, with its own TTFT, TPOT and usage."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from vtop.contract import ChatEvent
from vtop.late_httpx import httpx
from vtop.service.watching import client_certificates

TIMEOUT = httpx.Timeout(60.0, connect=5.0)
"""A model that thinks for a minute without a word is reported, not waited for."""


def _delta_text(payload: dict[str, Any]) -> str:
    for choice in payload.get("choices") or ():
        delta = choice.get("delta") or {}
        text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
        if text:
            return str(text)
    return ""


async def stream_chat(
    url: str,
    model: str,
    prompt: str,
    *,
    api_key: str | None = None,
    ca_file: str | None = None,
    max_tokens: int = 512,
) -> AsyncIterator[ChatEvent]:
    """Sends one chat completion and yields its text as it comes, then one event with `done`.

    Args:
        url: base address without /v1.
        model: served model name.
        prompt: what the user says.
        api_key: the key itself (resolved), or None.
        ca_file: the certificate authority of an https server; None: those that the system trusts.
        max_tokens: a bound on the answer.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "max_tokens": max_tokens,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    verify = True if ca_file is None else client_certificates((url,), ca_file)
    sent = time.perf_counter()
    first = last = None
    usage: dict[str, Any] = {}
    error = ""
    complete = False

    async def watch(event: str, _: dict[str, Any]) -> None:
        # TTFT begins with the write on an open connection: neither certificates nor the handshake belong to it.
        nonlocal sent
        if event.endswith("send_request_headers.started"):
            sent = time.perf_counter()

    try:
        async with (
            httpx.AsyncClient(timeout=TIMEOUT, verify=verify) as client,
            client.stream(
                "POST",
                f"{url.rstrip('/')}/v1/chat/completions",
                json=body,
                headers=headers,
                extensions={"trace": watch},
            ) as response,
        ):
            if response.status_code != httpx.codes.OK:
                words = (await response.aread()).decode(errors="replace")[:300]
                yield ChatEvent(done=True, error=f"HTTP {response.status_code}: {words}")
                return
            async for line in response.aiter_lines():
                data = line.removeprefix("data:").strip()
                if not line.startswith("data:") or not data:
                    continue
                if data == "[DONE]":
                    complete = True
                    continue
                payload = json.loads(data)
                if payload.get("error"):
                    error = str(payload["error"].get("message", payload["error"]))
                    break
                usage = payload.get("usage") or usage
                complete = complete or any(choice.get("finish_reason") for choice in payload.get("choices") or ())
                text = _delta_text(payload)
                if text:
                    last = time.perf_counter()
                    first = first or last
                    yield ChatEvent(text=text)
        if not complete and not error:
            error = "the answer ended in its middle: the stream does not say that it is complete"
    except httpx.RemoteProtocolError as failure:
        error = f"the server closed the connection before the answer was complete; its log may say why ({failure})"
    except httpx.HTTPError as failure:
        error = f"{type(failure).__name__}: {failure}".rstrip(": ")
    except json.JSONDecodeError:
        error = "the server's stream is not JSON"
    tokens = usage.get("completion_tokens")
    tpot = None
    if first is not None and last is not None and isinstance(tokens, int) and tokens > 1:
        tpot = (last - first) / (tokens - 1)
    yield ChatEvent(
        done=True,
        ttft_s=None if first is None else first - sent,
        tpot_s=tpot,
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=tokens,
        error=error,
    )
