"""The real program on a real pseudo terminal: bytes a second, the way out, and a terminal that goes away."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
SOURCES = HERE.parent / "tui"


class Terminal:
    """A program and its terminal; everything that it writes is read at once."""

    def __init__(self, arguments: list[str], size: tuple[int, int]) -> None:
        self.master, worker = pty.openpty()
        fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("TEXTUAL", "SSH"))}
        environment |= {
            "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": f"{SOURCES}:{HERE}", "LANG": "C.UTF-8",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ui.live_app", *arguments], stdin=worker, stdout=worker, stderr=worker,
            env=environment, cwd=HERE, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(worker)
        self.output = bytearray()

    def read(self, seconds: float) -> int:
        """Reads for so long; returns how many bytes came."""
        before = len(self.output)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self.master], [], [], left)
            if not ready:
                break
            try:
                data = os.read(self.master, 65536)
            except OSError:
                break
            if not data:
                break
            self.output += data
        return len(self.output) - before

    def wait_for(self, text: str, seconds: float = 30.0) -> None:
        """Reads until the text has been written."""
        end = time.monotonic() + seconds
        while text.encode() not in self.output:
            assert time.monotonic() < end, f"{text!r} never came: {bytes(self.output[-2000:])!r}"
            assert self.process.poll() is None, bytes(self.output[-2000:])
            self.read(0.05)

    def press(self, keys: str) -> None:
        """Types."""
        os.write(self.master, keys.encode())

    def ended(self, seconds: float) -> int | None:
        """The exit code, if it comes in time; reads on meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.02)
            code = self.process.poll()
            if code is not None:
                return code
        return None

    def close(self) -> None:
        """Ends what is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


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
    terminal = Terminal(["live-load"], size)
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
    terminal = Terminal(["idle"], (120, 40))
    terminals.append(terminal)
    terminal.wait_for("baseline")
    terminal.read(3.0)
    assert terminal.read(4.0) < 4 * 1024


def test_quits_at_once_with_a_service_that_never_closes(terminals: list[Terminal]) -> None:
    """Relative to the same exit with a service that behaves: a hang must add no more than the time it is given."""
    took = []
    for arguments in (["one"], ["one", "hang"]):
        terminal = Terminal(arguments, (80, 24))
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
    terminal = Terminal(["one"], (80, 24))
    terminals.append(terminal)
    terminal.wait_for("baseline")
    terminal.read(0.5)
    terminal.press("q")
    assert terminal.ended(10.0) == 0
    assert b"\x1b[?1049l" in terminal.output
    assert b"\x1b[?25h" in terminal.output


def test_a_terminal_that_goes_away_ends_the_screen(terminals: list[Terminal]) -> None:
    """As when an SSH connection drops: the process must not live on and spin."""
    terminal = Terminal(["live"], (80, 24))
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
    terminal = Terminal(["live"], (80, 24))
    terminals.append(terminal)
    terminal.wait_for("baseline")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.ended(10.0) == 0
    assert b"\x1b[?1049l" in terminal.output


def test_control_z_and_back(terminals: list[Terminal]) -> None:
    """Stopped by the key, painted again in full after `fg`, without the frames of the time between."""
    terminal = Terminal(["live"], (80, 24))
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
    while b"baseline" not in terminal.output[sent_before:]:
        assert time.monotonic() < end
        terminal.read(0.05)
    assert len(terminal.output) - sent_before < 64 * 1024
    terminal.press("q")
    assert terminal.ended(10.0) == 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
