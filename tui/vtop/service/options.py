"""What the facade is told once, when vtop starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Choices from the command line and the settings file."""

    urls: tuple[str, ...] = ()
    """Servers to watch besides those found."""
    api_keys: Mapping[str, str] = field(default_factory=dict)
    """Address without a slash at its end -> where its key is: `env:NAME` or `file:PATH`."""
    ca_file: str | None = None
    dcgm_url: str | None = None
    peak_bytes_per_s: float | None = None
    """Peak DRAM bandwidth by the user's word."""
    readonly: bool = False
    simulated: bool = False
    """New servers are simulated, and so is the GPU."""
    gpu: str = "RTX 4090"
    """The simulated card."""
    window_s: float = 10.0
    interval_s: float = 1.0
    vllm: str | None = None
    """The vLLM installation to use, by the user's word."""
    discover: bool = True
    """Look for servers that others started."""
    record: str | None = None
