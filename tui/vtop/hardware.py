"""Cards and their peaks: DRAM bandwidth, FLOPs, memory. Datasheet figures, dense (without sparsity)."""

from __future__ import annotations

import re
from dataclasses import dataclass

GB = 1e9
TFLOPS = 1e12
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """One card by its datasheet. FLOPs are dense tensor-core peaks; None: the card has no such units."""

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None = None
    int8_ops: float | None = None
    nvlink_bytes_per_s: float | None = None
    """One direction, all links."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A peak DRAM bandwidth and where the figure comes from."""

    bytes_per_s: float
    source: str
    """`nvml` (clock x bus width), `table`, `datasheet`, `user`."""


def _card(
    name: str,
    gib: float,
    gbs: float,
    bf16: float,
    fp8: float | None,
    int8: float | None,
    nvlink_gbs: float | None = None,
) -> Card:
    return Card(
        name=name,
        memory_bytes=int(gib * GIB),
        bandwidth_bytes_per_s=gbs * GB,
        bf16_flops=bf16 * TFLOPS,
        fp8_flops=None if fp8 is None else fp8 * TFLOPS,
        int8_ops=None if int8 is None else int8 * TFLOPS,
        nvlink_bytes_per_s=None if nvlink_gbs is None else nvlink_gbs * GB,
    )


CARDS: tuple[tuple[str, Card], ...] = (
    (r"GB300|\bB300", _card("B300", 268, 8000, 2500, 5000, 150, 900)),
    (r"GB200", _card("GB200", 184, 8000, 2500, 5000, 5000, 900)),
    (r"\bB200", _card("B200", 179, 7700, 2250, 4500, 4500, 900)),
    (r"GH200", _card("GH200", 95, 4000, 989, 1979, 1979, 450)),
    (r"\bH200", _card("H200", 140, 4800, 989, 1979, 1979, 450)),
    (r"H100 PCIe", _card("H100 PCIe", 79.6, 2000, 756, 1513, 1513, 300)),
    (r"H100 NVL", _card("H100 NVL", 93, 3938, 835, 1671, 1671, 300)),
    (r"\bH[18]00", _card("H100", 79.6, 3350, 989, 1979, 1979, 450)),
    (r"\bH20\b", _card("H20", 95, 4000, 148, 296, 296, 450)),
    (r"A[18]00.*PCI.*80GB|A[18]00 80GB PCIe", _card("A100 80GB PCIe", 79.3, 1935, 312, None, 624, 300)),
    (r"A[18]00.*80GB", _card("A100 80GB", 79.3, 2039, 312, None, 624, 300)),
    (r"\bA[18]00\b", _card("A100 40GB", 39.6, 1555, 312, None, 624, 300)),
    (r"\bA30\b", _card("A30", 24, 933, 165, None, 330, 100)),
    (r"\bA40\b", _card("A40", 45, 696, 149.7, None, 299, 56)),
    (r"\bA10G?\b", _card("A10", 22.5, 600, 125, None, 250)),
    (r"\bL40S\b", _card("L40S", 45, 864, 362, 733, 733)),
    (r"\bL40\b", _card("L40", 45, 864, 181, 362, 362)),
    (r"\bL4\b", _card("L4", 22.5, 300, 121, 242, 242)),
    (r"\bT4\b", _card("T4", 15, 320, 65, None, 130)),
    (r"V100", _card("V100", 32, 900, 125, None, None, 150)),
    (r"PRO 6000", _card("RTX PRO 6000 Blackwell", 95, 1792, 503, 1007, 1007)),
    (r"6000 Ada", _card("RTX 6000 Ada", 47.5, 960, 364, 728, 728)),
    (r"A6000", _card("RTX A6000", 47.5, 768, 155, None, 310, 56)),
    (r"5090", _card("RTX 5090", 31.8, 1792, 209.5, 419, 838)),
    (r"5080", _card("RTX 5080", 15.9, 960, 112.6, 225, 450)),
    (r"5070 Ti", _card("RTX 5070 Ti", 15.9, 896, 88, 176, 352)),
    (r"4090", _card("RTX 4090", 23.99, 1008, 165.2, 330.3, 660.6)),
    (r"4080 SUPER", _card("RTX 4080 SUPER", 15.99, 736, 104, 209, 418)),
    (r"4080", _card("RTX 4080", 15.99, 717, 97.5, 195, 390)),
    (r"4070 Ti SUPER", _card("RTX 4070 Ti SUPER", 15.99, 672, 88, 176, 353)),
    (r"4070", _card("RTX 4070", 11.99, 504, 58.3, 116.6, 233)),
    (r"4060 Ti", _card("RTX 4060 Ti", 15.99, 288, 44, 88, 176)),
    (r"3090 Ti", _card("RTX 3090 Ti", 23.99, 1008, 80, None, 320)),
    (r"3090", _card("RTX 3090", 23.99, 936, 71, None, 284)),
    (r"3080 Ti", _card("RTX 3080 Ti", 11.99, 912, 68, None, 273)),
    (r"3080", _card("RTX 3080", 9.99, 760, 59.5, None, 238)),
    (r"GB10\b", _card("GB10", 119, 273, 125, 250, 250)),
    (r"\bThor\b", _card("Jetson Thor", 122, 273, 125, 250, 250)),
)
"""Pattern over NVML's name -> card, searched in this order."""


def find_card(name: str) -> Card | None:
    """The card behind a name, NVML's own or a loose one (`RTX 4090`, `h100`), or None."""
    for pattern, card in CARDS:
        if re.search(pattern, name, re.IGNORECASE):
            return card
    return None
