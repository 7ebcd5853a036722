"""Readings of the simulated GPU, asked from the simulated servers that run on it."""

from __future__ import annotations

import json
import math
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtop.hardware import Card, find_card
from vtop.sim.gpu import AMBIENT_C, FULL_LOAD_RISE_C, power_share, simulated_uuid
from vtop.telemetry.gpu.source import GpuFrame
from vtop.telemetry.snapshot import Bandwidth, GpuReading, GpuStatus

PATH = "/vtop/sim/gpu"
TIMEOUT_S = 0.3
LARGEST_ANSWER = 256 * 1024
SHORTEST_SPAN_S = 0.15
"""Two looks closer together than this are no basis for a rate."""
WARMING_S = 20.0
"""How slowly the simulated temperature follows the power."""
_COUNTERS = ("dram_bytes", "flops", "busy_s", "memory_s", "compute_s")
_NO_SENSOR = "the simulation has no such sensor"
_MISSING: Mapping[str, str] = {
    "sm_occupancy_percent": _NO_SENSOR,
    "memory_temperature_c": _NO_SENSOR,
    "sm_clock_mhz": _NO_SENSOR,
    "memory_clock_mhz": _NO_SENSOR,
    "pcie_rx_bytes_per_s": _NO_SENSOR,
    "pcie_tx_bytes_per_s": _NO_SENSOR,
    "nvlink_rx_bytes_per_s": _NO_SENSOR,
    "nvlink_tx_bytes_per_s": _NO_SENSOR,
    "ecc_uncorrected": _NO_SENSOR,
    "fan_percent": _NO_SENSOR,
}


@dataclass(slots=True)
class _Rates:
    """Per simulated second, summed over the servers of one GPU."""

    dram_bytes: float = 0.0
    flops: float = 0.0
    busy_s: float = 0.0
    memory_s: float = 0.0
    compute_s: float = 0.0
    memory_used_bytes: int = 0


@dataclass(slots=True)
class _Warmth:
    energy_j: float = 0.0
    temperature_c: float = AMBIENT_C
    at_s: float | None = None


class SimulatedGpuSource:
    """A `GpuSource` for simulated servers; an idle card where none runs.

    Args:
        urls: base URLs of the simulated servers, asked at each look.
        card_name: the card to show while no server says which one it simulates.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        urls: Callable[[], Sequence[str]],
        card_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = urls
        self._card = find_card(card_name)
        self._card_name = card_name
        self._clock = clock
        # A proxy that the environment names is not for servers of this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._before: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._rates: dict[tuple[str, int], _Rates] = {}
        self._warmth: dict[int, _Warmth] = {}

    def open(self) -> None:
        """See `GpuSource.open`."""

    def close(self) -> None:
        """See `GpuSource.close`."""
        self._before.clear()
        self._rates.clear()

    def read(self) -> GpuFrame:
        """See `GpuSource.read`."""
        status = GpuStatus(True, "simulated: no GPU of this machine is shown", driver=None, simulated=True)
        totals: dict[int, _Rates] = {}
        cards: dict[int, Card] = {}
        seen: set[tuple[str, int]] = set()
        for url in self._urls():
            for gpu in self._ask(url):
                key = (url, gpu["index"])
                seen.add(key)
                card = find_card(str(gpu.get("card")))
                if card is not None:
                    cards[gpu["index"]] = card
                _add(totals.setdefault(gpu["index"], _Rates()), self._rate(key, gpu))
        for key in set(self._before) - seen:
            del self._before[key]
            self._rates.pop(key, None)
        if not totals:
            totals[0] = _Rates()
        now = self._clock()
        gpus = []
        for index in sorted(totals):
            known = cards.get(index) or self._card
            if known is not None:
                gpus.append(self._reading(index, known, totals[index], now))
        if not gpus:
            return GpuFrame(GpuStatus(False, f"no such GPU to simulate: {self._card_name}", simulated=True))
        return GpuFrame(status, tuple(gpus))

    def _ask(self, url: str) -> list[dict[str, Any]]:
        try:
            with self._opener.open(url.rstrip("/") + PATH, timeout=TIMEOUT_S) as answer:
                body = json.loads(answer.read(LARGEST_ANSWER))
        except (OSError, ValueError):
            return []
        gpus = body.get("gpus") if isinstance(body, dict) and body.get("simulated") is True else None
        if not isinstance(gpus, list):
            return []
        return [gpu for gpu in gpus if isinstance(gpu, dict) and _is_usable(gpu)]

    def _rate(self, key: tuple[str, int], gpu: Mapping[str, Any]) -> _Rates:
        before = self._before.get(key)
        last = self._rates.get(key)
        used = int(gpu["memory_used_bytes"])
        if before is not None:
            span = gpu["at_s"] - before["at_s"]
            if 0 <= span < SHORTEST_SPAN_S and last is not None:
                last.memory_used_bytes = used
                return last
            if span > 0 and all(gpu[name] >= before[name] for name in _COUNTERS):
                values = {name: (gpu[name] - before[name]) / span for name in _COUNTERS}
                rates = _Rates(**values, memory_used_bytes=used)
                self._before[key] = gpu
                self._rates[key] = rates
                return rates
        self._before[key] = gpu
        rates = self._rates[key] = _Rates(memory_used_bytes=used)
        return rates

    def _reading(self, index: int, card: Card, rates: _Rates, now: float) -> GpuReading:
        peak = card.bandwidth_bytes_per_s
        memory, compute, busy = (min(1.0, max(0.0, x)) for x in (rates.memory_s, rates.compute_s, rates.busy_s))
        power = card.power_limit_w * power_share(memory, compute)
        warmth = self._warmth.setdefault(index, _Warmth())
        if warmth.at_s is not None:
            passed = max(0.0, now - warmth.at_s)
            goal = AMBIENT_C + FULL_LOAD_RISE_C * power / card.power_limit_w
            warmth.energy_j += power * passed
            warmth.temperature_c += (goal - warmth.temperature_c) * (1.0 - math.exp(-passed / WARMING_S))
        warmth.at_s = now
        moved = min(rates.dram_bytes, peak)
        return GpuReading(
            uuid=simulated_uuid(index),
            index=index,
            name=card.name,
            bandwidth=Bandwidth("simulated", moved / peak * 100.0, moved, peak, "table"),
            gpu_util_percent=busy * 100.0,
            mem_busy_percent=memory * 100.0,
            sm_percent=busy * 100.0,
            tensor_percent=compute * 100.0,
            memory_used_bytes=min(rates.memory_used_bytes, card.memory_bytes),
            memory_total_bytes=card.memory_bytes,
            unified_memory=card.integrated,
            power_w=power,
            power_limit_w=card.power_limit_w,
            energy_j=warmth.energy_j,
            temperature_c=warmth.temperature_c,
            simulated=True,
            missing=_MISSING,
        )


def _is_usable(gpu: Mapping[str, Any]) -> bool:
    numbers = (*_COUNTERS, "at_s", "memory_used_bytes")
    index = gpu.get("index")
    return isinstance(index, int) and index >= 0 and all(isinstance(gpu.get(name), int | float) for name in numbers)


def _add(total: _Rates, more: _Rates) -> None:
    for name in (*_COUNTERS, "memory_used_bytes"):
        setattr(total, name, getattr(total, name) + getattr(more, name))
