"""How verbs use the facade: opened, used, closed, with the command line's words as options."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from vtop.service import ServiceOptions
from vtop.settings import Settings, load_settings

if TYPE_CHECKING:
    from vtop.service import VtopService

T = TypeVar("T")


def options_from(arguments: argparse.Namespace, settings: Settings | None = None, **fixed: object) -> ServiceOptions:
    """What the command line and the settings file say together; the command line wins."""
    settings = settings or load_settings()
    urls = tuple(getattr(arguments, "url", None) or ()) if isinstance(getattr(arguments, "url", None), list) else ()
    peak = getattr(arguments, "peak_gbs", None) or settings.peak_gbs
    said: dict[str, object] = {
        "urls": (*urls, *settings.urls),
        "api_key": getattr(arguments, "api_key", None),
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
