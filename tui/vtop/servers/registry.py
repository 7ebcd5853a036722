"""The servers below one directory: found on disk, adopted, and followed where other vtops work on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from vtop.clock import Clock
from vtop.errors import VtopError
from vtop.servers import adoption
from vtop.servers.adoption import Whereabouts, whereabouts
from vtop.servers.managed import LIVE, ManagedServer
from vtop.servers.process import ProcessIdentity, marked_processes
from vtop.servers.state_files import StateFolder, StateProblem, folders
from vtop.servers.status import ServerState


class Registry:
    """Name -> server, kept true to the folders."""

    def __init__(
        self,
        root: Path,
        clock: Clock,
        *,
        on_change: Callable[[ManagedServer], None],
        begin_life: Callable[[ManagedServer], None],
        end_life: Callable[[str], None],
    ) -> None:
        """Prepares; `sync()` reads.

        Args:
            root: one folder a server.
            clock: the source of time.
            on_change: told when a server's state or message changed.
            begin_life: called for each server whose process should be watched from now on.
            end_life: called when it should not any more.
        """
        self.servers: dict[str, ManagedServer] = {}
        self._root = root
        self._clock = clock
        self._on_change = on_change
        self._begin_life = begin_life
        self._end_life = end_life
        self._problems: dict[str, StateProblem] = {}
        self._passed_over: dict[str, tuple[int, int] | None] = {}
        """Folders without a usable record, as they were when they were looked at."""

    def problems(self) -> tuple[StateProblem, ...]:
        """Folders whose record cannot be used, and records that cannot be written."""
        unwritten = [
            StateProblem(server.name, server.problem, "Free space on that disk; the server itself runs on.")
            for server in self.servers.values()
            if server.problem
        ]
        return (*self._problems.values(), *unwritten)

    def problem_of(self, name: str) -> StateProblem | None:
        """Why the record of that name cannot be used."""
        return self._problems.get(name)

    def add(self, server: ManagedServer) -> None:
        """Takes in a server that is being started."""
        self.drop(server.name)
        self.servers[server.name] = server

    def drop(self, name: str) -> None:
        """Forgets a server; its folder stays."""
        self._end_life(name)
        self.servers.pop(name, None)
        self._problems.pop(name, None)

    def known(self, name: str) -> ManagedServer:
        """A server by name.

        Raises:
            VtopError: there is none, or its record cannot be used.
        """
        if name in self.servers:
            return self.servers[name]
        if name in self._problems:
            raise VtopError(self._problems[name].what, self._problems[name].remedy)
        known = ", ".join(sorted(self.servers)) or "none"
        raise VtopError(f"vtop has started no server named {name}", f"Known: {known}")

    def members(self, name: str) -> list[ManagedServer]:
        """A server, or all of a deployment.

        Raises:
            VtopError: there is none of that name.
        """
        whole = [server for server in self.servers.values() if server.record.deployment == name]
        if name in self.servers and self.servers[name] not in whole:
            return [self.servers[name]]  # a single server; the others are of an earlier start under its name
        return whole or [self.known(name)]

    async def sync(self, busy: Callable[[ManagedServer], bool]) -> None:
        """Follows what other vtops do in the same directory.

        Args:
            busy: servers that this vtop is stopping itself.
        """
        found = {folder.name: folder for folder in folders(self._root)}
        for name in [name for name in self.servers if name not in found]:
            self.drop(name)
        self._problems = {name: problem for name, problem in self._problems.items() if name in found}
        self._passed_over = {name: seen for name, seen in self._passed_over.items() if name in found}
        fresh = [
            folder
            for name, folder in found.items()
            if name not in self.servers and self._passed_over.get(name, ()) != folder.changed()
        ]
        if fresh:
            marks = await asyncio.to_thread(marked_processes)
            for folder in fresh:
                self._adopt(folder, marks)
        for server in list(self.servers.values()):
            if busy(server):
                continue
            self.take_over(server)
            if server.state is ServerState.STOPPING:
                adoption.settle_interrupted_stop(server)
                if server.state in LIVE:
                    self._begin_life(server)

    def _adopt(self, folder: StateFolder, marks: dict[str, list[ProcessIdentity]]) -> None:
        self._passed_over[folder.name] = folder.changed()
        record = folder.read()
        if record is None:
            return
        if isinstance(record, StateProblem):
            orphans = adoption.orphans_of(folder, marks)
            self._problems[folder.name] = record
            if orphans and "newer" not in record.what:
                stand_in = adoption.record_of_orphans(folder, record.what, orphans, self._clock.wall())
                self.servers[folder.name] = ManagedServer(folder, stand_in, self._clock, self._on_change)
            return
        self._problems.pop(folder.name, None)
        where = whereabouts(record.place)
        if where is Whereabouts.ELSEWHERE:
            what = f"server {folder.name} belongs to another machine ({record.place.machine})"
            self._problems[folder.name] = StateProblem(folder.name, what, "Use vtop there, or another VTOP_STATE_DIR.")
            return
        server = ManagedServer(folder, record, self._clock, self._on_change)
        if where is Whereabouts.RESTARTED:
            adoption.settle_after_restart(server)
        elif server.state is ServerState.STOPPING:
            adoption.settle_interrupted_stop(server)
        elif record.leader is None and server.state is ServerState.STARTING:
            with folder.lock() as free:
                if not free:
                    self._passed_over.pop(folder.name)
                    return  # another vtop is spawning it right now
                adoption.settle_interrupted_start(server, marks.get(server.mark, []))
        self.servers[folder.name] = server
        if server.state in LIVE:
            self._begin_life(server)

    def take_over(self, server: ManagedServer) -> None:
        """Takes in what another vtop wrote into a server's record since the last look."""
        if server.folder.changed() == server.seen_change:
            return
        record = server.folder.read()
        if record is None or isinstance(record, StateProblem):
            server.seen_change = server.folder.changed()
            return
        same = record.leader == server.record.leader
        if same and record.state in LIVE and server.state in LIVE and record.ready_wall_s == server.record.ready_wall_s:
            server.seen_change = server.folder.changed()  # both watch the same process: each trusts its own eyes
            return
        self._end_life(server.name)
        server.reload(record)
        if server.state in LIVE:
            self._begin_life(server)
