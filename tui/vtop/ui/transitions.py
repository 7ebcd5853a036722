"""What has ended: starts that succeeded or failed, servers that went away, load tests, comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtop import units
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import Snapshot

if TYPE_CHECKING:
    from vtop.load.progress import LoadProgress
    from vtop.results.comparison import CompareProgress

RUNNING_LOAD = ("preparing", "warming-up", "running", "stopping")
"""States of a load test that goes on."""


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


class WorkWatch:
    """Load tests and comparisons that were seen to run: their end is told once, wherever the person looks."""

    def __init__(self) -> None:
        self._load = ""
        self._compare = ""

    def endings(self, load: LoadProgress | None, compare: CompareProgress | None) -> list[Ending]:
        """What has ended since the last look. The load tests of a comparison are told with the comparison."""
        found = []
        comparing = compare is not None and compare.state == "running"
        if compare is not None:
            if comparing:
                self._compare = compare.run_id
            elif self._compare == compare.run_id:
                self._compare = ""
                found.append(_comparison_ended(compare))
        if load is not None:
            if load.state in RUNNING_LOAD:
                self._load = "" if comparing else load.run_id
            elif self._load == load.run_id:
                self._load = ""
                found.append(_load_ended(load))
        return found


def _load_ended(progress: LoadProgress) -> Ending:
    if progress.state == "failed":
        return Ending("Load test", f"failed: {progress.message}" if progress.message else "failed", True)
    word = "stopped, what was measured is kept" if progress.state == "cancelled" else "finished"
    return Ending("Load test", f"{word}: {progress.finished} requests, {progress.failed} failed")


def _comparison_ended(progress: CompareProgress) -> Ending:
    done = sum(step.state == "done" for step in progress.steps)
    text = f"{progress.state}: {done} of {len(progress.steps)} runs measured; c shows the table"
    return Ending("Comparison", text, progress.state == "failed")
