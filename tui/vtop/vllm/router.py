"""Finds `vllm-router`, the vLLM project's router, and writes its command line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vtop import paths
from vtop.errors import VtopError
from vtop.presets import ServerSpec

COMMAND = "vllm-router"
_REMEDY = (
    "`vtop doctor --install-router` installs it into vtop's own environment; or name one in the preset: router_python ="
)
_CHECK_INTERVAL_S = 1
"""How often it looks whether the servers behind it are up; its own default is 30 s."""


def own_router_environment() -> Path:
    """The environment that `vtop doctor --install-router` makes."""
    return paths.state_dir() / "router"


def find_router(spec: ServerSpec | None = None) -> str:
    """The `vllm-router` command: the preset's, vtop's own, beside this interpreter, on PATH.

    Raises:
        VtopError: there is none, or none where the preset says.
    """
    told = spec.disaggregated.router_python if spec is not None and spec.disaggregated is not None else None
    if told is not None:
        found = _in(Path(told).expanduser())
        if found is None:
            raise VtopError(f"there is no {COMMAND} at {told} (the preset's router_python)", _REMEDY)
        return str(found)
    for place in _usual_places():
        found = _in(place)
        if found is not None:
            return str(found)
    on_path = shutil.which(COMMAND)
    if on_path is None:
        raise VtopError(f"{COMMAND} was not found: prefill and decode servers need it in front of them", _REMEDY)
    return on_path


def router_argv(
    command: str, behind: Sequence[str], host: str, port: int, *, metrics_port: int, patience_s: float
) -> tuple[str, ...]:
    """The command line of a router.

    Args:
        command: from `find_router`.
        behind: the words that name the servers behind it.
        host: where it listens.
        port: where clients connect.
        metrics_port: for its own metrics; it always opens one.
        patience_s: how long the servers behind it may take to start.
    """
    return (
        command,
        *behind,
        *("--host", host, "--port", str(port), "--prometheus-port", str(metrics_port), "--policy", "round_robin"),
        *("--worker-startup-timeout-secs", str(round(patience_s))),
        *("--worker-startup-check-interval", str(_CHECK_INTERVAL_S)),
    )


def _usual_places() -> Iterator[Path]:
    yield own_router_environment()
    yield Path(sys.executable)


def _in(place: Path) -> Path | None:
    """The command in an environment, beside an interpreter, or itself."""
    candidates = [place / "bin" / COMMAND] if place.is_dir() else [place.with_name(COMMAND)]
    return next((path.absolute() for path in candidates if path.is_file()), None)
