"""Why a GPU's clocks are lower than they could be, in words."""

from __future__ import annotations

_WORDS = {
    0x2: "clocks set by the user",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
_IDLE = 0x1
"""Low clocks because there is nothing to do are no throttling."""
ALARMING = frozenset(
    {"hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "hardware power brake"}
)
"""Worth an event. The software power cap is not: under load it is the normal state of many boards."""


def throttle_words(bits: int) -> tuple[str, ...]:
    """NVML's clock event reasons in words; bits that this version does not know as hexadecimal."""
    words = [text for bit, text in _WORDS.items() if bits & bit]
    unknown = bits & ~(_IDLE | sum(_WORDS))
    if unknown:
        words.append(f"unknown reason {unknown:#x}")
    return tuple(words)
