"""One frozen picture of everything, as the hub publishes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vtop.servers.status import ServerStatus
from vtop.vllm.reading import EngineReading, ScrapeStatus


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """DRAM traffic with its source; two sources are never mixed in one line."""

    source: str
    """`gpm` or `dcgm` (measured), `vllm` (its byte counters: an estimate), `roofline` (vtop's estimate), `busy` (share
    of time, not bytes), `simulated`."""
    percent: float | None
    """Of peak, 0..100; for `busy` of time."""
    bytes_per_s: float | None = None
    """None where the peak is unknown, the clock is reduced, or the source is `busy`."""
    peak_bytes_per_s: float | None = None
    peak_source: str = ""
    """`nvml` (clock x bus width), `table`, `datasheet`, `user`."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds GPU memory, by the driver's word."""

    pid: int
    memory_used_bytes: int | None
    name: str | None = None
    """None where the pid is not one of ours to see (containers)."""


@dataclass(frozen=True, slots=True, eq=False)
class GpuReading:
    """One GPU (or MIG instance) now. None: not reported, with the reason in `missing`."""

    uuid: str
    index: int
    name: str
    bandwidth: Bandwidth | None = None
    gpu_util_percent: float | None = None
    """NVML utilization.gpu: share of time with any kernel running."""
    mem_busy_percent: float | None = None
    """NVML utilization.memory: share of time with memory traffic, not bytes."""
    sm_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    unified_memory: bool = False
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded; differences give energy per token."""
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    throttle: tuple[str, ...] = ()
    """Reasons in words; a software power cap under load is normal."""
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    ecc_uncorrected: int | None = None
    fan_percent: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    mig_parent: str | None = None
    """UUID of the GPU that this MIG instance is part of."""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    pci_bus_id: str | None = None
    pcie_generation: int | None = None
    """Of the link now; it drops at idle to save power, which is no fault."""
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    host: str = ""
    """Where it is, by the name under which its exporter is asked; "": in this machine."""
    lost: bool = False
    age_s: float = 0.0
    """Age of these values."""
    simulated: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """Whether there are GPU readings at all."""

    available: bool
    message: str = ""
    """Why not, and what to do, in one line."""
    driver: str | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine."""

    hostname: str
    cpu_percent: float | None = None
    cpu_count: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    load1: float | None = None


@dataclass(frozen=True, slots=True)
class TreeReading:
    """A server's process tree on the host."""

    processes: int
    cpu_percent: float | None = None
    rss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for marks on charts and the event list."""

    at_s: float
    """Monotonic."""
    kind: str
    """`restart`, `load-start`, `load-end`, `throttle`, `xid`, `ecc`, `gpu-lost`, `state`."""
    subject: str
    """Server name or GPU UUID."""
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What bounds a server now, in one sentence, and at most one suggestion."""

    bound: str
    """`bandwidth`, `compute`, `queue-kv`, `queue-seqs`, `queue-tokens`, `idle`, `client`, `overhead`, `unknown`."""
    headline: str
    suggestion: str = ""
    tpot_floor_s: float | None = None
    """The physical floor at this batch, where model and card are known."""
    terms: tuple[tuple[str, str], ...] = ()
    """The arithmetic written out, name and text with numbers, for Explain."""


@dataclass(frozen=True, slots=True, eq=False)
class ServerView:
    """One server: its process, its page, its verdict."""

    status: ServerStatus
    scrape: ScrapeStatus
    engines: tuple[EngineReading, ...] = ()
    """One a model; the first is the server's own where its name is known."""
    tree: TreeReading | None = None
    verdict: Verdict | None = None
    joules_per_token: float | None = None

    @property
    def engine(self) -> EngineReading | None:
        """The reading to show, or None."""
        return self.engines[0] if self.engines else None


class History(Protocol):
    """Recent values, kept by the hub."""

    def series(self, key: str, seconds: float | None = None) -> tuple[Sequence[float], Sequence[float | None]]:
        """Times (monotonic seconds, rising) and values of one series; both empty where it is unknown.

        Keys: `server/NAME/FIELD` with FIELD one of ttft_mean_s, ttft_p95_s, tpot_mean_s, generation_tokens_per_s,
        prompt_tokens_per_s, requests_per_s, running, waiting, kv_usage, prefix_hit_rate, acceptance, tpot_floor_s;
        `gpu/UUID/FIELD` with FIELD one of bandwidth_percent, sm_percent, gpu_util_percent, memory_used_bytes, power_w.
        None marks a gap.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Everything at one moment."""

    sequence: int
    at_s: float
    """Monotonic."""
    at_wall_s: float
    window_s: float
    """The window that was asked for; each reading says what it really covers."""
    host: HostReading
    gpu_status: GpuStatus
    gpus: tuple[GpuReading, ...]
    servers: tuple[ServerView, ...]
    history: History
    events: tuple[Event, ...] = ()
    simulated: bool = False
    """Anything in here is simulated."""
    replayed: bool = False
