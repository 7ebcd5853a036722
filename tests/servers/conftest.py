"""Servers for tests: real processes that end with the test, whatever the test did."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fake_servers import QUICK

from vtop.servers.process import marked_processes
from vtop.servers.supervisor import Supervisor


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A servers directory; no process that was started in it outlives the test."""
    path = tmp_path / "servers"
    path.mkdir()
    yield path
    left = [member for mark, members in marked_processes().items() if mark.startswith(str(path)) for member in members]
    for member in left:
        os.kill(member.pid, signal.SIGKILL)
    assert not left, f"left running by the test: {left}"


@pytest.fixture
async def supervisor(root: Path) -> AsyncIterator[Supervisor]:
    """An open supervisor; what it still runs is stopped at the end."""
    one = Supervisor(root, patience=QUICK)
    await one.open()
    yield one
    await one.stop_all()
    await one.close()
