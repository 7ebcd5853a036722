"""The whole program on a terminal, watching a server under load ten times a second: nothing of it grows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

from ui.pseudo_terminal import HERE, SOURCES, Terminal

PLACES = {"PYTHONPATH": f"{SOURCES}:{HERE}"}
TEN_TIMES_S = "0.1"
"""Ten readings a second instead of one: three minutes are half an hour of readings."""

WALK = ("e", "\x1b", "g", "\x1b", "s", "\x1b", "r", "\x1b", "?", "\x1b")
"""Into each screen that changes nothing, and back."""


def _vtop(*words: str) -> list[str]:
    return [sys.executable, "-m", "vtop", *words]


@dataclass(frozen=True)
class Held:
    """What the process holds at one moment."""

    memory_bytes: int
    files: int
    threads: int
    children: int

    @classmethod
    def by(cls, pid: int) -> Held:
        """Counts them; memory is the least of a second, because a paint in progress holds more."""
        process = psutil.Process(pid)
        least = process.memory_info().rss
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            least = min(least, process.memory_info().rss)
            time.sleep(0.05)
        return cls(least, process.num_fds(), process.num_threads(), len(process.children(recursive=True)))


@pytest.fixture
def server() -> Iterator[str]:
    """A simulated server that is ready."""
    start = _vtop("start", "baseline", "--sim", "--wait", "--set", "port=auto")
    subprocess.run(start, check=True, capture_output=True, timeout=120, env=_environment())
    yield "baseline"
    stop = _vtop("stop", "--all", "--yes")
    subprocess.run(stop, check=True, capture_output=True, timeout=120, env=_environment())


def _environment() -> dict[str, str]:
    return {**os.environ, **PLACES}


def _soak(server: str, seconds: float, warm_s: float) -> tuple[Held, Held]:
    """What is held after warming up and at the end, with a walk through the screens before each."""
    load = subprocess.Popen(
        _vtop("load", "demo", "--server", server, "-c", "2", "--max-tokens", "32", "--duration", str(seconds + warm_s)),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment(),
    )  # fmt: skip
    terminal = Terminal(_vtop("--interval", TEN_TIMES_S), (120, 40), PLACES)
    try:
        terminal.wait_for(server)

        def walk_for(some_s: float) -> None:
            end = time.monotonic() + some_s
            while time.monotonic() < end:
                for key in WALK:
                    terminal.press(key)
                    terminal.read(0.5)
                    assert terminal.process.poll() is None, bytes(terminal.output[-2000:])
                # Only the program's memory is in question here, and the log of the terminal grows without end.
                del terminal.output[:-4096]

        walk_for(warm_s)
        before = Held.by(terminal.process.pid)
        walk_for(seconds)
        after = Held.by(terminal.process.pid)
        terminal.press("q")
        assert terminal.ended(15.0) == 0
        return before, after
    finally:
        terminal.close()
        with suppress(ProcessLookupError):
            load.terminate()
        load.wait(60)


def _same(before: Held, after: Held, more_bytes: int) -> None:
    assert after.memory_bytes - before.memory_bytes < more_bytes, (before, after)
    # A connection of the moment, or a process list being read, comes and goes.
    assert after.files <= before.files + 3, (before, after)
    assert after.threads <= before.threads + 2, (before, after)
    assert after.children <= before.children, (before, after)


@pytest.mark.skipif(sys.platform != "linux", reason="counts file descriptors by /proc")
@pytest.mark.timeout(180)
def test_some_seconds_at_ten_times_the_rate_grow_nothing(server: str) -> None:
    _same(*_soak(server, 6.0, 4.0), more_bytes=10 * 2**20)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="counts file descriptors by /proc")
def test_half_an_hour_of_readings_grows_nothing(server: str) -> None:
    """1,800 readings; the history of ten minutes may fill, which is the little that memory may grow."""
    _same(*_soak(server, 180.0, 20.0), more_bytes=16 * 2**20)
