"""The states of a server and what is known of it, frozen, for everyone who looks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class StartProgress:
    """Where a start-up stands."""

    phase: str
    """`launch`, `config`, `engine`, `download`, `weights`, `compile`, `profile`, `kv-cache`, `graphs`, `warm-up` or
    `ready`."""
    text: str
    """The phase in words, for the screen: `loading weights 43 %`."""
    share: float | None = None
    """0..1 within the phase where the log says it."""
    phase_elapsed_s: float = 0.0
    elapsed_s: float = 0.0
    expected_s: float | None = None
    """How long this whole start took last time."""
    silent_s: float = 0.0
    """Since the last log line."""
    done: tuple[tuple[str, float], ...] = ()
    """Phases behind us with the seconds each took."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change, in words and, where it can be computed, as preset overrides."""

    text: str
    overrides: tuple[tuple[str, str], ...] = ()
    """`--set` pairs that apply it: (("max_model_len", "34736"),)."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a server died."""

    code: str
    """Stable name of the cause (`kv-cache-too-small`, `port-in-use`, `unknown`, ...)."""
    headline: str
    detail: str = ""
    remedies: tuple[Remedy, ...] = ()
    line_number: int | None = None
    """Line of the log that says it, from 1."""


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
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class StopReport:
    """What a stop really did."""

    name: str
    stopped: bool
    """No process of the tree is left and the port is free."""
    seconds: float
    steps: tuple[str, ...] = ()
    """What was done, in order."""
    left: tuple[str, ...] = ()
    """What is still there, in words."""
