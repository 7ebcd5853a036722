"""What a record from earlier means now: still running, restarted machine, interrupted start or stop, lost record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from vtop.servers.managed import LIVE, ManagedServer
from vtop.servers.process import Place, ProcessIdentity, alive, here
from vtop.servers.state_files import ServerRecord, StateFolder
from vtop.servers.status import ServerState


class Whereabouts(StrEnum):
    """Where the processes of a record ran, seen from here."""

    HERE = "here"
    RESTARTED = "restarted"
    """On this machine (or in this container), before it was restarted."""
    ELSEWHERE = "elsewhere"
    """On another machine that shares the state directory."""


def whereabouts(place: Place) -> Whereabouts:
    """Compares a place with this one. A boot id names one boot of one machine, whatever the machine is called."""
    now = here()
    if place.boot == now.boot:
        return Whereabouts.HERE if place.namespace == now.namespace else Whereabouts.RESTARTED
    return Whereabouts.RESTARTED if place.machine == now.machine else Whereabouts.ELSEWHERE


def settle_after_restart(server: ManagedServer) -> None:
    """A restart of the machine ended everything that ran."""
    if server.state in LIVE or server.state is ServerState.STOPPING:
        server.record.leader = None
        server.change_state(ServerState.STOPPED, "machine was restarted")


def settle_interrupted_start(server: ManagedServer, marked: Sequence[ProcessIdentity]) -> None:
    """A vtop was killed between the decision to start and writing the pid down: the mark tells whether it spawned."""
    if marked:
        server.take_leader(marked[0])
    else:
        server.change_state(ServerState.FAILED, "its start was interrupted before the process existed; start it again")


def settle_interrupted_stop(server: ManagedServer) -> None:
    """The vtop that was stopping it is gone."""
    if server.record.stopper is not None and alive(server.record.stopper):
        return
    if server.tree.leader_alive():
        server.change_state(ServerState.DEGRADED, "a stop was interrupted; stop it again")
    elif server.tree.alive():
        server.change_state(ServerState.FAILED, "a stop was interrupted")
    else:
        server.change_state(ServerState.STOPPED)


def orphans_of(folder: StateFolder, marks: Mapping[str, Sequence[ProcessIdentity]]) -> list[ProcessIdentity]:
    """Living processes that were started in this folder, whatever its record says."""
    prefix = f"{folder.path}:"
    return [member for mark, members in marks.items() if mark.startswith(prefix) for member in members]


def record_of_orphans(folder: StateFolder, what: str, orphans: list[ProcessIdentity], wall_s: float) -> ServerRecord:
    """Stands in for a record that cannot be read while its processes live, so that they can be ended."""
    return ServerRecord(
        name=folder.name,
        preset=None,
        mark="",
        place=here(),
        state=ServerState.LOST,
        message=f"its record {what}",
        processes=orphans,
        served_name="",
        host="127.0.0.1",
        port=0,
        started_wall_s=wall_s,
    )
