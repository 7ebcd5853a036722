"""Histograms to latencies: exact mean, and quantiles with the bucket that they lie in."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vtop.vllm.reading import Latency, Quantile


def quantile(share: float, bounds: Sequence[float], cumulative: Sequence[float]) -> Quantile | None:
    """A quantile, linear inside its bucket, as Prometheus' `histogram_quantile` defines it.

    Args:
        share: 0..1.
        bounds: upper edges, rising, the last one +Inf.
        cumulative: observations at or below each edge.

    Returns:
        None where there is no finite edge or nothing was observed. A rank in the +Inf bucket has no value, only the
        last finite edge as its lower one.
    """
    if len(bounds) < 2 or cumulative[-1] <= 0:
        return None
    rank = share * cumulative[-1]
    low = min(0.0, bounds[0])
    before = 0.0
    for edge, upto in zip(bounds, cumulative, strict=True):
        if upto >= rank and upto > before:
            if math.isinf(edge):
                return Quantile(None, low, None)
            value = low + (edge - low) * max(0.0, rank - before) / (upto - before)
            return Quantile(min(value, edge), low, edge)  # rounding must not carry it out of its bucket
        low, before = edge, max(before, upto)
    return None


def latency(count: float, total: float, bounds: Sequence[float], increases: Sequence[float]) -> Latency | None:
    """A latency over a window.

    Args:
        count: observations in the window.
        total: their sum in seconds; NaN where it is unknown.
        bounds: upper edges, rising; empty where the page has no buckets.
        increases: growth of each cumulative bucket in the window.

    Returns:
        None where nothing was observed, or where it cannot be known whether something was.
    """
    if not count >= 0.5 or math.isinf(count):
        return None
    mean = total / count if math.isfinite(total) else None
    p50 = p95 = p99 = None
    if bounds and math.isinf(bounds[-1]) and all(map(math.isfinite, increases)):
        # A page may be written between two updates of one histogram, so that a bucket lags behind a smaller one.
        rising: list[float] = []
        for value in increases:
            rising.append(max(value, rising[-1]) if rising else value)
        p50, p95, p99 = (quantile(share, bounds, rising) for share in (0.5, 0.95, 0.99))
    return Latency(mean, round(count), p50, p95, p99)
