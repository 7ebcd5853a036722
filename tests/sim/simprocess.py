"""A simulated server as a real process, with its address and log."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

DEADLINE_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class SimProcess:
    """A running process with its address and log."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def until_healthy(self) -> SimProcess:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode}:\n{self.text()}")
            try:
                if httpx.get(self.url + "/health", timeout=2).status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        pytest.fail(f"not healthy in time:\n{self.text()}")

    def metric(self, name: str, label: str = "") -> float:
        """The sum of a family's samples on the page, of those with a label text where one is given."""
        found = [
            float(line.rsplit(" ", 1)[1])
            for line in httpx.get(self.url + "/metrics").text.splitlines()
            if line.startswith(name + "{") and label in line
        ]
        assert found, f"{name} is not on the page"
        return sum(found)


StartSim = Callable[..., SimProcess]
