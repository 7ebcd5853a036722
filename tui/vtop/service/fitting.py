"""Will it fit, in a few lines for the start screen; and what a running server says of its model and cache."""

from __future__ import annotations

import os
from dataclasses import dataclass

import httpx

from vtop import units
from vtop.clock import SystemClock
from vtop.errors import VtopError
from vtop.fit import fit
from vtop.hardware import Card
from vtop.known_models import find_shape
from vtop.secrets import without_user
from vtop.servers.readiness import authorization
from vtop.service.launching import Launch
from vtop.telemetry.scrape import Poller, ServerAccess

ASK_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Served:
    """What a running server says."""

    model: str
    """A name or folder whose shape is known."""
    max_model_len: int | None
    kv_capacity_tokens: float | None
    kv_cache_dtype: str | None


async def ask_server(url: str) -> Served:
    """Asks /v1/models and /metrics of a server; a key is taken from VLLM_API_KEY, as vLLM itself does.

    Raises:
        VtopError: it does not answer, or the shape of its model is not known.
    """
    url, key = url.rstrip("/"), os.environ.get("VLLM_API_KEY") or None
    shown = without_user(url)
    try:
        async with httpx.AsyncClient(timeout=ASK_WITHIN_S) as client:
            response = await client.get(f"{url}/v1/models", headers=authorization(key))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise VtopError(
            f"{shown} does not answer: {type(error).__name__}", "Check the address and that it runs."
        ) from error
    if response.status_code in (401, 403):
        raise VtopError(f"{shown} wants an API key", "Set VLLM_API_KEY, or name the model instead.")
    try:
        entry = response.json()["data"][0]
        names = [str(entry[key]) for key in ("root", "id") if entry.get(key)]
        length = entry.get("max_model_len")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise VtopError(f"{shown}/v1/models is not what vLLM answers", "Name the model instead.") from None
    model = next((name for name in names if find_shape(name) is not None), None)
    if model is None:
        raise VtopError(
            f"the shape of {' or '.join(names) or 'its model'}, which {shown} serves, is not known",
            "Give a folder with its config.json.",
        )
    poller = Poller(url, SystemClock(), 10.0, ServerAccess("env:VLLM_API_KEY" if key else None))
    try:
        await poller.poll()
        engine = poller.engines[0] if poller.engines else None
    finally:
        await poller.close()
    return Served(
        model,
        length if isinstance(length, int) else None,
        engine.kv_capacity_tokens if engine else None,
        engine.kv_cache_dtype if engine else None,
    )


def fit_lines(launch: Launch, card: Card | None) -> tuple[tuple[str, str], ...]:
    """Label and text of each line; empty where model or card is not known."""
    if card is None:
        return ()
    try:
        report = fit(None, launch.preset.server, card)
    except VtopError as error:
        return (("fit", error.what),)
    certain = "" if report.sure else ", but it is close"
    lines = [
        ("fits", f"{'yes' if report.fits else 'no'}{certain} ({card.name})"),
        ("weights", f"{units.gib(report.weights_bytes)} per GPU of {units.gib(report.memory_bytes)}"),
        ("KV capacity", f"{units.count(report.kv_capacity_tokens)} tokens"),
        ("TPOT floor", units.duration(report.tpot_floor_alone_s)),
    ]
    lines += [("warning", text) for text in report.warnings]
    return tuple(lines)
