"""Server logs, bounded: reading what was added, reading the end, and keeping the file itself small."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from vtop.vllm.logtext import visible

ROTATE_ABOVE_BYTES = 64 * 1024 * 1024
"""A log beyond this is cut; only its end is kept."""
KEPT_BYTES = 8 * 1024 * 1024
"""How much of the end of a rotated log is kept beside it."""
LONGEST_LINE_BYTES = 64 * 1024
"""A longer line is cut: nobody reads it, and it must not fill the memory."""
DIAGNOSED_LINES = 5000
"""The last lines of a log that a diagnosis looks at; the line that it names is counted in these."""
_READ_BYTES = 1024 * 1024


def clean_line(raw: str) -> str:
    """What a terminal would show of a raw line: the last state of a progress bar, without control characters."""
    return visible(raw)


class LogTail:
    """Reads what was added to a log since the last look; copes with truncation, rotation and half-written lines."""

    def __init__(self, path: Path, *, at_end: bool = False, longest_line_bytes: int = LONGEST_LINE_BYTES) -> None:
        """Begins at the first byte, or at the present end."""
        self._path = path
        self._longest = longest_line_bytes
        self._position = 0
        self._inode: int | None = None
        if at_end:
            with contextlib.suppress(OSError):
                status = path.stat()
                self._position, self._inode = status.st_size, status.st_ino
        self._partial = b""
        self._skipping = False

    def read(self, most_bytes: int = 4 * _READ_BYTES) -> list[str]:
        """The complete lines that were added, raw; at most `most_bytes` of them at a time, the rest next time."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if self._inode not in (None, status.st_ino) or status.st_size < self._position:
                    self._position, self._partial, self._skipping = 0, b"", False
                self._inode = status.st_ino
                file.seek(self._position)
                data = file.read(most_bytes)
                self._position = file.tell()
        except OSError:
            return []
        return [line.decode("utf-8", "replace") for line in self._split(data)]

    @property
    def position(self) -> int:
        """The byte up to which the log has been read."""
        return self._position

    def rest(self) -> str:
        """The last line where its end was never written (a process that died in the middle of it)."""
        return self._partial.decode("utf-8", "replace")

    def _split(self, data: bytes) -> list[bytes]:
        *ended, last = data.split(b"\n")
        lines: list[bytes] = []
        for part in ended:
            whole, self._partial = self._partial + part, b""
            if not self._skipping:
                lines.append(whole[: self._longest].rstrip(b"\r"))
            self._skipping = False
        if not self._skipping:
            self._partial += last
            if len(self._partial) > self._longest:
                # A progress bar redraws itself in one endless line: its newest state is what counts.
                newest = self._partial.rpartition(b"\r")[2]
                if len(newest) <= self._longest:
                    lines.append(self._partial[-self._longest :].partition(b"\r")[2])
                    self._partial = newest
                else:
                    lines.append(self._partial[: self._longest])
                    self._partial, self._skipping = b"", True
        return lines


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log as plain text, read from its end only."""
    return [clean_line(line) for line in last_raw_lines(path, count)]


def last_raw_lines(path: Path, count: int, most_bytes: int = 4 * _READ_BYTES, end: int | None = None) -> list[str]:
    """The last lines of a log as written, read from its end only; goes on in the rotated part where it is short.

    Args:
        path: the log.
        count: lines at most.
        most_bytes: no more than about that is read.
        end: as if the log ended at this byte; None: at its end.
    """
    lines = _end_of(path, count, most_bytes, end)
    if len(lines) < count:
        lines = _end_of(rotated_path(path), count - len(lines), most_bytes) + lines
    return lines


def _end_of(path: Path, count: int, most_bytes: int, end: int | None = None) -> list[str]:
    if count <= 0:
        return []
    data = b""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            position = size if end is None else file.seek(min(end, size))
            while position > 0 and data.count(b"\n") <= count and len(data) < most_bytes:
                step = min(position, 64 * 1024)
                position = file.seek(position - step)
                data = file.read(step) + data
    except OSError:
        return []
    parts = data.split(b"\n")
    if parts[-1] == b"":
        parts.pop()
    return [part[-LONGEST_LINE_BYTES:].decode("utf-8", "replace").rstrip("\r") for part in parts[-count:]]


async def follow(path: Path, last: int = 0, interval_s: float = 0.2) -> AsyncIterator[str]:
    """The last lines of a log, then each line as it comes, plain text; ends when the consumer stops."""
    tail = LogTail(path, at_end=True)
    for line in last_raw_lines(path, last, end=tail.position):
        yield clean_line(line)
    while True:
        lines = tail.read()
        for line in lines:
            yield clean_line(line)
        if not lines:
            await asyncio.sleep(interval_s)


def rotated_path(path: Path) -> Path:
    """Where the end of a rotated log is kept."""
    return path.with_name(path.name + ".1")


def rotate_if_large(path: Path, above_bytes: int = ROTATE_ABOVE_BYTES, kept_bytes: int = KEPT_BYTES) -> bool:
    """Cuts a log that has grown too large, keeping its end in `<name>.1`.

    The server holds the file open in append mode, so the file is cut in place: renaming it would not make it smaller.
    Lines that arrive between the copy and the cut are lost.

    Returns:
        Whether it was cut.

    Raises:
        OSError: the end could not be kept; the log is cut nevertheless, since a full disk is what this prevents.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return False
    if size <= above_bytes:
        return False
    try:
        with open(path, "rb") as file:
            file.seek(max(0, size - kept_bytes))
            end = file.read(kept_bytes)
        kept = rotated_path(path)
        with open(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(end)
    finally:
        os.truncate(path, 0)
    return True
