"""Student's t and intervals of paired ratios: the run is the unit, the rounds are the pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
USUAL_NOISE = 0.02
"""Run-to-run coefficient of variation that is assumed where only one run was made."""
MOST_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """A ratio with its 95 % interval; the ends are None with one pair."""

    ratio: float
    low: float | None
    high: float | None
    pairs: int


def t_probability(t: float, df: int) -> float:
    """P(|T| <= t) of Student's t with a whole number of degrees of freedom.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4 (finite sums, exact).

    Args:
        t: at least 0.
        df: degrees of freedom, at least 1.
    """
    theta = math.atan2(t, math.sqrt(df))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = df % 2 == 1
    term = total = cosine if odd else 1.0
    for k in range(3 if odd else 2, df - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if odd:
        return 2 / math.pi * (theta + (sine * total if df > 1 else 0.0))
    return sine * total


@lru_cache(maxsize=256)
def t_quantile(df: int, confidence: float = CONFIDENCE) -> float:
    """The t for which P(|T| <= t) is the confidence, by bisection on `t_probability`.

    Raises:
        ValueError: no degree of freedom, or a confidence outside 0..1.
    """
    if df < 1 or not 0 < confidence < 1:
        raise ValueError("needs df >= 1 and 0 < confidence < 1")
    low, high = 0.0, 1.0
    while t_probability(high, df) < confidence:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if t_probability(middle, df) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def paired_ratio(base: Sequence[float], other: Sequence[float]) -> RatioInterval | None:
    """Other over base: the mean of the paired differences of logarithms and its t interval.

    Args:
        base: values of the first configuration, one a round.
        other: values of the other one in the same rounds.

    Returns:
        None where there is no pair of positive numbers.
    """
    pairs = [
        math.log(value / reference)
        for reference, value in zip(base, other, strict=True)
        if reference > 0 and value > 0 and math.isfinite(reference) and math.isfinite(value)
    ]
    n = len(pairs)
    if n == 0:
        return None
    mean = math.fsum(pairs) / n
    if n == 1:
        return RatioInterval(math.exp(mean), None, None, 1)
    deviation = math.sqrt(math.fsum((difference - mean) ** 2 for difference in pairs) / (n - 1))
    half = t_quantile(n - 1) * deviation / math.sqrt(n)
    return RatioInterval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n)


def rounds_to_settle(ratio: float, noise: float = USUAL_NOISE) -> int | None:
    """Rounds after which an interval of this difference would be expected to leave out 1.

    Args:
        ratio: the difference seen.
        noise: run-to-run coefficient of variation; a paired difference has root 2 of it.

    Returns:
        None where more than `MOST_ROUNDS` would be needed.
    """
    difference = abs(math.log(ratio)) if ratio > 0 else 0.0
    for n in range(2, MOST_ROUNDS + 1):
        if t_quantile(n - 1) * noise * math.sqrt(2 / n) < difference:
            return n
    return None


def smallest_difference(rounds: int, noise: float = USUAL_NOISE) -> float | None:
    """Relative difference that so many rounds can be expected to tell from noise; None with one round."""
    if rounds < 2:
        return None
    return math.expm1(t_quantile(rounds - 1) * noise * math.sqrt(2 / rounds))


def noise_of(interval: RatioInterval) -> float | None:
    """Run-to-run coefficient of variation that an interval was made from; None with one pair."""
    if interval.low is None or interval.high is None or interval.low <= 0:
        return None
    half = math.log(interval.high / interval.low) / 2
    return half * math.sqrt(interval.pairs / 2) / t_quantile(interval.pairs - 1)
