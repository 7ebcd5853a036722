"""How verbs use the facade: opened, used, closed, with the command line's words as options."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from vtop.errors import UsageError
from vtop.secrets import check_reference, resolve
from vtop.service import ServiceOptions
from vtop.settings import Settings, load_settings

if TYPE_CHECKING:
    from vtop.service import VtopService

T = TypeVar("T")
NO_KEY = "none"
"""Stands for an address without a key where others have one."""


def options_from(arguments: argparse.Namespace, settings: Settings | None = None, **fixed: object) -> ServiceOptions:
    """What the command line and the settings file say together; the command line wins."""
    settings = settings or load_settings()
    given = getattr(arguments, "url", None) or []
    urls = [given] if isinstance(given, str) else list(given)
    references = getattr(arguments, "api_key", None) or []
    references = [references] if isinstance(references, str) else references
    for reference in references:
        if reference != NO_KEY:
            resolve(reference)  # what was typed just now must lead somewhere
    peak = getattr(arguments, "peak_gbs", None) or settings.peak_gbs
    said: dict[str, object] = {
        "urls": (*urls, *settings.urls),
        "api_keys": keys_of(urls, references, settings),
        "ca_file": getattr(arguments, "ca_file", None),
        "dcgm_url": getattr(arguments, "dcgm_url", None) or settings.dcgm_url,
        "peak_bytes_per_s": None if peak is None else peak * 1e9,
        "readonly": bool(getattr(arguments, "readonly", False)),
        "window_s": getattr(arguments, "window", None) or settings.window_s,
        "interval_s": getattr(arguments, "interval", None) or 1.0,
        "vllm": getattr(arguments, "vllm", None),
        "record": getattr(arguments, "record", None),
    }
    return ServiceOptions(**{**said, **fixed})  # type: ignore[arg-type]


def keys_of(urls: Sequence[str], references: Sequence[str], settings: Settings) -> dict[str, str]:
    """Address -> where its key is. A key goes to the addresses that it was given with, and nowhere else.

    Args:
        urls: those of the command line.
        references: one for all of them, or one for each in their order (`none`: without a key).
        settings: its addresses have keys of their own, unless the command line has only a key.

    Raises:
        UsageError: there are more or fewer references than addresses, or one of them is none.
    """
    addresses = list(urls) or list(settings.urls)
    if len(references) == 1:
        references = [*references] * len(addresses)
    elif references and len(references) != len(addresses):
        raise UsageError(
            f"{len(references)} keys for {len(addresses)} addresses",
            "Give --api-key once for all of them, or once for each --url in their order (`none` for no key).",
        )
    found = {url.rstrip("/"): check_reference(reference) for url, reference in settings.api_keys.items()}
    for url, reference in zip(addresses, references, strict=False):
        if reference == NO_KEY:
            found.pop(url.rstrip("/"), None)
        else:
            found[url.rstrip("/")] = check_reference(reference)
    return found


def with_service(options: ServiceOptions, use: Callable[[VtopService], Awaitable[T]]) -> T:
    """Opens the facade, uses it, and closes it whatever happens."""
    # Here, because the dashboard takes its options from this module and draws before the facade is imported.
    from vtop.service import VtopService

    async def main() -> T:
        service = VtopService(options)
        await service.open()
        try:
            return await use(service)
        finally:
            await service.close()

    return asyncio.run(main())
