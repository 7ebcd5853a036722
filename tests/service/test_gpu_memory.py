"""After a stop the memory is looked for where the driver can tell."""

from __future__ import annotations

from vtop.service.gpu_memory import memory_left, users_of
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


def test_who_else_holds_memory_of_the_gpus_of_a_server_the_largest_first() -> None:
    processes = (
        GpuProcess(7, 2**30, "python"),
        GpuProcess(8, 9 * 2**30, "VLLM::EngineCore"),
        GpuProcess(9, None, None),
    )
    gpus = (
        GpuReading("GPU-1", 0, "NVIDIA H100", processes=processes),
        GpuReading("GPU-2", 1, "NVIDIA H100", processes=(GpuProcess(10, 2**30, "other"),)),
    )
    both = GpuFrame(GpuStatus(True), gpus)
    said = users_of(both, ["GPU-1"], without={7})
    assert said == "VLLM::EngineCore (pid 8) holds 9.00 GiB of GPU 0, host pid 9 (not visible here) holds – of GPU 0"
    assert "other (pid 10)" in users_of(both, None, without=())
    assert users_of(None, None, without=()) == ""
