"""How a start-up stands and why a server died: frozen shapes, filled from its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StartProgress:
    """Where a start-up stands."""

    phase: str
    """`launch`, `config`, `engine`, `nccl`, `download`, `weights`, `compile`, `profile`, `kv-cache`, `graphs`,
    `warm-up` or `ready`."""
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
    stuck: str = ""
    """Why it looks stuck and what to try; "" while it moves."""


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


@dataclass(frozen=True, slots=True)
class DeathContext:
    """What is known about a dead server beside its log."""

    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    """Preset values that it ran with (`port`, `max_num_seqs`, `gpu_memory_utilization`, ...)."""
    was_ready: bool = False
    """It had answered /health."""
    worker_exit_codes: tuple[int, ...] = ()
    """Of its children, where they are known; negative: the signal."""
    port_owner: str = ""
    """Who listens on its port, in words."""
    gpu_users: str = ""
    """Who holds memory of its GPUs, in words."""
