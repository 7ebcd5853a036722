"""What ended between two snapshots: starts that succeeded or failed, servers that went away."""

from __future__ import annotations

from dataclasses import dataclass

from vtop import units
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Ending:
    """Something worth a notification."""

    title: str
    text: str
    failed: bool = False


def endings(before: Snapshot | None, now: Snapshot) -> list[Ending]:
    """Endings since the snapshot before; none for what was there from the beginning."""
    if before is None:
        return []
    old = {view.status.name: view.status for view in before.servers}
    found = []
    for view in now.servers:
        status = view.status
        earlier = old.get(status.name)
        if earlier is None or earlier.state is status.state:
            continue
        if status.state is ServerState.READY and earlier.state is ServerState.STARTING:
            took = earlier.progress.elapsed_s if earlier.progress else None
            found.append(Ending(status.name, f"ready after {units.elapsed(took)}" if took else "ready"))
        elif status.state is ServerState.FAILED:
            cause = status.diagnosis.headline if status.diagnosis else status.message or "g shows the log"
            found.append(Ending(status.name, f"failed: {cause}", True))
        elif status.state is ServerState.LOST:
            found.append(Ending(status.name, "is gone", True))
    return found
