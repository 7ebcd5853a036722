"""`vtop web` as a process of its own, with directories of the test's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

SOURCES = Path(__file__).resolve().parents[2] / "tui"


def free_port() -> int:
    """A port that nobody has right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def vtop(*words: str) -> list[str]:
    """The argument vector."""
    return [sys.executable, "-m", "vtop", *words]


def environment() -> dict[str, str]:
    """The test's own directories come with the environment."""
    return {**os.environ, "PYTHONPATH": str(SOURCES), "LANG": "C.UTF-8"}


def run_vtop(*words: str) -> str:
    """Runs one command to its end; what it printed."""
    done = subprocess.run(vtop(*words), env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"vtop {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


class WebProcess:
    """Served until the end of the `with`."""

    def __init__(self, log: Path, *words: str) -> None:
        self.port = free_port()
        self.log = log
        self._words = words

    @property
    def url(self) -> str:
        """The page."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> WebProcess:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                vtop("web", "--port", str(self.port), *self._words),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment(),
            )  # fmt: skip
        end = time.monotonic() + 60
        while not self.listening():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def listening(self) -> list[str]:
        """The addresses on which it accepts connections."""
        connections = psutil.Process(self.process.pid).net_connections(kind="inet")
        return [found.laddr.ip for found in connections if found.status == psutil.CONN_LISTEN]

    def said(self) -> str:
        """All that it wrote."""
        return self.log.read_text(errors="replace")

    def tabs(self) -> list[psutil.Process]:
        """The vtop processes behind its pages."""
        return [child for child in psutil.Process(self.process.pid).children(recursive=True)]
