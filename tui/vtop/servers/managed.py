"""One server as this vtop holds it: its record, its processes, its log, and the only way to change its state."""

from __future__ import annotations

import contextlib
import re
import secrets as random_names
import time
from collections.abc import Callable
from dataclasses import replace

from vtop.clock import Clock
from vtop.servers.durations import last_start
from vtop.servers.logs import LogTail
from vtop.servers.ports import base_url
from vtop.servers.process import ProcessIdentity, describe, here, key_reference
from vtop.servers.state_files import ServerRecord, StateFolder
from vtop.servers.status import ServerState, ServerStatus, StartProgress
from vtop.servers.tree import ServerTree
from vtop.vllm.launch import LaunchCommand
from vtop.vllm.startup import StartupTracker

S = ServerState
LIVE = frozenset({S.STARTING, S.READY, S.DEGRADED})
"""States in which vtop expects the server's process to run."""
ENDED = frozenset({S.STOPPED, S.FAILED, S.LOST})

_ALLOWED: dict[ServerState, frozenset[ServerState]] = {
    S.STARTING: frozenset({S.READY, S.DEGRADED, S.STOPPING, S.FAILED, S.STOPPED}),
    S.READY: frozenset({S.DEGRADED, S.STOPPING, S.FAILED, S.LOST, S.STOPPED}),
    S.DEGRADED: frozenset({S.READY, S.STOPPING, S.FAILED, S.LOST, S.STOPPED}),
    S.STOPPING: frozenset({S.STOPPED, S.FAILED, S.DEGRADED}),
    S.STOPPED: frozenset({S.STOPPING, S.STARTING}),
    S.FAILED: frozenset({S.STOPPING, S.STARTING}),
    S.LOST: frozenset({S.STOPPING, S.STARTING}),
}
_STAMP = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")


class ReplayClock:
    """A clock that can be set back while a log of earlier is read, so that phases last as long as they did."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: float | None = None

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._clock.monotonic() if self._at is None else self._at

    def wall(self) -> float:
        """See `Clock.wall`."""
        return self._clock.wall()

    def set_to_wall(self, wall_s: float) -> None:
        """Stands at a moment in the past; never goes back from where it stood."""
        at = self._clock.monotonic() - max(0.0, self._clock.wall() - wall_s)
        self._at = at if self._at is None else max(at, self._at)

    def run_on(self) -> None:
        """Shows the present again."""
        self._at = None


def stamp_of(line: str, started_wall_s: float) -> float | None:
    """When a log line was written, from its `MM-DD hh:mm:ss`, which has no year and is local time."""
    found = _STAMP.search(line[:120])
    if found is None:
        return None
    month, day, hour, minute, second = map(int, found.groups())
    started = time.localtime(started_wall_s)
    year = started.tm_year + (1 if month < started.tm_mon else 0)
    try:
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (ValueError, OverflowError):
        return None


class ManagedServer:
    """Record, processes, log and start-up of one server."""

    def __init__(
        self,
        folder: StateFolder,
        record: ServerRecord,
        clock: Clock,
        on_change: Callable[[ManagedServer], None],
        command: LaunchCommand | None = None,
    ) -> None:
        self.folder = folder
        self.record = record
        self.command = command
        """What started it, while the vtop that did so lives; another vtop has only the record."""
        self.fell_back = False
        self.problem = ""
        """Why the record could not be written."""
        self.seen_change = folder.changed()
        self.tree = ServerTree(record.leader, record.processes, self.mark)
        self._clock = clock
        self._on_change = on_change
        self.begin_log()

    @property
    def name(self) -> str:
        """The server's name."""
        return self.folder.name

    @property
    def state(self) -> ServerState:
        """Where it stands."""
        return self.record.state

    @property
    def url(self) -> str:
        """Where it is reached from this machine."""
        return base_url(self.record.host, self.record.port, self.record.scheme)

    @property
    def mark(self) -> str:
        """What its processes carry in their environment."""
        return mark_of(self.folder, self.record.mark)

    def begin_log(self) -> None:
        """Follows the log from its beginning; a start that is under way is replayed in its own time."""
        record = self.record
        expected = last_start(record.preset, record.version, record.simulated) if record.preset else None
        self._replay = ReplayClock(self._clock)
        self._replay.set_to_wall(record.started_wall_s)
        self._tracker = StartupTracker(self._replay, expected.total_s if expected else None)
        self._tail = LogTail(self.folder.log_path)
        self._seen_rest = ""
        if record.state is S.STARTING or record.ready_wall_s is None:
            self._replay_log()
        self._replay.run_on()

    def _replay_log(self) -> None:
        while lines := self._tail.read():
            for line in lines:
                if (stamp := stamp_of(line, self.record.started_wall_s)) is not None:
                    self._replay.set_to_wall(stamp)
                self._tracker.feed(line)
        if rest := self._tail.rest():
            # It was written when the file last was: one that stands still for hours must not look alive again.
            with contextlib.suppress(OSError):
                self._replay.set_to_wall(self.folder.log_path.stat().st_mtime)
            self._seen_rest = rest
            self._tracker.feed_unfinished(rest)

    def read_log(self) -> None:
        """Takes in the lines of the start that came since the last look."""
        for line in self._tail.read():
            self._tracker.feed(line)
        if (rest := self._tail.rest()) != self._seen_rest:
            self._seen_rest = rest
            self._tracker.feed_unfinished(rest)

    def progress(self) -> StartProgress:
        """Where the start stands; silence is no sign of trouble for one that never answers."""
        progress = self._tracker.progress()
        return replace(progress, stuck="") if self.record.headless else progress

    def take_leader(self, leader: ProcessIdentity) -> None:
        """Takes a process that was just spawned as the one that leads the server."""
        self.record.leader = leader
        self.tree = ServerTree(leader, (), self.mark)
        self.save()

    def change_state(self, state: ServerState, message: str = "") -> None:
        """The one place where a state changes: checks that it may, writes it down, tells everyone.

        Raises:
            ValueError: there is no such way between the two states.
        """
        if state is not self.record.state and state not in _ALLOWED[self.record.state]:
            raise ValueError(f"{self.name}: no way from {self.record.state} to {state}")
        self.record.state = state
        self.record.message = message
        if state is not S.STOPPING:
            self.record.stopper = None
        if state is S.READY and self.record.ready_wall_s is None:
            self.record.ready_wall_s = self._clock.wall()
            self._tracker.mark_ready()
        if self.record.progress is None and state is not S.STARTING:
            self.record.progress = self._tracker.progress()
        self.save()
        self._on_change(self)

    def say(self, message: str) -> None:
        """Explains the present state differently; not worth writing down."""
        if message != self.record.message:
            self.record.message = message
            self._on_change(self)

    def save(self) -> None:
        """Writes the record; a full disk is told, and the server is watched on."""
        self.record.processes = self.tree.alive()
        try:
            self.folder.write(self.record)
            self.problem = ""
        except OSError as error:
            self.problem = f"the state of {self.name} cannot be written: {error.strerror}"
        self.seen_change = self.folder.changed()

    def changed_by_another(self) -> bool:
        """Whether another vtop has stopped it, is stopping it, or has started it again since we last looked."""
        if self.folder.changed() == self.seen_change:
            return False
        record = self.folder.read()
        return isinstance(record, ServerRecord) and (record.state not in LIVE or record.leader != self.record.leader)

    def reload(self, record: ServerRecord) -> None:
        """Takes over what another vtop wrote."""
        another_start = self.record.leader != record.leader
        self.record = record
        self.tree = ServerTree(record.leader, record.processes, self.mark)
        self.seen_change = self.folder.changed()
        if another_start:
            self.command = None
            self.begin_log()
        self._on_change(self)

    def status(self) -> ServerStatus:
        """The server, frozen, for everyone who looks."""
        record = self.record
        members = self.tree.alive()
        leader = self.tree.leader
        leads = leader is not None and any(member.same_as(leader) for member in members)
        message = record.message
        if record.state in ENDED and members:
            who = ", ".join(describe(member) for member in members)
            count = f"{len(members)} processes" if len(members) > 1 else "1 process"
            left = f"{count} of it still alive: {who}; stop it to end them"
            message = f"{message}; {left}" if message else left
        progress = self.progress() if record.state is S.STARTING else record.progress
        if progress is not None and record.state is S.STARTING and leader is None:
            progress = replace(progress, text="waiting to be started")
        return ServerStatus(
            name=self.name,
            url=self.url,
            state=record.state,
            preset=record.preset,
            model=record.served_name,
            host=record.host,
            port=record.port,
            version=record.version,
            simulated=record.simulated,
            owned=True,
            pid=leader.pid if leader is not None and leads else None,
            pids=tuple(member.pid for member in members),
            started_wall_s=record.started_wall_s,
            progress=progress,
            diagnosis=record.diagnosis,
            message=message,
            log_path=str(self.folder.log_path),
            gpu_uuids=None if record.gpus is None else tuple(record.gpus),
            gpu_reason="" if record.gpus is not None else "the start did not say which GPUs it may use",
            role=record.role,
            deployment=record.deployment,
            headless=record.headless,
            max_num_seqs=record.max_num_seqs,
            max_num_batched_tokens=record.max_num_batched_tokens,
            max_model_len=record.max_model_len,
        )


def mark_of(folder: StateFolder, random_part: str) -> str:
    """The mark names the folder, so that processes are found even when the record is lost."""
    return f"{folder.path}:{random_part}"


def draft_record(
    folder: StateFolder, preset: str, command: LaunchCommand, deployment: str | None, wall_s: float
) -> ServerRecord:
    """The record of a server that is about to be started."""
    secure = any(word.startswith("--ssl-certfile") for word in command.argv)
    return ServerRecord(
        name=folder.name,
        preset=preset,
        mark=random_names.token_hex(8),
        place=here(),
        served_name=command.served_name,
        host=command.host,
        port=command.port,
        scheme="https" if secure else "http",
        api_key=key_reference(command),
        role=command.role,
        deployment=deployment,
        version=command.version,
        simulated=command.simulated,
        stop_argv=list(command.stop_argv) if command.stop_argv is not None else None,
        shutdown_timeout_s=command.shutdown_timeout_s,
        ready_timeout_s=command.ready_timeout_s,
        max_num_seqs=command.max_num_seqs,
        max_num_batched_tokens=command.max_num_batched_tokens,
        max_model_len=command.max_model_len,
        headless=command.headless,
        gpus=list(command.gpus) if command.gpus is not None else None,
        started_wall_s=wall_s,
    )
