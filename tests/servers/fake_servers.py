"""What the tests of servers share: the fake server's commands, patience, waiting."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from vtop.servers.status import ServerState, ServerStatus
from vtop.servers.stopping import StopPatience
from vtop.servers.supervisor import Supervisor
from vtop.vllm.launch import LaunchCommand

FAKE = Path(__file__).with_name("fake_vllm.py")
DEADLINE_S = 40.0
QUICK = StopPatience(
    starting_s=1.0, running_s=4.0, engine_gone_s=0.5, orphans_s=0.5, descendants_s=1.0, kill_s=5.0, port_s=5.0
)
"""Impatient, so that tests of servers that do not go are short."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fake(*words: str, port: int | None = None, **fields: Any) -> LaunchCommand:
    """The command of a fake server."""
    port = port or free_port()
    argv = (sys.executable, str(FAKE), "--port", str(port), *words)
    values: dict[str, Any] = {"argv": argv, "served_name": "tiny", "host": "127.0.0.1", "port": port}
    return LaunchCommand(**{**values, "max_model_len": 2048, **fields})


@contextlib.contextmanager
def running(*argv: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that vtop has nothing to do with; ended with the block."""
    process = subprocess.Popen([sys.executable, *argv], text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def until(supervisor: Supervisor, name: str, *states: ServerState, message: str = "") -> ServerStatus:
    """Waits until a server is in one of the states (with such a message)."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        status = supervisor.status(name)
        if status.state in states and message in status.message:
            return status
        await asyncio.sleep(0.05)
    log = supervisor.log_path(name).read_text()[-2000:]
    raise AssertionError(f"not {states} {message!r}: {supervisor.status(name)}\n{log}")


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until something is true."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.05)


async def get(url: str) -> str:
    """The body of a GET."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(url, timeout=20.0)).text


def gone(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
