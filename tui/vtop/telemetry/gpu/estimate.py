"""DRAM traffic where nobody measures it, and which of several sources a line is drawn from.

vLLM's counters (`vllm:estimated_read_bytes_per_gpu_total` and `_write_`, with `--enable-mfu-metrics`) are analytic: for
each scheduled step, activations counted although they mostly stay in L2, experts as if all were distinct. They tend to
say too much and may pass 100 %. Measured sources count all traffic, estimates useful bytes, so the two are never mixed
in one line or one comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from vtop.telemetry.snapshot import Bandwidth

RANKING = ("simulated", "gpm", "dcgm", "vllm", "roofline", "busy")
"""Best first. Simulated GPUs have no other source."""
MEASURED = frozenset({"gpm", "dcgm"})
HOLD_S = 5.0
"""A source that falls silent keeps its line this long, empty, before a lesser one may take over."""


def from_counters(
    read_bytes_per_s: float | None,
    write_bytes_per_s: float | None,
    peak_bytes_per_s: float | None = None,
    peak_source: str = "",
    counted_bytes: float | None = None,
) -> Bandwidth | None:
    """Traffic of one GPU by vLLM's own byte counters.

    Args:
        read_bytes_per_s: rate of its read counter; of all servers on this GPU together.
        write_bytes_per_s: rate of its write counter.
        peak_bytes_per_s: what 100 % stands for; only a figure in bytes without it.
        peak_source: where that peak comes from.
        counted_bytes: what the counters have come to, if known.

    Returns:
        None where the server counts nothing; with architectures that it cannot analyse they stay at 0 for ever.
    """
    if read_bytes_per_s is None or write_bytes_per_s is None or counted_bytes == 0:
        return None
    return _estimate("vllm", read_bytes_per_s + write_bytes_per_s, peak_bytes_per_s, peak_source)


def from_roofline(
    bytes_per_s: float | None, peak_bytes_per_s: float | None = None, peak_source: str = ""
) -> Bandwidth | None:
    """Traffic of one GPU by vtop's arithmetic: engine steps per second x bytes of a step (`roofline.py`)."""
    return None if bytes_per_s is None else _estimate("roofline", bytes_per_s, peak_bytes_per_s, peak_source)


def _estimate(source: str, bytes_per_s: float, peak: float | None, peak_source: str) -> Bandwidth | None:
    if not math.isfinite(bytes_per_s) or bytes_per_s < 0:
        return None
    percent = bytes_per_s / peak * 100.0 if peak else None
    return Bandwidth(source, percent, bytes_per_s, peak, peak_source if peak else "")


def choose(candidates: Iterable[Bandwidth | None]) -> Bandwidth | None:
    """The best source that there is for a GPU now: gpm > dcgm > vllm > roofline > busy."""
    known = [found for found in candidates if found is not None and found.source in RANKING]
    return min(known, key=lambda found: RANKING.index(found.source), default=None)


def _says_something(bandwidth: Bandwidth) -> bool:
    return bandwidth.percent is not None or bandwidth.bytes_per_s is not None


class SteadySource:
    """Keeps one GPU's line on one source.

    A better source takes over as soon as it says something; a lesser one only when the present one has been silent for
    `HOLD_S`. Each switch leaves one empty point, so that no chart joins two sources.
    """

    def __init__(self) -> None:
        self._source: str | None = None
        self._heard_s = -math.inf

    def pick(self, now_s: float, candidates: Iterable[Bandwidth | None]) -> Bandwidth | None:
        """The reading to show and to keep.

        Args:
            now_s: monotonic.
            candidates: what each source says now; the first of a source counts.
        """
        by_source: dict[str, Bandwidth] = {}
        for candidate in candidates:
            if candidate is not None and candidate.source in RANKING:
                by_source.setdefault(candidate.source, candidate)
        best = choose(found for found in by_source.values() if _says_something(found))
        present = by_source.get(self._source) if self._source is not None else None
        if present is not None and _says_something(present):
            self._heard_s = now_s
            if best is None or best.source == self._source:
                return present
        elif self._source is not None and now_s - self._heard_s < HOLD_S:
            better = best is not None and RANKING.index(best.source) < RANKING.index(self._source)
            if not better:
                return present if present is not None else Bandwidth(self._source, None)
        if best is None:
            # Nothing says anything yet: name the best that promises to (a first GPM sample is under way).
            return choose(by_source.values())
        first = self._source is None
        self._source, self._heard_s = best.source, now_s
        return best if first else replace(best, percent=None, bytes_per_s=None)
