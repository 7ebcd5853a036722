"""One process to start, worked out to the last argument; what dialects and the simulation hand to the supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How one process of a server is started, known and stopped."""

    argv: tuple[str, ...]
    served_name: str
    """The model name that /v1/models must list."""
    host: str
    port: int
    fallback_argv: tuple[str, ...] | None = None
    """Used once when `argv` fails because the `vllm` command itself is broken."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to a clean copy of the environment; never a secret."""
    unset_env: tuple[str, ...] = ()
    """Removed from the environment (PROMETHEUS_MULTIPROC_DIR, VLLM_PORT, ...)."""
    api_key: str | None = None
    """A reference, `env:NAME` or `file:PATH`; resolved only while spawning, into `api_key_variables`."""
    api_key_variables: tuple[str, ...] = ("VLLM_API_KEY",)
    """Where the process looks for its key; the router of a P/D pair has another place."""
    role: str = ""
    """"" for a single server; `prefill`, `decode`, `router` inside a deployment."""
    version: str | None = None
    """vLLM's version as found."""
    simulated: bool = False
    stop_argv: tuple[str, ...] | None = None
    """A command that stops it (a container runtime's own); None: signals."""
    shutdown_timeout_s: float = 0.0
    """How long the server itself lets requests finish."""
    ready_timeout_s: float = 1800.0
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpus: tuple[str, ...] | None = None
    """UUIDs it may use; None where it cannot be known."""
    headless: bool = False
    """It only works for a server on another machine and never answers a request itself."""
    scratch_folders: tuple[str, ...] = ()
    """Folders that belong to this server alone; to be deleted once it is gone."""
    notes: tuple[str, ...] = ()
