"""When requests are sent: offsets in seconds from the start of the test.

A closed loop has no schedule: the next request leaves when an answer has ended, so a slow server is asked less. An open
loop sends at its times whatever the server does, and latency is also measured from the scheduled time; otherwise the
waiting that an overload causes would be left out (coordinated omission).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from vtop.errors import UsageError
from vtop.load.progress import CONSTANT


def gamma_offsets(
    rate: float, rng: random.Random, *, burstiness: float = 1.0, count: int | None = None, ramp_s: float = 0.0
) -> Iterator[float]:
    """Arrivals at a mean rate with gamma distributed gaps.

    With a count, the gaps are scaled so that the last arrival falls on `(count - 1) / rate` exactly, as
    `vllm bench serve` does; otherwise the same rate would differ by a few percent from run to run.

    Args:
        rate: requests a second.
        rng: the source of chance.
        burstiness: shape of the gamma distribution; 1 is a Poisson process, below 1 bursts, `CONSTANT` and above a
            constant rate.
        count: how many; None for no end.
        ramp_s: the rate rises linearly from 0 to `rate` over this time, then stays.

    Raises:
        UsageError: a rate or shape that is not positive.
    """
    if not (rate > 0 and math.isfinite(rate)):
        raise UsageError(f"a rate of {rate:g} requests a second cannot be sent", "Give a rate above 0.")
    if not burstiness > 0:
        raise UsageError(f"a burstiness of {burstiness:g} is impossible", "Give a number above 0; 1 is Poisson.")
    steady = _steady(rate, rng, burstiness, count)
    return (_ramped(offset, ramp_s) for offset in steady) if ramp_s > 0 else steady


def expected_count(rate: float, duration_s: float, ramp_s: float = 0.0) -> int:
    """How many requests a rate brings in a time, at least one.

    A timed test sends exactly so many: by chance a Poisson process of 5 a second brings 80 to 120 in 20 s, and two runs
    at the same rate would not be the same load.
    """
    ramp_s = min(ramp_s, 1e9)
    mean = rate * (duration_s - ramp_s / 2) if duration_s >= ramp_s else rate * duration_s**2 / (2 * ramp_s)
    return max(1, round(mean))


def _steady(rate: float, rng: random.Random, burstiness: float, count: int | None) -> Iterator[float]:
    def gap() -> float:
        return 1.0 / rate if burstiness >= CONSTANT else rng.gammavariate(burstiness, 1.0 / (rate * burstiness))

    if count is None:
        at = 0.0
        while True:
            yield at
            at += gap()
    gaps = [gap() for _ in range(count - 1)]
    total = sum(gaps)
    scale = (count - 1) / rate / total if total > 0 else 1.0
    at = 0.0
    yield at
    for value in gaps:
        at += value * scale
        yield at


def _ramped(offset: float, ramp_s: float) -> float:
    """Maps an arrival of the steady process to the ramp: as many arrivals by then, later in time."""
    # Over the ramp the expected count is rate * t^2 / (2 * ramp), so half as many as without it.
    return math.sqrt(2.0 * ramp_s * offset) if offset < ramp_s / 2 else offset + ramp_s / 2


def burst_offsets(count: int) -> Iterator[float]:
    """All at once."""
    return iter([0.0] * count)


def slot_starts(concurrency: int, ramp_s: float = 0.0) -> list[float]:
    """When each stream of a closed loop begins: at once, or evenly over a ramp."""
    return [ramp_s * slot / concurrency for slot in range(concurrency)]
