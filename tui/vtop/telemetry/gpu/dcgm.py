"""DRAM and tensor activity from a dcgm-exporter that runs already: data-centre GPUs before Hopper, and remote hosts.

The exporter's ratios are DCGM's profiling metrics (0..1, an average over its own collection interval, 30 s unless it
was told otherwise). What a GPU does not report is absent from the page, not 0. Rows are matched by UUID.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from vtop.clock import Clock
from vtop.hardware import peak_bandwidth
from vtop.late_httpx import httpx
from vtop.telemetry.gpu.device import FULL_CLOCK_SHARE
from vtop.telemetry.gpu.matching import is_here
from vtop.telemetry.gpu.source import GpuFrame, GpuSource
from vtop.telemetry.prometheus import PageParser
from vtop.telemetry.snapshot import Bandwidth, GpuReading, GpuStatus

DEADLINE_S = 1.0
"""For a whole page; the worker thread that asks has other GPUs to read."""
INTERVAL_S = 1.0
PAUSE_AFTER_FAILURE_S = 10.0
STALE_S = 60.0
"""A page older than this says nothing about now."""
MOST_BYTES = 8 * 2**20
_MIB = 2**20

_DRAM = ("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO")
_SM, _OCCUPANCY, _TENSOR = "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
_PCIE_TX, _PCIE_RX = "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES"
_NVLINK_TX, _NVLINK_RX = "DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"
_UTIL, _MEM_BUSY, _TEMP, _MEM_TEMP = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_MEMORY_TEMP",
)
_POWER = "DCGM_FI_DEV_POWER_USAGE"
_USED, _FREE, _RESERVED = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
_SM_CLOCK, _MEM_CLOCK = "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK"
_NAMES = frozenset(
    {
        *_DRAM,
        *(_SM, _OCCUPANCY, _TENSOR, _PCIE_TX, _PCIE_RX, _NVLINK_TX, _NVLINK_RX, _UTIL, _MEM_BUSY, _TEMP, _MEM_TEMP),
        *(_POWER, _USED, _FREE, _RESERVED, _SM_CLOCK, _MEM_CLOCK),
    }
)
_MOST_PERCENT = 400.0


@dataclass(slots=True)
class DcgmRow:
    """What the exporter says about one GPU or MIG instance."""

    uuid: str
    """Of the whole GPU, for its instances too."""
    gpu_instance_id: int | None
    index: int
    name: str
    profile: str
    values: dict[str, float] = field(default_factory=dict)

    def ratio_percent(self, *names: str) -> float | None:
        """A ratio of 1 as percent; None where it is absent or out of all bounds."""
        for name in names:
            value = self.values.get(name)
            if value is not None and 0 <= value * 100.0 <= _MOST_PERCENT:
                return value * 100.0
        return None

    def number(self, name: str, most: float, factor: float = 1.0) -> float | None:
        """A figure within bounds (DCGM writes "blank" as enormous numbers)."""
        value = self.values.get(name)
        return value * factor if value is not None and 0 <= value <= most else None


RowKey = tuple[str, int | None]


class DcgmExporter:
    """Asks one exporter, at most once a second.

    Args:
        url: its address; `/metrics` is added where it has no path.
        clock: intervals and ages.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        split = urlsplit(url if "://" in url else f"http://{url}")
        self.url = split.geturl() if split.path not in ("", "/") else f"{split.scheme}://{split.netloc}/metrics"
        self.problem = ""
        """Why there is no page, and what to do; "" while there is one."""
        self.rows: dict[RowKey, DcgmRow] = {}
        self.read_s = -math.inf
        self._clock = clock
        self._next_s = -math.inf
        self._parser = PageParser(_NAMES)
        self._client: httpx.Client | None = None

    def poll(self) -> None:
        """Reads the page if it is time to; never raises, and comes back within its deadline."""
        now_s = self._clock.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + INTERVAL_S
        try:
            rows = rows_of(self._parser, self._fetch())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            cause = "no answer in time" if isinstance(error, httpx.TimeoutException) else str(error) or "no answer"
            self.problem = f"{self.title}: {cause}; check --dcgm-url"
            self._next_s = now_s + PAUSE_AFTER_FAILURE_S
        except ValueError as error:
            self.problem = f"{self.title}: {error}; check --dcgm-url"
            self._next_s = now_s + PAUSE_AFTER_FAILURE_S
        else:
            self.rows, self.read_s, self.problem = rows, now_s, ""
            if rows and not any(row.ratio_percent(*_DRAM) is not None for row in rows.values()):
                self.problem = (
                    f"{self.title} does not export DCGM_FI_PROF_DRAM_ACTIVE; "
                    "add it to its counters file (needs a data-centre GPU, or GeForce from the 50 series)"
                )
        if self._clock.monotonic() - self.read_s > STALE_S:
            self.rows = {}

    @property
    def host(self) -> str:
        """The machine that it is asked at; "" for this one."""
        host = urlsplit(self.url).hostname or ""
        return "" if is_here(host) else host

    @property
    def title(self) -> str:
        """What it is and where, without credentials."""
        split = urlsplit(self.url)
        place = f"{split.hostname or ''}:{split.port}" if split.port else split.hostname or ""
        return f"dcgm-exporter at {place}"

    def _fetch(self) -> bytes:
        # The deadline is for all of it: a page that drips would satisfy every single read's time limit.
        end_s = self._clock.monotonic() + DEADLINE_S
        if self._client is None:
            self._client = httpx.Client(timeout=httpx.Timeout(DEADLINE_S / 2), trust_env=False, follow_redirects=True)
        body = bytearray()
        with self._client.stream("GET", self.url) as response:
            if response.status_code != 200:
                raise ValueError(f"it answers with status {response.status_code}")
            for part in response.iter_bytes():
                body += part
                if len(body) > MOST_BYTES:
                    raise ValueError("its page is larger than 8 MiB")
                if self._clock.monotonic() > end_s:
                    raise httpx.ReadTimeout("the page took too long")
        return bytes(body)

    def close(self) -> None:
        """Drops the connection."""
        if self._client is not None:
            self._client.close()
        self._client = None


def rows_of(parser: PageParser, body: bytes) -> dict[RowKey, DcgmRow]:
    """An exporter's page to one row a GPU and MIG instance.

    Raises:
        ValueError: the page has none of DCGM's figures.
    """
    page = parser.parse(body)
    rows: dict[RowKey, DcgmRow] = {}
    for series, value in zip(page.layout.series, page.values, strict=True):
        labels = dict(series.labels)
        uuid = labels.get("UUID", "")
        if not uuid or not math.isfinite(value):
            continue
        instance = labels.get("GPU_I_ID", "")
        key = (uuid, int(instance) if instance.isdigit() else None)
        row = rows.get(key)
        if row is None:
            place = labels.get("gpu", "")
            index = int(place) if place.isdigit() else len(rows)
            name = labels.get("modelName", "NVIDIA GPU")
            row = rows[key] = DcgmRow(uuid, key[1], index, name, labels.get("GPU_I_PROFILE", ""))
        row.values[series.name] = value
    if not rows:
        raise ValueError("the page has no DCGM figures")
    return rows


def _bandwidth(row: DcgmRow, peak: float | None, peak_source: str, clock_ok: bool) -> Bandwidth | None:
    percent = row.ratio_percent(*_DRAM)
    if percent is None:
        return None
    whole = row.gpu_instance_id is None
    known = peak is not None and clock_ok and whole
    return Bandwidth(
        "dcgm",
        percent,
        percent / 100.0 * peak if known and peak is not None else None,
        peak if whole else None,
        peak_source if whole else "",
    )


class DcgmOverlay:
    """This machine's GPUs and what an exporter says: about the same GPUs, by UUID, or about those of another machine.

    Of GPUs that both see, DRAM, SM and tensor activity are the exporter's where the machine has none of its own.

    Args:
        source: the GPUs of this machine.
        exporter: an exporter here or elsewhere.
        clock: ages of what only the exporter sees.
        peak_override_bytes_per_s: see `NvmlSource`.
    """

    def __init__(
        self,
        source: GpuSource,
        exporter: DcgmExporter,
        clock: Clock,
        peak_override_bytes_per_s: Mapping[str, float] | None = None,
    ) -> None:
        self._source = source
        self._exporter = exporter
        self._elsewhere = DcgmSource(exporter, clock, peak_override_bytes_per_s)

    def open(self) -> None:
        """See `GpuSource.open`."""
        self._source.open()

    def read(self) -> GpuFrame:
        """See `GpuSource.read`."""
        frame = self._source.read()
        self._exporter.poll()
        gpus = tuple(self._laid_over(gpu) for gpu in frame.gpus)
        others: tuple[GpuReading, ...] = ()
        if self._exporter.host or not gpus:
            known = {gpu.mig_parent or gpu.uuid for gpu in gpus}
            others = tuple(gpu for gpu in self._elsewhere.read().gpus if (gpu.mig_parent or gpu.uuid) not in known)
        status = frame.status
        if self._exporter.problem:
            message = "; ".join(part for part in (status.message, self._exporter.problem) if part)
            status = replace(status, message=message)
        elif others:
            status = replace(status, available=True, message="" if gpus else f"shown by the {self._exporter.title}")
        elif gpus and not any((gpu.mig_parent or gpu.uuid, gpu.gpu_instance_id) in self._exporter.rows for gpu in gpus):
            status = replace(status, message=f"{self._exporter.title} knows none of these GPUs (by UUID)")
        return GpuFrame(status, (*gpus, *others), frame.events)

    def _laid_over(self, gpu: GpuReading) -> GpuReading:
        row = self._exporter.rows.get((gpu.mig_parent or gpu.uuid, gpu.gpu_instance_id))
        if row is None or gpu.lost or (gpu.bandwidth is not None and gpu.bandwidth.source == "gpm"):
            return gpu
        peak = gpu.bandwidth.peak_bytes_per_s if gpu.bandwidth is not None else None
        peak_source = gpu.bandwidth.peak_source if gpu.bandwidth is not None else ""
        top, now = gpu.memory_clock_max_mhz, gpu.memory_clock_mhz
        bandwidth = _bandwidth(row, peak, peak_source, not top or (now is not None and now > FULL_CLOCK_SHARE * top))
        if bandwidth is None:
            return gpu
        found = {
            "sm_percent": _first(gpu.sm_percent, row.ratio_percent(_SM)),
            "sm_occupancy_percent": _first(gpu.sm_occupancy_percent, row.ratio_percent(_OCCUPANCY)),
            "tensor_percent": _first(gpu.tensor_percent, row.ratio_percent(_TENSOR)),
        }
        answered = {name for name, value in found.items() if value is not None} | {"bandwidth"}
        return replace(
            gpu,
            bandwidth=bandwidth,
            sm_percent=found["sm_percent"],
            sm_occupancy_percent=found["sm_occupancy_percent"],
            tensor_percent=found["tensor_percent"],
            missing={name: why for name, why in gpu.missing.items() if name not in answered},
        )

    def close(self) -> None:
        """See `GpuSource.close`."""
        self._source.close()
        self._exporter.close()


def _first(one: float | None, other: float | None) -> float | None:
    return one if one is not None else other


class DcgmSource:
    """GPUs as an exporter sees them, of another machine or of this one.

    Args:
        exporter: which one.
        clock: ages.
        peak_override_bytes_per_s: see `NvmlSource`.
    """

    def __init__(
        self, exporter: DcgmExporter, clock: Clock, peak_override_bytes_per_s: Mapping[str, float] | None = None
    ) -> None:
        self._exporter = exporter
        self._clock = clock
        self._overrides = dict(peak_override_bytes_per_s or {})

    def open(self) -> None:
        """See `GpuSource.open`."""

    def read(self) -> GpuFrame:
        """See `GpuSource.read`."""
        self._exporter.poll()
        age_s = max(0.0, self._clock.monotonic() - self._exporter.read_s)
        rows = sorted(self._exporter.rows.values(), key=lambda row: (row.index, row.gpu_instance_id or 0))
        gpus = tuple(self._reading(row, age_s) for row in rows)
        return GpuFrame(GpuStatus(bool(gpus), self._exporter.problem), gpus)

    def _reading(self, row: DcgmRow, age_s: float) -> GpuReading:
        used = row.number(_USED, 2**26, _MIB)
        free, reserved = row.number(_FREE, 2**26, _MIB), row.number(_RESERVED, 2**26, _MIB) or 0.0
        total = None if used is None or free is None else used + free + reserved
        override = self._overrides.get(row.uuid, self._overrides.get(str(row.index), self._overrides.get("*")))
        peak = peak_bandwidth(row.name, memory_total_bytes=total, override=override)
        instance = row.gpu_instance_id is not None
        return GpuReading(
            uuid=f"{row.uuid}/gi{row.gpu_instance_id}" if instance else row.uuid,
            index=row.index,
            name=f"{row.name} MIG {row.profile}" if instance else row.name,
            bandwidth=_bandwidth(row, peak.bytes_per_s if peak else None, peak.source if peak else "", True)
            or Bandwidth("busy", row.number(_MEM_BUSY, 100), None, peak.bytes_per_s if peak and not instance else None),
            gpu_util_percent=row.number(_UTIL, 100),
            mem_busy_percent=row.number(_MEM_BUSY, 100),
            sm_percent=row.ratio_percent(_SM),
            sm_occupancy_percent=row.ratio_percent(_OCCUPANCY),
            tensor_percent=row.ratio_percent(_TENSOR),
            memory_used_bytes=None if used is None else int(used),
            memory_total_bytes=None if total is None else int(total),
            power_w=None if instance else row.number(_POWER, 5000),
            temperature_c=row.number(_TEMP, 150),
            memory_temperature_c=row.number(_MEM_TEMP, 150) or None,
            sm_clock_mhz=row.number(_SM_CLOCK, 50_000) or None,
            memory_clock_mhz=row.number(_MEM_CLOCK, 50_000) or None,
            pcie_rx_bytes_per_s=row.number(_PCIE_RX, 300e9),
            pcie_tx_bytes_per_s=row.number(_PCIE_TX, 300e9),
            nvlink_rx_bytes_per_s=row.number(_NVLINK_RX, 4e12),
            nvlink_tx_bytes_per_s=row.number(_NVLINK_TX, 4e12),
            host=self._exporter.host,
            mig_parent=row.uuid if instance else None,
            gpu_instance_id=row.gpu_instance_id,
            age_s=age_s,
            missing={name: "not exported by this dcgm-exporter" for name in _absent(row)}
            | {"energy_j": "an exporter reads the counter too rarely to divide it among tokens"},
        )

    def close(self) -> None:
        """See `GpuSource.close`."""
        self._exporter.close()


_READING_OF = {
    _SM: "sm_percent",
    _OCCUPANCY: "sm_occupancy_percent",
    _TENSOR: "tensor_percent",
    _UTIL: "gpu_util_percent",
    _USED: "memory_used_bytes",
    _POWER: "power_w",
    _TEMP: "temperature_c",
    _PCIE_RX: "pcie_rx_bytes_per_s",
    _PCIE_TX: "pcie_tx_bytes_per_s",
    _NVLINK_RX: "nvlink_rx_bytes_per_s",
    _NVLINK_TX: "nvlink_tx_bytes_per_s",
}


def _absent(row: DcgmRow) -> list[str]:
    return [reading for name, reading in _READING_OF.items() if name not in row.values]
