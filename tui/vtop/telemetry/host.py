"""The machine and the process trees of servers, through psutil; never blocks to measure."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from pathlib import Path

import psutil

from vtop.telemetry.snapshot import HostReading, TreeReading

CGROUP_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60
"""Version 1 of cgroups writes "no limit" as a number near 2^63."""


class HostSource:
    """Reads CPU and memory; percentages are over the time since the call before, so the first has none.

    Args:
        cgroup_root: where a container's own limits show (Linux).
    """

    def __init__(self, cgroup_root: Path = CGROUP_ROOT) -> None:
        self._hostname = socket.gethostname()
        self._cgroup_root = cgroup_root
        self._first = True
        self._processes: dict[int, psutil.Process] = {}

    def read_host(self) -> HostReading:
        """The machine now; in a container with a memory limit, that limit and what counts against it."""
        percent = psutil.cpu_percent(interval=None)
        first, self._first = self._first, False
        memory = psutil.virtual_memory()
        used, total = int(memory.total - memory.available), int(memory.total)
        limited = container_memory(self._cgroup_root)
        if limited is not None and limited[1] < total:
            used, total = limited
        return HostReading(
            hostname=self._hostname,
            cpu_percent=None if first else percent,
            cpu_count=_cpu_count(),
            memory_used_bytes=used,
            memory_total_bytes=total,
            load1=_load1(),
        )

    def read_tree(self, pids: Collection[int]) -> TreeReading:
        """A server's processes together.

        Args:
            pids: of its tree; those that are gone are left out.

        Returns:
            CPU in percent of one core (None where no process was seen before). Memory is the sum of resident sets, in
            which pages shared between the processes count once for each.
        """
        found, percents, rss = 0, [], 0
        for pid in pids:
            known = self._processes.get(pid)
            try:
                if known is None or not known.is_running():
                    known = psutil.Process(pid)
                    known.cpu_percent(None)  # begins the measurement; its answer is no figure
                    self._processes[pid] = known
                    percent = None
                else:
                    percent = known.cpu_percent(None)
                rss += known.memory_info().rss
            except psutil.Error:
                self._processes.pop(pid, None)
                continue
            found += 1
            if percent is not None:
                percents.append(percent)
        self._forget_the_dead()
        return TreeReading(found, sum(percents) if percents else None, rss if found else None)

    def _forget_the_dead(self) -> None:
        if len(self._processes) > 512:
            self._processes = {pid: known for pid, known in self._processes.items() if known.is_running()}


def _cpu_count() -> int | None:
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity is not None else psutil.cpu_count()


def _load1() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def container_memory(root: Path) -> tuple[int, int] | None:
    """Used and allowed bytes of this container (cgroup version 2, then 1), or None where it has no limit.

    The page cache that can be given back counts in neither, as in `docker stats`.
    """
    for usage, limit, stat, cache in (
        ("memory.current", "memory.max", "memory.stat", "inactive_file"),
        ("memory/memory.usage_in_bytes", "memory/memory.limit_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        try:
            allowed = int((root / limit).read_text(encoding="ascii"))  # "max" is no number: no limit
            used = int((root / usage).read_text(encoding="ascii"))
            lines = (root / stat).read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            continue
        if not 0 < allowed < _NO_LIMIT:
            continue
        reclaimable = next((int(line.split()[1]) for line in lines if line.startswith(f"{cache} ")), 0)
        return max(0, used - reclaimable), allowed
    return None
