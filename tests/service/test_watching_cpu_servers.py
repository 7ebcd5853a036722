"""A vLLM for CPU has no GPUs: that is said, instead of a start that did not name any."""

from __future__ import annotations

from pathlib import Path

from vtop.servers.status import ServerState, ServerStatus
from vtop.servers.supervisor import Supervisor
from vtop.service.options import ServiceOptions
from vtop.service.watching import ON_CPU, Watch


class Own(Supervisor):
    """A supervisor that knows one server."""

    def __init__(self, root: Path, version: str) -> None:
        super().__init__(root)
        self._version = version

    def statuses(self) -> tuple[ServerStatus, ...]:
        return (ServerStatus("a", "http://127.0.0.1:1", ServerState.READY, owned=True, version=self._version),)


def test_a_cpu_build_says_that_it_runs_on_the_cpu(tmp_path: Path) -> None:
    (status,) = Watch(ServiceOptions(discover=False), Own(tmp_path, "0.32.0+cpu"), lambda: None).statuses()
    assert status.gpu_reason == ON_CPU


def test_another_build_does_not(tmp_path: Path) -> None:
    (status,) = Watch(ServiceOptions(discover=False), Own(tmp_path, "0.33.0"), lambda: None).statuses()
    assert status.gpu_reason != ON_CPU
