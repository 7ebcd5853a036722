"""Server-sent events: bytes, cut anywhere, to the data of each event."""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"


class SseParser:
    """Reads one stream. How it is cut into reads never changes what comes out, only when.

    Follows the WHATWG event stream rules: lines end with LF, CRLF or CR; a byte order mark at the start, comments,
    `id`, `event` and `retry` are read over; several `data` lines of one event are joined with LF; an event without data
    is no event.
    """

    __slots__ = ("_begun", "_data", "_skip_newline", "_tail", "between")

    def __init__(self) -> None:
        self._begun = False
        self.between = False
        """The next byte begins an event."""
        self._skip_newline = False
        self._tail = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Takes the next bytes and returns the data of every event that they complete."""
        if (
            self.between
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and chunk.count(b"\n") == 2
            and b"\r" not in chunk
            and len(chunk) > 8
        ):
            # By far the most frequent read: one whole event.
            return [chunk[6:-2]]
        events = self._feed(chunk)
        self.between = self._begun and not (self._tail or self._data or self._skip_newline)
        return events

    def _feed(self, chunk: bytes) -> list[bytes]:
        if not self._begun:
            chunk = self._tail + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._tail = chunk
                return []
            self._tail = b""
            self._begun = True
            chunk = chunk.removeprefix(_BOM)
        if not (self._tail or self._data or self._skip_newline) and chunk.endswith(b"\n\n") and b"\r" not in chunk:
            return self._whole_events(chunk)
        return self._lines(chunk)

    def close(self) -> list[bytes]:
        """The data of an event whose blank line never came; for a stream that ended in order."""
        events = self._lines(b"\n\n")
        self._tail = b""
        self._data = []
        self.between = self._begun
        return events

    def _whole_events(self, chunk: bytes) -> list[bytes]:
        """The usual case: the read holds complete events with LF only."""
        events: list[bytes] = []
        for block in chunk[:-2].split(b"\n\n"):
            if block.startswith(b"data: ") and b"\n" not in block:
                if len(block) > 6:
                    events.append(block[6:])
            else:
                events += self._lines(block + b"\n\n")
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._skip_newline and chunk:
            # The CR at the end of the last read already ended the line; an LF now belongs to it.
            self._skip_newline = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._skip_newline = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._tail + chunk).split(b"\n")
        self._tail = lines.pop()
        events: list[bytes] = []
        for line in lines:
            if not line:
                data = b"\n".join(self._data)
                self._data = []
                if data:
                    events.append(data)
                continue
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
        return events
