"""Records what the hub publishes, and plays it back: gzip of JSON lines, a header first, then one snapshot a line.

A snapshot as JSON holds no key, nor the user and password of an address, so neither does a recording. The file is
readable up to its last flush even when vtop was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from vtop import __version__
from vtop.clock import Clock, SystemClock
from vtop.errors import VtopError
from vtop.telemetry.history import HistoryStore
from vtop.telemetry.points import gpu_point, server_point
from vtop.telemetry.snapshot import Event, GpuStatus, HostReading, Snapshot
from vtop.telemetry.to_json import FORMAT, snapshot_from_json, snapshot_to_json

_KIND = "vtop-recording"
_FLUSH_EVERY = 10
_HISTORY_S = 600.0
_MOST_EVENTS = 200


class Recorder:
    """Writes snapshots to a new file, readable by its owner only; give `write` to `Hub.subscribe`.

    Args:
        path: the file; must not exist.
        clock: for the header's date.

    Raises:
        VtopError: the file exists or cannot be made.
    """

    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self.path = Path(path)
        self.error = ""
        """Why recording ended by itself; "" while it goes on."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise VtopError(
                f"{self.path} exists already", "Give --record a new file name; nothing is overwritten."
            ) from None
        except OSError as error:
            raise VtopError(f"cannot record to {self.path}: {error.strerror}", "Choose another place.") from error
        self._raw = os.fdopen(descriptor, "wb")
        self._file: gzip.GzipFile | None = gzip.GzipFile(fileobj=self._raw, mode="wb", compresslevel=6, mtime=0)
        self._encoder = msgspec.json.Encoder()
        self._last_sequence = 0
        self._events: frozenset[Event] = frozenset()
        self._unflushed = 0
        header = {"kind": _KIND, "format": FORMAT, "vtop": __version__, "at_wall_s": (clock or SystemClock()).wall()}
        self._line(header)

    def write(self, snapshot: Snapshot) -> None:
        """Adds a snapshot; the same one again, or one before the first reading, is left out. Never raises."""
        if self._file is None or snapshot.sequence <= self._last_sequence:
            return
        self._last_sequence = snapshot.sequence
        data = snapshot_to_json(snapshot)
        # By identity and not by time: a driver's event may come in later than one of the hub's that happened after it.
        pairs = zip(snapshot.events, data["events"], strict=True)
        data["events"] = [plain for event, plain in pairs if event not in self._events]
        self._events = frozenset(snapshot.events)
        self._line(data)

    def close(self) -> None:
        """Ends the file properly; harmless when called twice."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                self._raw.close()

    def _line(self, data: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(self._encoder.encode(data) + b"\n")
            self._unflushed += 1
            if self._unflushed >= _FLUSH_EVERY:
                self._file.flush()
                self._raw.flush()
                self._unflushed = 0
        except OSError as error:
            # A full disk ends the recording, not the dashboard.
            self.error = f"recording ended: {error.strerror}"
            self.close()


class _Moment(msgspec.Struct):
    at_s: float


class Replay:
    """Plays a recording: the same `subscribe` and `snapshot` as the hub, and pause, speed and seek.

    Args:
        path: the file.
        clock: paces the play.

    Raises:
        VtopError: no such file, not a recording, of a later format, or nothing in it.
    """

    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self.path = Path(path)
        self.history = HistoryStore()
        self.cut = False
        """The end of the file is missing; everything before it is played."""
        self.header: dict[str, Any] = {}
        self._clock = clock or SystemClock()
        self._lines: list[bytes] = []
        self._times: list[float] = []
        self._load()
        self._speed = 1.0
        self._paused = False
        self._index = -1
        self._position_s = 0.0
        self._anchor_s = self._clock.monotonic()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._subscribers: dict[object, Callable[[Snapshot], None]] = {}
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._snapshot = Snapshot(
            0, self._times[0], 0.0, 0.0, HostReading(""), GpuStatus(False), (), (), self.history, replayed=True
        )
        self.seek(0.0)

    @property
    def duration_s(self) -> float:
        """From the first snapshot to the last."""
        return self._times[-1] - self._times[0]

    @property
    def position_s(self) -> float:
        """Where the play is now, counted from the first snapshot."""
        if self._paused:
            return self._position_s
        moved = (self._clock.monotonic() - self._anchor_s) * self._speed
        return min(self.duration_s, self._position_s + max(0.0, moved))

    @property
    def paused(self) -> bool:
        """Whether time stands still."""
        return self._paused

    @property
    def speed(self) -> float:
        """Recorded seconds in one second."""
        return self._speed

    @property
    def at_end(self) -> bool:
        """Whether the last snapshot is shown."""
        return self._index == len(self._times) - 1

    def pause(self) -> None:
        """Stands still."""
        self._settle()
        self._paused = True
        self._changed.set()

    def resume(self) -> None:
        """Goes on; from the beginning again if it had come to the end."""
        self._settle()
        self._paused = False
        if self.at_end and self._position_s >= self.duration_s:
            self.seek(0.0)
        self._changed.set()

    def set_speed(self, speed: float) -> None:
        """Changes the speed.

        Raises:
            ValueError: it is not above 0.
        """
        if not speed > 0:
            raise ValueError("a speed is above 0")
        self._settle()
        self._speed = speed
        self._changed.set()

    def seek(self, position_s: float) -> None:
        """Jumps; what is beyond an end is that end. Subscribers get the snapshot there, paused or not."""
        self._position_s = min(max(0.0, position_s), self.duration_s)
        self._anchor_s = self._clock.monotonic()
        index = max(0, bisect_right(self._times, self._times[0] + self._position_s + 1e-9) - 1)
        self.history.clear()
        self._events.clear()
        first = bisect_right(self._times, self._times[index] - _HISTORY_S)
        for at in range(min(first, index), index + 1):
            self._show(at)
        self._publish()
        self._changed.set()

    def step(self, count: int = 1) -> None:
        """Pauses and goes some snapshots forward, or back."""
        self.pause()
        index = min(max(0, self._index + count), len(self._times) - 1)
        self.seek(self._times[index] - self._times[0])

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """See `Hub.subscribe`."""
        token = object()
        self._subscribers[token] = callback
        callback(self._snapshot)

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    def snapshot(self) -> Snapshot:
        """The snapshot at the position."""
        return self._snapshot

    @property
    def window_s(self) -> float:
        """The window that was recorded."""
        return self._snapshot.window_s

    def set_window(self, seconds: float) -> None:
        """Nothing: a recording keeps the window that it was made with."""

    async def open(self) -> None:
        """Begins to play."""
        self._anchor_s = self._clock.monotonic()
        self._task = asyncio.create_task(self._play(), name="vtop-replay")

    async def close(self) -> None:
        """Ends the play."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def advance(self) -> float | None:
        """Shows what is due, and says in how many seconds the next snapshot is due (None: paused, or at the end)."""
        if self._paused:
            return None
        now = self._times[0] + self.position_s + 1e-9
        shown = self._index
        while self._index + 1 < len(self._times) and self._times[self._index + 1] <= now:
            self._show(self._index + 1)
        if self._index != shown:
            self._publish()
        if self.at_end:
            return None
        return max(0.0, (self._times[self._index + 1] - now) / self._speed)

    async def _play(self) -> None:
        while True:
            self._changed.clear()
            due = self.advance()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), None if due is None else max(0.005, due))

    def _settle(self) -> None:
        self._position_s = self.position_s
        self._anchor_s = self._clock.monotonic()

    def _show(self, index: int) -> None:
        self._index = index
        try:
            data = msgspec.json.decode(zlib.decompress(self._lines[index]))
            found = snapshot_from_json(data, self.history)
        except (ValueError, msgspec.MsgspecError):
            # One damaged line among good ones: the picture before it stays.
            return
        self._events.extend(found.events)
        self._snapshot = replace(found, events=tuple(self._events), replayed=True, sequence=index + 1)
        for view in found.servers:
            live = view.scrape.state in ("ok", "other-server")
            self.history.add_server(view.status.name, found.at_s, server_point(view) if live else {})
        for gpu in found.gpus:
            self.history.add_gpu(gpu.uuid, found.at_s, gpu_point(gpu))

    def _publish(self) -> None:
        for callback in tuple(self._subscribers.values()):
            callback(self._snapshot)

    def _load(self) -> None:
        lines = self._read_lines()
        header = next(lines, b"")
        try:
            found = msgspec.json.decode(header)
        except msgspec.MsgspecError:
            found = None
        if not isinstance(found, dict) or found.get("kind") != _KIND:
            raise VtopError(f"{self.path} is not a vtop recording", "Record one with `vtop --record FILE`.")
        version = found.get("format")
        if not isinstance(version, int) or version > FORMAT:
            raise VtopError(f"{self.path} was made by a later vtop (format {version})", "Update vtop to play it.")
        self.header = found
        moment = msgspec.json.Decoder(_Moment)
        for line in lines:
            try:
                at_s = moment.decode(line).at_s
            except msgspec.MsgspecError:
                self.cut = True
                continue
            if not self._times or at_s > self._times[-1]:
                self._times.append(at_s)
                self._lines.append(zlib.compress(line, 1))
        if not self._times:
            raise VtopError(f"{self.path} holds no snapshot", "It was cut off before the first one was written.")

    def _read_lines(self) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(31)
        rest = b""
        try:
            with self.path.open("rb") as file:
                while not unpacker.eof and (chunk := file.read(1 << 16)):
                    *whole, rest = (rest + unpacker.decompress(chunk)).split(b"\n")
                    yield from whole
        except OSError as error:
            raise VtopError(f"cannot read {self.path}: {error.strerror}", "Check the path.") from error
        except zlib.error:
            self.cut = True
            return
        if not unpacker.eof or rest:
            self.cut = True
