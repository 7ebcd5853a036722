"""All that a user interface may ask of vtop: the screens are written against this and nothing below it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    # Nothing here makes one of these: the first frame need not wait for what a load test or a comparison looks like.
    from vtop.load.progress import LoadProgress, LoadRequest, LoadResult
    from vtop.presets import Preset
    from vtop.results.comparison import CompareProgress, CompareRequest
    from vtop.servers.status import StopReport
    from vtop.telemetry.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PresetProblem:
    """A preset file that cannot be used; it blocks only itself."""

    file: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Exactly what a start would do, before it does it."""

    preset: str
    name: str
    commands: tuple[tuple[str, ...], ...]
    """One argv a process; secrets never appear."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What is added to the environment; secret values read `***`."""
    version: str | None = None
    installation: str = ""
    """Where vLLM was found, or `simulated`."""
    simulated: bool = False
    notes: tuple[str, ...] = ()
    """What this version does differently, or needs (a plugin)."""
    warnings: tuple[str, ...] = ()
    """Port taken, GPU memory not free, open to the network without a key."""
    refusal: str = ""
    """Why it cannot start at all; "" when it can."""
    fit: tuple[tuple[str, str], ...] = ()
    """Will it fit: (`weights`, `14.2 GiB`), (`KV capacity`, `432k tokens`), ..."""
    expected_s: float | None = None
    """How long the start took last time."""


@dataclass(frozen=True, slots=True)
class ChatEvent:
    """A piece of a streamed answer, or its end."""

    text: str = ""
    done: bool = False
    ttft_s: float | None = None
    tpot_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadInfo:
    """A workload for menus."""

    name: str
    title: str
    summary: str


@dataclass(frozen=True, slots=True)
class LoadShapeInfo:
    """A load shape (a preset of a load test) for menus."""

    name: str
    title: str
    summary: str
    request: LoadRequest
    """What it asks for, without a server."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A saved run in the list."""

    run_id: str
    kind: str
    """`load`, `compare`, `ladder`."""
    title: str
    at_wall_s: float
    simulated: bool
    complete: bool
    headline: str
    """The one line to show: `892 tok/s · TTFT p50 82 ms`."""


class Playback(Protocol):
    """What a recording can do that the live facade cannot."""

    @property
    def position_s(self) -> float:
        """Where the play is, from the first snapshot."""
        ...

    @property
    def duration_s(self) -> float:
        """From the first snapshot to the last."""
        ...

    def pause(self) -> None:
        """Stands still."""
        ...

    def resume(self) -> None:
        """Goes on; from the beginning again if it had come to the end."""
        ...

    def seek(self, position_s: float) -> None:
        """Jumps; what is beyond an end is that end."""
        ...


def playback_of(service: Service) -> Playback | None:
    """The recording behind a facade, or None where it is live."""
    found: Playback | None = getattr(service, "playback", None)
    return found


class Service(Protocol):
    """The facade. Errors come as `VtopError`; nothing here blocks the event loop."""

    @property
    def readonly(self) -> bool:
        """Nothing that changes anything is allowed."""
        ...

    @property
    def simulated(self) -> bool:
        """New servers are simulated unless asked otherwise (`vtop demo`)."""
        ...

    async def open(self) -> None:
        """Adopts vtop's servers, finds others, starts the pollers."""
        ...

    async def close(self) -> None:
        """Stops pollers and the load worker within 0.3 s; servers live on."""
        ...

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Calls back at once with the newest snapshot, then with each new one; returns the way to stop it."""
        ...

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        ...

    def set_window(self, seconds: float) -> None:
        """Changes the window of every live rate and percentile."""
        ...

    def presets(self) -> tuple[Sequence[Preset], Sequence[PresetProblem]]:
        """Usable presets by name, and the files that are not."""
        ...

    async def plan_start(self, preset: str, overrides: Mapping[str, str] | None = None) -> LaunchPlan:
        """What a start would run; never raises for a refusal (see `LaunchPlan.refusal`)."""
        ...

    async def start_server(self, preset: str, overrides: Mapping[str, str] | None = None) -> str:
        """Spawns it and returns the server's name at once; progress comes with the snapshots."""
        ...

    async def start_again(self, name: str, changes: Mapping[str, str]) -> str:
        """Starts a server that has ended with the words of its last start (preset, overrides, ...) and some changes."""
        ...

    async def stop_server(self, name: str) -> StopReport:
        """Stops and verifies; also cancels a start."""
        ...

    async def forget_server(self, name: str) -> None:
        """Drops a stopped or failed server from the list (its log stays until then)."""
        ...

    def log_lines(self, name: str, last: int = 2000) -> Sequence[str]:
        """The end of a server's log, plain text without control characters."""
        ...

    def workloads(self) -> Sequence[WorkloadInfo]:
        """The built-in workloads."""
        ...

    def load_shapes(self) -> Sequence[LoadShapeInfo]:
        """Shipped load shapes and the user's own; broken files are left out (`vtop presets` names them)."""
        ...

    async def start_load(self, request: LoadRequest) -> str:
        """Starts a load test in its own process; returns the run's id. One at a time."""
        ...

    def load_progress(self) -> LoadProgress | None:
        """The running (or last) load test; changes at most ten times a second."""
        ...

    async def stop_load(self) -> None:
        """Stops it and keeps what was measured."""
        ...

    def load_result(self, run_id: str) -> LoadResult:
        """A saved load test."""
        ...

    def runs(self) -> Sequence[RunSummary]:
        """Saved runs, newest first."""
        ...

    def delete_run(self, run_id: str) -> None:
        """Deletes a saved run; it can be brought back for a week."""
        ...

    def restore_run(self, run_id: str) -> None:
        """Brings a deleted run back."""
        ...

    def run_timeline(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """Server and GPU readings on the run's clock (rows of timeline.jsonl)."""
        ...

    async def plan_compare(self, request: CompareRequest) -> CompareProgress:
        """The steps and the time they will take; starts nothing."""
        ...

    async def start_compare(self, request: CompareRequest) -> str:
        """Starts it; returns its id."""
        ...

    def compare_progress(self) -> CompareProgress | None:
        """The running (or last) comparison."""
        ...

    def compare_result(self, run_id: str) -> CompareProgress:
        """A saved comparison, finished or cut."""
        ...

    async def resume_compare(self, run_id: str) -> str:
        """Goes on with a saved comparison that was cut; returns its id."""
        ...

    async def stop_compare(self) -> None:
        """Stops it, keeps what was measured, leaves no server of it behind."""
        ...

    def export(self, run_id: str, kind: str, path: str | None = None) -> str:
        """Writes a report (`md`, `csv`, `json`, `html`) and returns its path."""
        ...

    def chat(self, name: str, prompt: str) -> AsyncIterator[ChatEvent]:
        """One prompt to a server, streamed."""
        ...
