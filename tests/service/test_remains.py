"""Orphans are told with what they hold and how they are ended; a pid of the host's is nobody's here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from vtop.servers.status import ServerState, ServerStatus
from vtop.service.remains import Remains, find_remains
from vtop.telemetry.gpu.source import GpuFrame
from vtop.telemetry.snapshot import GpuProcess, GpuReading, GpuStatus


@pytest.fixture
def orphan() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process.pid
    process.kill()
    process.wait()


def _frame(pid: int, name: str | None) -> GpuFrame:
    process = GpuProcess(pid, 61 * 2**30, name)
    return GpuFrame(GpuStatus(True), (GpuReading("GPU-1", 3, "NVIDIA H100", processes=(process,)),))


def _status(pid: int, state: ServerState = ServerState.FAILED, owned: bool = True) -> ServerStatus:
    return ServerStatus(name="one", url="http://127.0.0.1:1", state=state, owned=owned, pids=(pid,))


def _own(*arguments: Any) -> list[Remains]:
    """Without what others have left on this machine."""
    return [left for left in find_remains(*arguments) if left.name]


def test_what_they_hold_and_the_way_to_end_them(orphan: int) -> None:
    (left,) = _own([_status(orphan)], _frame(orphan, "python"))
    assert left.name == "one"
    assert left.text.startswith(f"1 process of one outlived it ({orphan} python")
    assert "of memory, 61.0 GiB on GPU 3" in left.text
    assert left.remedy.endswith("vtop stop one")


def test_a_pid_of_the_host_seen_from_a_container_is_not_counted(orphan: int) -> None:
    (left,) = _own([_status(orphan)], _frame(orphan, None))
    assert "GPU" not in left.text


@pytest.mark.parametrize(
    ("state", "owned"), [(ServerState.READY, True), (ServerState.STARTING, True), (ServerState.FOREIGN, False)]
)
def test_a_living_server_or_somebody_elses_is_no_leftover(orphan: int, state: ServerState, owned: bool) -> None:
    assert _own([_status(orphan, state, owned)], None) == []
