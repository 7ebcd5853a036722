"""Readings in words, the same on every screen: latencies with their buckets, ages, speculation, verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from vtop import units
from vtop.servers.status import ServerState, ServerStatus
from vtop.telemetry.snapshot import Bandwidth, GpuReading, ServerView, Snapshot
from vtop.vllm.reading import Latency, Quantile

if TYPE_CHECKING:
    from vtop.load.progress import LoadProgress
    from vtop.results.comparison import CompareProgress

STALE_AFTER_S = 3.0
"""A value older than this is drawn dim, with its age."""

SOURCE_WORDS = {
    "gpm": "gpm",
    "dcgm": "dcgm",
    "vllm": "vllm est.",
    "roofline": "estimate",
    "simulated": "simulated",
    "busy": "busy",
}
"""Source of a bandwidth, short."""

SOURCE_HELP = {
    "gpm": "measured by the GPU's own counters (NVML GPM)",
    "dcgm": "measured by DCGM",
    "vllm": "an estimate from vLLM's byte counters",
    "roofline": "vtop's estimate from the model's size and the token rate",
    "simulated": "from the simulated GPU",
    "busy": "NVML utilization.memory: share of time with memory traffic, not bytes",
}
"""Source of a bandwidth, written out."""

Chosen = TypeVar("Chosen")


def bucket_range(quantile: Quantile | None) -> str:
    """A percentile as the bucket it lies in: `100–250 ms`, `> 10 s`."""
    if quantile is None:
        return units.DASH
    low, high = quantile.low_s, quantile.high_s
    if high is None or not math.isfinite(high):
        return f"> {units.duration(low)}"
    factor, unit = (1.0, "s") if high >= 1 else (1e3, "ms") if high >= 1e-3 else (1e6, "µs")
    if low <= 0:
        return f"< {high * factor:g} {unit}"
    return f"{low * factor:g}–{high * factor:g} {unit}"


def latency_mean(latency: Latency | None) -> str:
    """The exact mean, or a dash."""
    return units.duration(latency.mean_s if latency else None)


def latency_age(latency: Latency | None) -> str:
    """How old a latency is where nothing finished in the window: `12 s ago`."""
    if latency is None or latency.age_s <= 0 or latency.mean_s is None:
        return ""
    return f"{units.elapsed(latency.age_s)} ago" if latency.age_s >= 60 else f"{latency.age_s:.0f} s ago"


def server_is_stale(view: ServerView) -> bool:
    """Whether the server's numbers are too old to be shown as the present."""
    age = view.scrape.last_ok_age_s
    if view.status.state in (ServerState.LOST, ServerState.FAILED, ServerState.STOPPED):
        return True
    return view.scrape.state != "ok" and age is not None and age > STALE_AFTER_S


def stale_text(view: ServerView) -> str:
    """How old the server's numbers are, and why: `no answer for 12 s`."""
    age = view.scrape.last_ok_age_s
    if not server_is_stale(view) or age is None:
        return ""
    return f"no answer for {units.elapsed(age)}" if age >= 60 else f"no answer for {age:.0f} s"


def state_word(status: ServerStatus) -> str:
    """The state for a person; somebody else's server is said to be read only."""
    return "foreign, read only" if status.state is ServerState.FOREIGN else status.state.value


def selected(snapshot: Snapshot, name: str | None) -> ServerView | None:
    """The server of that name, else the first one that runs, else the first one."""
    for view in snapshot.servers:
        if view.status.name == name:
            return view
    for state in (ServerState.READY, ServerState.STARTING, ServerState.DEGRADED):
        for view in snapshot.servers:
            if view.status.state is state:
                return view
    return snapshot.servers[0] if snapshot.servers else None


def gpus_of(snapshot: Snapshot, view: ServerView | None) -> Sequence[GpuReading]:
    """The GPUs that a server uses, or all where that is not known."""
    if view is not None and view.status.gpu_uuids:
        mine = [gpu for gpu in snapshot.gpus if gpu.uuid in view.status.gpu_uuids]
        if mine:
            return mine
    return snapshot.gpus


def bandwidth_percent_label(bandwidth: Bandwidth | None) -> str:
    """What the percentage is of: bytes for measured traffic, time for the busy counter."""
    return "mem busy" if bandwidth is not None and bandwidth.source == "busy" else "DRAM"


def bandwidth_amount(bandwidth: Bandwidth | None) -> str:
    """`2.08 of 3.35 TB/s`, only where the bytes are known."""
    if bandwidth is None or bandwidth.bytes_per_s is None:
        return ""
    now = units.bytes_per_s(bandwidth.bytes_per_s)
    if bandwidth.peak_bytes_per_s is None:
        return now
    peak = units.bytes_per_s(bandwidth.peak_bytes_per_s)
    number, _, unit = now.partition(" ")
    return f"{number} of {peak}" if peak.endswith(unit) else f"{now} of {peak}"


def uptime(status: ServerStatus, wall_s: float) -> str:
    """How long the server has been up: `2h14m`."""
    if status.started_wall_s is None:
        return ""
    return units.elapsed(max(0.0, wall_s - status.started_wall_s))


def ago(wall_s: float, now_wall_s: float) -> str:
    """A moment as a distance: `3 min ago`, `2 d ago`."""
    seconds = max(0.0, now_wall_s - wall_s)
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min ago"
    if seconds < 86400:
        return f"{seconds / 3600:.0f} h ago"
    return f"{seconds / 86400:.0f} d ago"


def load_sentence(progress: LoadProgress) -> str:
    """How far a load test is: `Load test: warming up 3 of 8, 0:12 left`."""
    left = f", {units.elapsed(progress.remaining_s)} left" if progress.remaining_s is not None else ""
    if progress.state == "preparing":
        return f"Load test: {progress.message or 'preparing'}."
    if progress.state == "warming-up":
        count = f" {progress.warmup_done} of {progress.warmup_total}" if progress.warmup_total else ""
        return f"Load test: warming up{count}{left}."
    total = f" of {progress.total}" if progress.total else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"Load test: {progress.finished}{total} requests{failed}{left}."


def compare_sentence(progress: CompareProgress) -> str:
    """How far a comparison is: `Comparison: 3 of 9 runs, fp8 loading 41 of 64, about 4:10 left`."""
    done = sum(step.state in ("done", "failed") for step in progress.steps)
    text = f"Comparison: {done} of {len(progress.steps)} runs"
    now = next((step for step in progress.steps if step.state not in ("done", "failed", "waiting")), None)
    if now is not None:
        text += f", {now.preset} {now.state.replace('-', ' ')} {now.detail}".rstrip()
    left = compare_left_s(progress)
    return text + (f", about {units.elapsed(left)} left." if left is not None else ".")


def compare_left_s(progress: CompareProgress) -> float | None:
    """Seconds that a running comparison will still take, by what its runs took so far; None where nothing is known."""
    if progress.state != "running" or not progress.expected_s:
        return None
    return max(0.0, progress.expected_s - progress.elapsed_s)


def step_through(options: Sequence[Chosen], now: Chosen, by: int = 1) -> Chosen:
    """The next option, round about."""
    index = options.index(now) if now in options else -by
    return options[(index + by) % len(options)]
