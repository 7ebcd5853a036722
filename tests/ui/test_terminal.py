"""The real program on a real pseudo terminal: bytes a second, the way out, and a terminal that goes away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ui.pseudo_terminal import Terminal, live_app


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Every terminal put in here is closed at the end."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.mark.parametrize(("size", "limit_kib_per_s"), [((80, 24), 20), ((120, 40), 40)], ids=["80x24", "120x40"])
def test_bytes_a_second_with_live_load_charts(
    terminals: list[Terminal], size: tuple[int, int], limit_kib_per_s: int
) -> None:
    """What a slow link must carry while a load test is drawn; the dashboard with live charts needs less still."""
    terminal = live_app(["live-load"], size)
    terminals.append(terminal)
    terminal.wait_for("baseline")
    terminal.read(2.0)
    seconds = 5.0
    dashboard = terminal.read(seconds) / seconds / 1024
    terminal.press("l")
    terminal.wait_for("Load test")
    terminal.read(2.0)
    load = terminal.read(seconds) / seconds / 1024
    assert 0 < dashboard < limit_kib_per_s
    assert 0 < load < limit_kib_per_s


def test_nothing_new_is_nothing_sent(terminals: list[Terminal]) -> None:
    """An idle server costs the link next to nothing."""
    terminal = live_app(["idle"], (120, 40))
    terminals.append(terminal)
    terminal.wait_for("baseline")
    terminal.read(3.0)
    assert terminal.read(4.0) < 4 * 1024


def test_quits_at_once_with_a_service_that_never_closes(terminals: list[Terminal]) -> None:
    """Relative to the same exit with a service that behaves: a hang must add no more than the time it is given."""
    took = []
    for arguments in (["one"], ["one", "hang"]):
        terminal = live_app(arguments, (80, 24))
        terminals.append(terminal)
        terminal.wait_for("baseline")
        terminal.read(1.0)
        if "hang" in arguments:
            terminal.press("x")
            terminal.read(0.5)
            terminal.press("y")
            terminal.read(0.5)
        start = time.monotonic()
        terminal.press("q")
        assert terminal.ended(10.0) == 0
        took.append(time.monotonic() - start)
        assert "baseline keeps running at http://127.0.0.1:8000" in terminal.output.decode(errors="replace")
    assert took[1] < took[0] + 1.0


def test_leaves_the_terminal_as_it_was(terminals: list[Terminal]) -> None:
    terminal = live_app(["one"], (80, 24))
    terminals.append(terminal)
    terminal.wait_for("baseline")
    terminal.read(0.5)
    terminal.press("q")
    assert terminal.ended(10.0) == 0
    assert b"\x1b[?1049l" in terminal.output
    assert b"\x1b[?25h" in terminal.output


def test_a_terminal_that_goes_away_ends_the_screen(terminals: list[Terminal]) -> None:
    """As when an SSH connection drops: the process must not live on and spin."""
    terminal = live_app(["live"], (80, 24))
    terminal.wait_for("baseline")
    terminal.read(0.5)
    os.close(terminal.master)
    end = time.monotonic() + 10
    while terminal.process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    code = terminal.process.poll()
    if code is None:
        terminal.process.kill()
    assert code == 129


def test_sigterm_ends_it_cleanly(terminals: list[Terminal]) -> None:
    terminal = live_app(["live"], (80, 24))
    terminals.append(terminal)
    terminal.wait_for("baseline")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.ended(10.0) == 0
    assert b"\x1b[?1049l" in terminal.output


def test_control_z_and_back(terminals: list[Terminal]) -> None:
    """Stopped by the key, painted again in full after `fg`, without the frames of the time between."""
    terminal = live_app(["live"], (80, 24))
    terminals.append(terminal)
    terminal.wait_for("baseline")
    terminal.read(1.0)
    terminal.press("\x1a")
    end = time.monotonic() + 10
    while _state(terminal.process.pid) != "T":
        assert time.monotonic() < end
        terminal.read(0.05)
    terminal.read(3.0)
    sent_before = len(terminal.output)
    os.kill(terminal.process.pid, signal.SIGCONT)
    end = time.monotonic() + 10
    # The footer never changes by itself: it comes only with the whole screen.
    while not all(text in terminal.output[sent_before:] for text in (b"baseline", b" Quit")):
        assert time.monotonic() < end, bytes(terminal.output[sent_before:])
        terminal.read(0.05)
    assert len(terminal.output) - sent_before < 64 * 1024
    terminal.press("q")
    assert terminal.ended(10.0) == 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
