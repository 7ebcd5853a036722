"""What the simulated GPU would report: traffic, arithmetic, busy time, power, all from the same steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from vtop.hardware import Card
from vtop.sim.step_time import StepSpan

IDLE_POWER_SHARE = 0.12
"""Of the limit, with a context open and clocks up."""
MEMORY_POWER_SHARE = 0.45
COMPUTE_POWER_SHARE = 0.43
"""How the rest splits between moving bytes and multiplying: at full DRAM speed alone such cards draw about 60 % of
their limit, and reach it under large matrix products. Power in the simulation is an illustration, not a measurement."""
AMBIENT_C = 32.0
FULL_LOAD_RISE_C = 42.0


def simulated_uuid(index: int) -> str:
    """The name of a simulated card; no real one begins so."""
    return f"GPU-51300000-0000-4000-8000-{index:012d}"


@dataclass(slots=True)
class _Running:
    span: StepSpan
    begun_s: float
    end_s: float


class GpuLoad:
    """Cumulative counters of each GPU that a server uses (all of one replica do the same)."""

    def __init__(self, card: Card, memory_used_bytes: int, speed: float) -> None:
        self.card = card
        self.memory_used_bytes = memory_used_bytes
        self.bytes = 0.0
        self.flops = 0.0
        self.busy_s = 0.0
        self.memory_s = 0.0
        self.compute_s = 0.0
        self._speed = speed
        self._running: _Running | None = None

    def begin(self, span: StepSpan, now_s: float, end_s: float) -> None:
        """A step starts."""
        self._running = _Running(span, now_s, end_s)

    def end(self) -> None:
        """The step is over."""
        if self._running is not None:
            self._add(self._running.span, 1.0)
            self._running = None

    def _add(self, span: StepSpan, share: float) -> None:
        self.bytes += span.bytes * share
        self.flops += span.flops * share
        self.busy_s += span.busy_s * share
        self.memory_s += span.memory_s * share
        self.compute_s += span.compute_s * share

    def describe(self, now_s: float) -> dict[str, Any]:
        """The counters now, the running step in proportion; times in simulated seconds."""
        total = [self.bytes, self.flops, self.busy_s, self.memory_s, self.compute_s]
        running = self._running
        if running is not None and running.end_s > running.begun_s:
            share = min(1.0, max(0.0, (now_s - running.begun_s) / (running.end_s - running.begun_s)))
            span = running.span
            parts = (span.bytes, span.flops, span.busy_s, span.memory_s, span.compute_s)
            total = [done + part * share for done, part in zip(total, parts, strict=True)]
        names = ("dram_bytes", "flops", "busy_s", "memory_s", "compute_s")
        return {
            "simulated": True,
            "card": self.card.name,
            "at_s": now_s * self._speed,
            "at_wall_s": time.time(),
            "memory_used_bytes": self.memory_used_bytes,
            **dict(zip(names, total, strict=True)),
        }


def power_share(memory_share: float, compute_share: float) -> float:
    """Power as a share of the limit, from the shares of both peaks that are used."""
    asked = IDLE_POWER_SHARE + MEMORY_POWER_SHARE * memory_share + COMPUTE_POWER_SHARE * compute_share
    return min(1.0, asked)
