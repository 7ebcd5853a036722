"""The states of a server and what is known of it, frozen, for everyone who looks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vtop.vllm.lifecycle import Diagnosis, Remedy, StartProgress

__all__ = ["Diagnosis", "Remedy", "ServerState", "ServerStatus", "StartProgress", "StopReport"]


class ServerState(StrEnum):
    """The closed set of states."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    FAILED = "failed"
    LOST = "lost"
    FOREIGN = "foreign"
    """Somebody else's server: watched, never signalled."""


@dataclass(frozen=True, slots=True, eq=False)
class ServerStatus:
    """One server as the supervisor knows it."""

    name: str
    url: str
    state: ServerState
    preset: str | None = None
    model: str | None = None
    """The served model name."""
    host: str = "127.0.0.1"
    port: int | None = None
    version: str | None = None
    """vLLM's version."""
    simulated: bool = False
    owned: bool = False
    """Started by vtop, so vtop may stop it."""
    pid: int | None = None
    pids: tuple[int, ...] = ()
    """The recorded process tree that is still alive."""
    started_wall_s: float | None = None
    progress: StartProgress | None = None
    diagnosis: Diagnosis | None = None
    message: str = ""
    """One line that explains the state where there is something to say."""
    log_path: str | None = None
    gpu_uuids: tuple[str, ...] | None = None
    """GPUs that it may use; None: cannot be known."""
    gpu_reason: str = ""
    """Why the GPUs cannot be known."""
    role: str = ""
    """`prefill`, `decode` or `router` inside a deployment."""
    deployment: str | None = None
    """The deployment that it belongs to."""
    headless: bool = False
    """It works for a server on another machine: it never answers itself, and stays STARTING while it lives."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class StopReport:
    """What a stop really did."""

    name: str
    stopped: bool
    """No process of the tree is left and the port is free, where it was looked at."""
    seconds: float
    steps: tuple[str, ...] = ()
    """What was done, in order."""
    left: tuple[str, ...] = ()
    """What is still there, in words."""
    port_checked: bool = True
    """False where it had ended before: its port may be another server's by now, and is nothing of ours."""
