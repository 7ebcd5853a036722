"""One GPU: which calls make its reading, how often each, and what counts as an answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from vtop.clock import Clock
from vtop.hardware import Peak, peak_bandwidth
from vtop.telemetry.gpu import counters, gpm
from vtop.telemetry.gpu.gpm import Gpm, gpm_percent, mib_per_s
from vtop.telemetry.gpu.memory import SystemMemory, read_memory
from vtop.telemetry.gpu.nvml_calls import ASK_AGAIN_S, U64_SENTINEL, Calls, count, counter, number, plausible
from vtop.telemetry.gpu.processes import ProcessNames, read_processes
from vtop.telemetry.gpu.throttle import throttle_words
from vtop.telemetry.snapshot import Bandwidth, GpuProcess, GpuReading

EVERY_SECOND_S = 0.95
"""Process list and field batch; just below 1 s, so that a 2 Hz tick does not miss its turn."""
SELDOM_S = 30.0
"""Limits, link, peaks, ECC, MIG mode."""
PCIE_WINDOW_CALL_S = 10.0
"""The old PCIe call measures for 20 ms each time it is asked."""
FULL_CLOCK_SHARE = 0.9
"""Below it a percentage of the DRAM's peak is not turned into bytes: of which clock, nobody has documented."""

SILENT_UNTIL_ABSENT = 10
"""Samples without a DRAM figure, after which a board is taken to have none."""

_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_UNCORRECTED, _SINCE_DRIVER_LOAD = 1, 0
_VGPU = 2
_MAX_POWER_W, _MAX_CLOCK_MHZ, _MAX_CELSIUS = 5000.0, 50_000.0, 150.0
_MAX_PCIE_BYTES_PER_S, _MAX_NVLINK_BYTES_PER_S = 300e9, 4e12
_GATED = (
    "gpu_util_percent",
    "mem_busy_percent",
    "memory_used_bytes",
    "power_w",
    "power_limit_w",
    "energy_j",
    "temperature_c",
    "memory_temperature_c",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "memory_clock_max_mhz",
    "ecc_uncorrected",
    "fan_percent",
)
"""Readings that are None without a reason of their own only where a gate held the driver's answer back."""


_NO_GPM = "needs GPM: Hopper or newer, or GeForce from the 50 series"


@dataclass(slots=True)
class _Seldom:
    """What is asked every half minute."""

    power_limit_w: float | None = None
    memory_clock_max_mhz: float | None = None
    peak: Peak | None = None
    ecc_uncorrected: int | None = None
    link: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
    missing: dict[str, str] = field(default_factory=dict)


class Device:
    """Reads one whole GPU. For one worker thread.

    Args:
        nvml: the `pynvml` module, initialised.
        clock: rates and ages.
        handle: NVML's handle.
        index: NVML's index now.
        uuid: what everything about this GPU is keyed by.
        peak_override: the user's own DRAM peak in bytes per second.
        system_memory: for GPUs that share the system's memory.
        names: process names.

    Raises:
        DeviceLostError, LibraryDownError: see `Calls.ask`.
    """

    def __init__(
        self,
        nvml: ModuleType,
        clock: Clock,
        handle: Any,
        index: int,
        uuid: str,
        peak_override: float | None,
        system_memory: SystemMemory,
        names: ProcessNames,
    ) -> None:
        self.handle = handle
        self.index = index
        self.uuid = uuid
        self.calls = Calls(nvml, clock)
        self.mig_mode = False
        self._nvml = nvml
        self._clock = clock
        self._peak_override = peak_override
        self._system_memory = system_memory
        self._names = names
        self.name: str = self.calls.ask("name", "nvmlDeviceGetName", handle) or "NVIDIA GPU"
        pci = self.calls.ask("pci_bus_id", "nvmlDeviceGetPciInfo", handle)
        self._pci_bus_id = _text(pci.busId) if pci is not None else None
        self._vgpu = self.calls.ask("virtualization", "nvmlDeviceGetVirtualizationMode", handle) == _VGPU
        self.calls.shared = self._vgpu
        self._gpm: Gpm | None = None
        self._gpm_probed_s = -math.inf
        self._dram_silent = 0
        self._seldom = _Seldom()
        self._seldom_s = -math.inf
        self._second_s = -math.inf
        self._pcie_call_s = -math.inf
        self._fields: dict[int, float] = {}
        self._processes: tuple[GpuProcess, ...] | None = None
        self._process_note = ""
        self._pcie = (counters.CounterRate(_MAX_PCIE_BYTES_PER_S), counters.CounterRate(_MAX_PCIE_BYTES_PER_S))
        self._nvlink = (
            counters.CounterRate(_MAX_NVLINK_BYTES_PER_S, 1024.0),
            counters.CounterRate(_MAX_NVLINK_BYTES_PER_S, 1024.0),
        )
        self._links: dict[str, float | None] = {}

    def read(self) -> GpuReading:
        """One tick.

        Raises:
            DeviceLostError: the GPU is gone; call nothing but `close` after this.
            LibraryDownError: NVML is gone.
        """
        now_s = self._clock.monotonic()
        calls, handle = self.calls, self.handle
        calls.missing.clear()
        if now_s - self._seldom_s >= SELDOM_S:
            self._seldom_s = now_s
            self._read_seldom()
        memory = read_memory(calls, handle, self.name, self._system_memory)
        if now_s - self._second_s >= EVERY_SECOND_S:
            self._second_s = now_s
            self._processes, self._process_note = read_processes(calls, handle, self._names)
            self._fields = counters.read_fields(calls, handle)
            self._read_links(now_s, memory.unified)
        gpu_util, mem_busy = self._read_utilization(memory.unified)
        energy_mj = counter(calls.ask("energy_j", "nvmlDeviceGetTotalEnergyConsumption", handle))
        memory_clock = self._clock_mhz("memory_clock_mhz", _MEMORY_CLOCK)
        reading = GpuReading(
            uuid=self.uuid,
            index=self.index,
            name=self.name,
            gpu_util_percent=gpu_util,
            mem_busy_percent=mem_busy,
            memory_used_bytes=memory.used_bytes,
            memory_total_bytes=memory.total_bytes,
            unified_memory=memory.unified,
            power_w=self._read_power(),
            power_limit_w=self._seldom.power_limit_w,
            energy_j=None if energy_mj is None else energy_mj / 1000.0,
            temperature_c=self._read_temperature(),
            memory_temperature_c=self._memory_temperature(),
            sm_clock_mhz=self._clock_mhz("sm_clock_mhz", _SM_CLOCK),
            memory_clock_mhz=memory_clock,
            memory_clock_max_mhz=self._seldom.memory_clock_max_mhz,
            throttle=self._read_throttle(),
            ecc_uncorrected=self._seldom.ecc_uncorrected,
            fan_percent=plausible(number(calls.ask("fan_percent", "nvmlDeviceGetFanSpeed", handle)), 0, 200),
            processes=self._processes,
            pci_bus_id=self._pci_bus_id,
            pcie_generation=None if memory.unified else self._seldom.link[0],
            pcie_generation_max=None if memory.unified else self._seldom.link[1],
            pcie_width=None if memory.unified else self._seldom.link[2],
            pcie_width_max=None if memory.unified else self._seldom.link[3],
        )
        # Last of all, after the memory query: sampling has been seen to disturb it in MIG mode.
        return self._with_activity(reading, self._sample(now_s))

    def gpm_live(self) -> bool:
        """Whether this GPU's own DRAM counters can be read."""
        return self._gpm is not None and self._gpm.live

    def close(self) -> None:
        """Frees the samples; must come before NVML's shutdown."""
        if self._gpm is not None:
            self._gpm.close()
        self._gpm = None

    def _sample(self, now_s: float) -> dict[int, float]:
        if self._gpm is None or (not self._gpm.live and now_s - self._gpm_probed_s >= ASK_AGAIN_S):
            self._gpm_probed_s = now_s
            self._gpm = Gpm(self._nvml, self._clock, self.handle)
        return self._gpm.read()

    def _with_activity(self, reading: GpuReading, values: dict[int, float]) -> GpuReading:
        missing = {**self._seldom.missing, **self.calls.missing}
        if self._process_note:
            missing["processes"] = self._process_note
        missing.pop("fields", None)
        bandwidth = self._bandwidth(reading, values, missing)
        activity = {
            "sm_percent": gpm_percent(values, gpm.SM_UTIL),
            "sm_occupancy_percent": gpm_percent(values, gpm.SM_OCCUPANCY),
            "tensor_percent": gpm_percent(values, gpm.ANY_TENSOR),
        }
        for name, percent in activity.items():
            if percent is None:
                missing[name] = _silent(values) if self.gpm_live() else _NO_GPM
        pcie_rx = self._rate("pcie_rx_bytes_per_s", mib_per_s(values, gpm.PCIE_RX, _MAX_PCIE_BYTES_PER_S), missing)
        pcie_tx = self._rate("pcie_tx_bytes_per_s", mib_per_s(values, gpm.PCIE_TX, _MAX_PCIE_BYTES_PER_S), missing)
        if reading.unified_memory:
            pcie_rx = pcie_tx = None
            missing["pcie_rx_bytes_per_s"] = missing["pcie_tx_bytes_per_s"] = "no PCIe link: GPU and CPU share one chip"
        nvlink_rx = mib_per_s(values, gpm.NVLINK_RX, _MAX_NVLINK_BYTES_PER_S)
        nvlink_tx = mib_per_s(values, gpm.NVLINK_TX, _MAX_NVLINK_BYTES_PER_S)
        for name in _GATED:
            if getattr(reading, name) is None:
                missing.setdefault(name, "implausible answer from the driver")
        return replace(
            reading,
            bandwidth=bandwidth,
            sm_percent=activity["sm_percent"],
            sm_occupancy_percent=activity["sm_occupancy_percent"],
            tensor_percent=activity["tensor_percent"],
            pcie_rx_bytes_per_s=pcie_rx,
            pcie_tx_bytes_per_s=pcie_tx,
            nvlink_rx_bytes_per_s=self._rate("nvlink_rx_bytes_per_s", nvlink_rx, missing),
            nvlink_tx_bytes_per_s=self._rate("nvlink_tx_bytes_per_s", nvlink_tx, missing),
            missing=missing,
        )

    def _rate(self, name: str, sampled: float | None, missing: dict[str, str]) -> float | None:
        """A link's rate: from GPM where it says, else from the driver's counters."""
        rate = sampled if sampled is not None else self._links.get(name)
        if rate is not None:
            missing.pop(name, None)
        else:
            missing.setdefault(name, "no such link, or no counter that the driver reads")
        return rate

    def _bandwidth(self, reading: GpuReading, values: dict[int, float], missing: dict[str, str]) -> Bandwidth:
        peak = self._seldom.peak
        peak_bytes, peak_source = (peak.bytes_per_s, peak.source) if peak is not None else (None, "")
        percent = gpm_percent(values, gpm.DRAM_BW_UTIL)
        # Sampling may work while this one metric never does; then the share of time is all there is.
        self._dram_silent = 0 if percent is not None else self._dram_silent + bool(values)
        if not self.gpm_live() or self._dram_silent >= SILENT_UNTIL_ABSENT:
            if reading.mem_busy_percent is None:
                missing["bandwidth"] = missing.get("mem_busy_percent", "not reported")
            return Bandwidth("busy", reading.mem_busy_percent, None, peak_bytes, peak_source)
        if percent is None:
            missing["bandwidth"] = _silent(values)
        bytes_per_s: float | None = None
        if peak_bytes is None:
            missing["bandwidth_bytes_per_s"] = "the peak of this GPU is not known"
        elif (note := self._clock_note(reading)) is not None:
            missing["bandwidth_bytes_per_s"] = note
        elif percent is not None:
            bytes_per_s = percent / 100.0 * peak_bytes
        return Bandwidth("gpm", percent, bytes_per_s, peak_bytes, peak_source)

    def _clock_note(self, reading: GpuReading) -> str | None:
        now, top = reading.memory_clock_mhz, reading.memory_clock_max_mhz
        if top is None:
            return None  # boards without a clock to tell have a table entry or no peak at all
        if now is None:
            return "the memory clock is not known"
        if now <= FULL_CLOCK_SHARE * top:
            return f"the memory runs at {now:.0f} of {top:.0f} MHz"
        return None

    def _read_utilization(self, unified: bool) -> tuple[float | None, float | None]:
        if self.mig_mode:
            # Some drivers refuse, some answer 0; both mean that nobody measures it.
            self.calls.missing["gpu_util_percent"] = self.calls.missing["mem_busy_percent"] = "not measured in MIG mode"
            return None, None
        answer = self.calls.ask("gpu_util_percent", "nvmlDeviceGetUtilizationRates", self.handle)
        if answer is None:
            self.calls.missing["mem_busy_percent"] = self.calls.missing["gpu_util_percent"]
            return None, None
        gpu, memory = plausible(float(answer.gpu), 0, 100), plausible(float(answer.memory), 0, 100)
        if unified and memory == 0 and gpu:
            self.calls.missing["mem_busy_percent"] = "stuck at 0 on this chip"
            memory = None
        return gpu, memory

    def _read_power(self) -> float | None:
        milliwatts = number(self.calls.ask("power_w", "nvmlDeviceGetPowerUsage", self.handle))
        if milliwatts is None:
            milliwatts = self._fields.get(counters.POWER_INSTANT)
        power = plausible(None if milliwatts is None else milliwatts / 1000.0, 0, _MAX_POWER_W)
        if power is not None:
            self.calls.missing.pop("power_w", None)
        return power

    def _read_temperature(self) -> float | None:
        value = self.calls.ask("temperature_c", "nvmlDeviceGetTemperatureV", self.handle, 0)
        if value is None:  # drivers before 560 know only the older call
            value = self.calls.ask("temperature_c", "nvmlDeviceGetTemperature", self.handle, 0)
        return plausible(number(value), 0, _MAX_CELSIUS)

    def _memory_temperature(self) -> float | None:
        value = self._fields.get(counters.MEMORY_TEMPERATURE)
        if not value:  # GDDR boards answer 0 or nothing
            self.calls.missing["memory_temperature_c"] = "no sensor that the driver reads"
            return None
        return plausible(value, 0, _MAX_CELSIUS)

    def _clock_mhz(self, reading: str, kind: int) -> float | None:
        value = number(self.calls.ask(reading, "nvmlDeviceGetClockInfo", self.handle, kind))
        return plausible(value, 1, _MAX_CLOCK_MHZ)

    def _read_throttle(self) -> tuple[str, ...]:
        bits = self.calls.ask("throttle", "nvmlDeviceGetCurrentClocksEventReasons", self.handle)
        if bits is None:
            bits = self.calls.ask("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons", self.handle)
        return throttle_words(int(bits)) if bits is not None and bits != U64_SENTINEL else ()

    def _read_links(self, now_s: float, unified: bool) -> None:
        fields = self._fields
        pcie_tx = self._pcie[0].update(now_s, fields.get(counters.PCIE_TX_BYTES))
        pcie_rx = self._pcie[1].update(now_s, fields.get(counters.PCIE_RX_BYTES))
        self._links |= {
            "nvlink_tx_bytes_per_s": self._nvlink[0].update(now_s, fields.get(counters.NVLINK_TX_KIB)),
            "nvlink_rx_bytes_per_s": self._nvlink[1].update(now_s, fields.get(counters.NVLINK_RX_KIB)),
        }
        if counters.PCIE_TX_BYTES in fields or unified or self._vgpu or self.gpm_live():
            self._links |= {"pcie_tx_bytes_per_s": pcie_tx, "pcie_rx_bytes_per_s": pcie_rx}
        elif now_s - self._pcie_call_s >= PCIE_WINDOW_CALL_S:
            self._pcie_call_s = now_s
            for name, counter in (("pcie_tx_bytes_per_s", 0), ("pcie_rx_bytes_per_s", 1)):
                kilobytes = number(self.calls.ask(name, "nvmlDeviceGetPcieThroughput", self.handle, counter))
                rate = None if kilobytes is None else kilobytes * 1000.0
                self._links[name] = plausible(rate, 0, _MAX_PCIE_BYTES_PER_S)

    def _read_seldom(self) -> None:
        calls, handle = self.calls, self.handle
        limit_mw = number(calls.ask("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", handle))
        top = calls.ask("memory_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", handle, _MEMORY_CLOCK)
        top_mhz = plausible(number(top), 1, _MAX_CLOCK_MHZ)
        width = plausible(number(calls.ask("bus_width", "nvmlDeviceGetMemoryBusWidth", handle)), 8, 65_536)
        total = read_memory(calls, handle, self.name, self._system_memory).total_bytes
        ecc = calls.ask("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_DRIVER_LOAD)
        mode = calls.ask("mig_mode", "nvmlDeviceGetMigMode", handle)
        self.mig_mode = mode is not None and mode[0] == 1

        def ask_link(function: str) -> int | None:
            return count(calls.ask("pcie_link", function, handle))

        # A virtual GPU is a share of the board: the board's datasheet is not its peak.
        known_name = "" if self._vgpu else self.name
        self._seldom = _Seldom(
            power_limit_w=plausible(None if limit_mw is None else limit_mw / 1000.0, 1, _MAX_POWER_W),
            memory_clock_max_mhz=top_mhz,
            peak=peak_bandwidth(known_name, top_mhz, width, total, self._peak_override),
            ecc_uncorrected=count(ecc),
            link=(
                ask_link("nvmlDeviceGetCurrPcieLinkGeneration"),
                ask_link("nvmlDeviceGetMaxPcieLinkGeneration"),
                ask_link("nvmlDeviceGetCurrPcieLinkWidth"),
                ask_link("nvmlDeviceGetMaxPcieLinkWidth"),
            ),
        )
        kept = ("power_limit_w", "memory_clock_max_mhz", "ecc_uncorrected", "pcie_link")
        self._seldom.missing = {name: calls.missing[name] for name in kept if name in calls.missing}
        for name in (*kept, "bus_width", "mig_mode"):
            calls.missing.pop(name, None)


def _silent(values: dict[int, float]) -> str:
    """Why a figure of GPM is absent although GPM works."""
    return "no usable figure from the GPU's counters" if values else "needs two samples"


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
