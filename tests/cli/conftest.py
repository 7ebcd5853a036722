"""vtop as a process, alone or with one simulated server that a whole module shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.vtop_process import Vtop


@pytest.fixture
def vtop(tmp_path: Path) -> Iterator[Vtop]:
    """vtop in directories of its own; nothing of it may run when the test ends."""
    own = Vtop(tmp_path)
    yield own
    left = not own.nothing_runs()
    words = [process.cmdline() for process in own.processes()]
    own.end_everything()
    assert not left, f"left running: {words}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vtop]:
    """vtop with one simulated server, `baseline`, that is ready."""
    own = Vtop(tmp_path_factory.mktemp("served"))
    try:
        own("start", "baseline", "--sim", "--wait", "--set", "port=auto", "--set", "args.startup-s=0.2")
        yield own
        own("stop", "--all", "--yes")
        assert own.nothing_runs()
    finally:
        own.end_everything()
