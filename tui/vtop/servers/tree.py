"""The processes of one server: recorded while they live, so that they are known after they lost their parent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from vtop.servers.process import ProcessIdentity, ProcessRow, alive, boot_id, identity_of, marked_processes, short_title

_TITLE_AGE_S = 60.0
"""vLLM names its processes some time after it forked them; until then the title is looked at again."""


class ServerTree:
    """The leader that vtop spawned and everything that came from it.

    A process belongs to the tree when it descends from a recorded one that lives, sits in the leader's session while a
    recorded member still holds that session, or carries the server's mark. A title proves nothing.
    """

    def __init__(
        self, leader: ProcessIdentity | None, recorded: Iterable[ProcessIdentity] = (), mark: str = ""
    ) -> None:
        self.leader = leader
        self.mark = mark
        self._members: dict[int, ProcessIdentity] = {member.pid: member for member in recorded}
        if leader is not None:
            self._members[leader.pid] = leader

    def alive(self) -> list[ProcessIdentity]:
        """Members that run now, oldest first."""
        return sorted((member for member in self._members.values() if alive(member)), key=lambda m: m.started)

    def leader_alive(self) -> bool:
        """Whether the process that vtop spawned runs."""
        return self.leader is not None and alive(self.leader)

    def others_alive(self) -> list[ProcessIdentity]:
        """Living members without the leader."""
        return [m for m in self.alive() if self.leader is None or not m.same_as(self.leader)]

    def refresh(self, table: Mapping[int, ProcessRow]) -> bool:
        """Takes in new members and drops dead ones.

        Returns:
            Whether anything changed.
        """
        before = set(self._members.values())
        members = {
            pid: member
            for pid, member in self._members.items()
            if member.boot == boot_id()
            and (line := table.get(pid)) is not None
            and line.started == member.started
            and not line.zombie
        }
        children: dict[int, list[ProcessRow]] = {}
        for line in table.values():
            children.setdefault(line.parent, []).append(line)
        # A session's number cannot be given away while a member of it lives.
        sessions = {table[pid].session for pid in members if table[pid].session == self._session()}
        newest = max((line.started for line in table.values()), default=0.0)
        frontier = [*members, *(line.pid for line in table.values() if line.session in sessions)]
        seen: set[int] = set()
        while frontier:
            pid = frontier.pop()
            if pid in seen:
                continue
            seen.add(pid)
            line = table[pid]
            if line.zombie or pid == os.getpid():
                continue
            known = members.get(pid)
            if known is None:
                members[pid] = identity_of(line)
            elif not known.title.startswith("VLLM::") and newest - line.started < _TITLE_AGE_S:
                members[pid] = ProcessIdentity(pid, known.started, known.boot, short_title(pid) or known.title)
            frontier.extend(child.pid for child in children.get(pid, ()))
        self._members = members
        return set(members.values()) != before

    def find_marked(self, table: Mapping[int, ProcessRow]) -> bool:
        """Takes in every process that carries the server's mark, wherever it has gone.

        Returns:
            Whether any was new.
        """
        found = [m for m in marked_processes(table).get(self.mark, []) if m.pid not in self._members]
        self._members |= {member.pid: member for member in found}
        return bool(found)

    def _session(self) -> int:
        return self.leader.pid if self.leader is not None else -1
