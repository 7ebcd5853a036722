"""A recording in the place of the live facade: everything can be looked at, nothing can be done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from vtop.contract import ChatEvent, LaunchPlan, LoadShapeInfo, PresetProblem, RunSummary, WorkloadInfo
from vtop.errors import VtopError
from vtop.load.progress import LoadProgress, LoadRequest, LoadResult
from vtop.presets import Preset
from vtop.results.comparison import CompareProgress, CompareRequest
from vtop.servers.status import StopReport
from vtop.telemetry.recording import Replay
from vtop.telemetry.snapshot import Snapshot


def _refuse() -> NoReturn:
    raise VtopError("this is a recording: nothing can be started, stopped or asked", "Start vtop without `replay`.")


class ReplayService:
    """See `contract.Service`; pause, speed and seek are those of `Replay`."""

    def __init__(self, path: str | Path, speed: float = 1.0) -> None:
        """Opens the recording.

        Raises:
            VtopError: no such file, not a recording, or nothing in it.
        """
        self.replay = Replay(path)
        self.replay.set_speed(speed)
        self.playback = self.replay

    readonly = True
    simulated = False

    async def open(self) -> None:
        """Begins to play."""
        await self.replay.open()

    async def close(self) -> None:
        """Ends the play."""
        await self.replay.close()

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """See `contract.Service`."""
        return self.replay.subscribe(callback)

    def snapshot(self) -> Snapshot:
        """See `contract.Service`."""
        return self.replay.snapshot()

    def set_window(self, seconds: float) -> None:
        """A recording keeps the window that it was made with."""

    def presets(self) -> tuple[Sequence[Preset], Sequence[PresetProblem]]:
        """None: nothing can be started."""
        return (), ()

    async def plan_start(self, preset: str, overrides: Mapping[str, str] | None = None) -> LaunchPlan:
        """See `contract.Service`."""
        return LaunchPlan(preset=preset, name=preset, commands=(), refusal="this is a recording")

    async def start_server(self, preset: str, overrides: Mapping[str, str] | None = None) -> str:
        """Refused."""
        _refuse()

    async def start_again(self, name: str, changes: Mapping[str, str]) -> str:
        """Refused."""
        _refuse()

    async def stop_server(self, name: str) -> StopReport:
        """Refused."""
        _refuse()

    async def forget_server(self, name: str) -> None:
        """Refused."""
        _refuse()

    def log_lines(self, name: str, last: int = 2000) -> Sequence[str]:
        """Logs are not recorded."""
        return ("A recording holds no logs.",)

    def workloads(self) -> Sequence[WorkloadInfo]:
        """None."""
        return ()

    def load_shapes(self) -> Sequence[LoadShapeInfo]:
        """None."""
        return ()

    async def start_load(self, request: LoadRequest) -> str:
        """Refused."""
        _refuse()

    def load_progress(self) -> LoadProgress | None:
        """None: load tests are not recorded."""
        return None

    async def stop_load(self) -> None:
        """Refused."""
        _refuse()

    def load_result(self, run_id: str) -> LoadResult:
        """Refused."""
        _refuse()

    def runs(self) -> Sequence[RunSummary]:
        """None."""
        return ()

    def delete_run(self, run_id: str) -> None:
        """Refused."""
        _refuse()

    def restore_run(self, run_id: str) -> None:
        """Refused."""
        _refuse()

    def run_timeline(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """None."""
        return ()

    async def plan_compare(self, request: CompareRequest) -> CompareProgress:
        """Refused."""
        _refuse()

    async def start_compare(self, request: CompareRequest) -> str:
        """Refused."""
        _refuse()

    def compare_result(self, run_id: str) -> CompareProgress:
        """Refused."""
        _refuse()

    async def resume_compare(self, run_id: str) -> str:
        """Refused."""
        _refuse()

    def compare_progress(self) -> CompareProgress | None:
        """None."""
        return None

    async def stop_compare(self) -> None:
        """Refused."""
        _refuse()

    def export(self, run_id: str, kind: str, path: str | None = None) -> str:
        """Refused."""
        _refuse()

    async def chat(self, name: str, prompt: str) -> AsyncIterator[ChatEvent]:
        """Refused, as the answer of the chat."""
        yield ChatEvent(done=True, error="this is a recording")
