"""A program on a real pseudo terminal of a given size: what it writes, what it costs, how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
SOURCES = HERE.parent / "tui"


class Terminal:
    """A program and its terminal; everything that it writes is read at once."""

    def __init__(
        self, command: Sequence[str], size: tuple[int, int], environment: Mapping[str, str] | None = None
    ) -> None:
        self.master, worker = pty.openpty()
        fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        around = {key: value for key, value in os.environ.items() if not key.startswith(("TEXTUAL", "SSH"))}
        around |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", **(environment or {})}
        self.process = subprocess.Popen(
            list(command), stdin=worker, stdout=worker, stderr=worker, env=around, start_new_session=True,
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


def live_app(arguments: Sequence[str], size: tuple[int, int]) -> Terminal:
    """The real screen on the live fake service of `ui.live_app`."""
    command = [sys.executable, "-m", "ui.live_app", *arguments]
    return Terminal(command, size, {"PYTHONPATH": f"{SOURCES}:{HERE}"})


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Memory of a process (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
