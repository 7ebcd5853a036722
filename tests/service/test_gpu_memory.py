"""After a stop the memory is looked for where the driver can tell."""

from __future__ import annotations

from vtop.service.gpu_memory import memory_left
from vtop.telemetry.gpu.source import GpuFrame
from vtop.telemetry.snapshot import GpuProcess, GpuReading, GpuStatus


class Frames:
    """Hands out one frame after the other, the last one for ever."""

    def __init__(self, *frames: GpuFrame | None) -> None:
        self._frames = list(frames)

    def gpu_frame(self) -> GpuFrame | None:
        return self._frames.pop(0) if len(self._frames) > 1 else self._frames[0]


def frame(*pids: int) -> GpuFrame:
    processes = tuple(GpuProcess(pid, 2 * 2**30, "VLLM::EngineCore") for pid in pids)
    return GpuFrame(GpuStatus(True), (GpuReading("GPU-1", 0, "NVIDIA H100", processes=processes),))


def test_memory_that_comes_back_late_is_waited_for() -> None:
    assert memory_left(Frames(frame(7, 9), frame(9)), {7}) == []


def test_memory_that_stays_is_named() -> None:
    (left,) = memory_left(Frames(frame(7)), {7}, patience_s=0.0)
    assert "GPU 0 still lists" in left
    assert "2.00 GiB" in left


def test_memory_of_others_does_not_count() -> None:
    assert memory_left(Frames(frame(9)), {7}, patience_s=0.0) == []


def test_nothing_is_said_where_there_are_no_readings() -> None:
    assert memory_left(Frames(None), {7}) == []
