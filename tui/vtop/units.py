"""Numbers to text. Unknown is None and reads as a dash; nothing here ever turns it into 0."""

from __future__ import annotations

import math

DASH = "–"
"""How an unknown value is drawn."""


def known(value: float | None) -> bool:
    """Whether there is a finite number to show."""
    return value is not None and math.isfinite(value)


def significant(value: float | None, digits: int = 3) -> str:
    """A number with a sensible count of digits: 0.123, 1.23, 12.3, 123, 1,234."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    # Of the rounded number: 9.996 is 10.0 and not 10.00.
    magnitude = int(f"{value:.{digits - 1}e}".partition("e")[2])
    decimals = max(0, digits - 1 - magnitude)
    text = f"{value:,.{min(decimals, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and magnitude >= digits - 1 else text


def _scaled(value: float | None, unit: str, factors: tuple[tuple[float, str], ...], digits: int) -> str:
    if value is None or not math.isfinite(value):
        return DASH
    for factor, prefix in factors:
        if abs(value) >= factor * 0.9995:
            return f"{significant(value / factor, digits)} {prefix}{unit}"
    smallest, prefix = factors[-1]
    return f"{significant(value / smallest, digits)} {prefix}{unit}"


def duration(seconds: float | None, digits: int = 3) -> str:
    """A latency: `840 µs`, `17.9 ms`, `1.25 s`."""
    if seconds == 0:
        return "0 ms"
    return _scaled(seconds, "s", ((1.0, ""), (1e-3, "m"), (1e-6, "µ")), digits)


def elapsed(seconds: float | None) -> str:
    """A span on a clock: `0:31`, `12:05`, `2h14m`, `3d04h`."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    whole = max(0, round(seconds))
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def rate(value: float | None, unit: str, digits: int = 3) -> str:
    """A rate with its unit: `892 tok/s`, `12.3k tok/s`."""
    if value is None or not math.isfinite(value):
        return DASH
    if abs(value) >= 9999.5:
        return f"{significant(value / 1000, digits)}k {unit}"
    return f"{significant(value, digits)} {unit}"


def count(value: float | None) -> str:
    """A count: `16`, `4,096`, `432k`, `1.2M`."""
    if value is None or not math.isfinite(value):
        return DASH
    if abs(value) >= 999_500:
        return f"{significant(value / 1e6, 3)}M"
    if abs(value) >= 9_999.5:
        return f"{significant(value / 1e3, 3)}k"
    return f"{round(value):,}"


def percent(share: float | None) -> str:
    """A share of 1 as percent: 0.62 reads `62 %`, 0.004 reads `0.4 %`."""
    return percent_of_100(None if share is None else share * 100)


def percent_of_100(value: float | None) -> str:
    """A percentage of 100 as text: 62.4 reads `62 %`, 0.4 reads `0.4 %`."""
    if value is None or not math.isfinite(value):
        return DASH
    if value != 0 and abs(value) < 9.95:
        return f"{value:.1f} %"
    return f"{value:.0f} %"


def gib(value: float | None, digits: int = 3) -> str:
    """Bytes in binary units, as GPU memory is stated: `61.2 GiB`."""
    if value == 0:
        return "0 B"
    return _scaled(value, "B", ((2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"), (1, "")), digits)


def bytes_per_s(value: float | None, digits: int = 3) -> str:
    """A bandwidth in decimal units, as memory is rated: `2.08 TB/s`."""
    if value == 0:
        return "0 B/s"
    return _scaled(value, "B/s", ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")), digits)


def bytes_decimal(value: float | None, digits: int = 3) -> str:
    """Bytes in decimal units, for amounts that meet a bandwidth: `15.4 GB`."""
    if value == 0:
        return "0 B"
    return _scaled(value, "B", ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")), digits)


def watts(value: float | None) -> str:
    """Power: `512 W`."""
    return DASH if value is None or not math.isfinite(value) else f"{value:.0f} W"


def megahertz(value: float | None) -> str:
    """A clock: `1.98 GHz`, `405 MHz`."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value / 1000:.2f} GHz" if value >= 1000 else f"{value:.0f} MHz"
