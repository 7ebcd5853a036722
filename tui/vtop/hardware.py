"""What NVIDIA GPUs can do at most: DRAM bandwidth, dense arithmetic, memory, NVLink.

Figures are those of NVIDIA's datasheets and architecture whitepapers (Turing, Ampere GA100 and GA102, Ada, Hopper,
Blackwell and RTX Blackwell), **dense**: where a sheet states "with sparsity" the value is halved. 16-bit and fp8 are
with 32-bit accumulation, which is what inference kernels use and which GeForce boards do at half rate. Memory is what
`nvidia-smi` reports as total, in MiB, where that is known, else the nominal size. NVLink is NVIDIA's rating, both
directions together.

The bandwidth that a driver's own numbers give, `2 x MHz x bits / 8`: NVML states half the per-pin data rate of every
memory type (GDDR5 to GDDR7 and HBM alike), so the factor is 2 for all of them. It overstates boards whose HBM channels
are fused off (H200, B200 and kin) and says nothing for integrated chips; for those the datasheet wins.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Peak:
    """Theoretical DRAM bandwidth of one GPU."""

    bytes_per_s: float
    source: str
    """`nvml` (clock x bus width), `table` (boards where the formula misleads), `datasheet`, `user`."""


@dataclass(frozen=True, slots=True)
class Card:
    """The peaks of one GPU model. None: it has no such unit, or no such figure is published."""

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    bf16_flops: float
    """Dense 16-bit matrix FLOP/s with 32-bit accumulation (fp16 on cards before Ampere, which have no bf16)."""
    fp8_flops: float | None
    int8_ops: float | None
    nvlink_bytes_per_s: float | None
    """Both directions together, as rated."""
    power_limit_w: float
    integrated: bool = False
    """The GPU shares the system's memory."""
    source: str = "NVIDIA datasheet or architecture whitepaper, dense"


_FIXED: tuple[tuple[re.Pattern[str], float | None], ...] = tuple(
    (re.compile(pattern), gb_per_s)
    for pattern, gb_per_s in (
        (r"GB300|\bB300", 8000),
        (r"GB200", 8000),
        (r"\bB200", 7700),
        (r"GH200", None),
        (r"\bH200", 4800),
        (r"H100 PCIe", 2000),
        (r"GB10\b", 273),
        (r"\bThor\b", 273),
        (r"Orin NX", 102.4),
        (r"Orin Nano", 68),
        (r"\bOrin\b", 204.8),
    )
)
"""Boards where the formula misleads or has no input (GB/s). GH200 comes with two kinds of memory; see `_fixed`."""

_KNOWN: tuple[tuple[re.Pattern[str], float], ...] = tuple(
    (re.compile(pattern), gb_per_s)
    for pattern, gb_per_s in (
        (r"H100 NVL", 3938),
        (r"\bH[18]00", 3350),
        (r"\bH20\b", 4000),
        (r"A[18]00.*PCI.*80GB|A[18]00 80GB PCIe", 1935),
        (r"A[18]00.*80GB", 2039),
        (r"A[18]00\b", 1555),
        (r"\bA30\b", 933),
        (r"\bA40\b", 696),
        (r"\bA10G?\b", 600),
        (r"\bA16\b", 200),
        (r"\bL40S?\b", 864),
        (r"\bL20\b", 864),
        (r"\bL4\b", 300),
        (r"\bT4\b", 320),
        (r"V100", 900),
        (r"P100", 732),
        (r"P40\b", 347),
        (r"PRO 6000", 1792),
        (r"PRO 5000", 1344),
        (r"PRO 4500", 896),
        (r"6000 Ada", 960),
        (r"5000 Ada", 576),
        (r"A6000|A5000", 768),
        (r"A4000", 448),
        (r"5090", 1792),
        (r"5080", 960),
        (r"5070 Ti", 896),
        (r"5070", 672),
        (r"5060 Ti", 448),
        (r"4090", 1008),
        (r"4080 SUPER", 736),
        (r"4080", 717),
        (r"4070 Ti SUPER", 672),
        (r"4070", 504),
        (r"4060 Ti", 288),
        (r"3090 Ti", 1008),
        (r"3090", 936),
        (r"3080 Ti", 912),
        (r"3080", 760),
        (r"3060\b", 360),
        (r"2080 Ti", 616),
    )
)
"""Datasheet bandwidth (GB/s), where the driver does not tell clock or bus width."""

_MOBILE = re.compile(r"Laptop|Max-Q", re.IGNORECASE)
"""Names that share a model number with a desktop board and nothing else: only the driver's numbers count."""

GH200_LARGE_MEMORY_BYTES = 120e9
"""Above it a GH200 carries HBM3e (144 GB, 4.9 TB/s), below it HBM3 (96 GB, 4 TB/s)."""

_PLAUSIBLE_GB_PER_S = (5.0, 50_000.0)
"""A driver's clock and bus width outside of this are sentinels or garbage, not a board."""


def _fixed(name: str, memory_total_bytes: float | None) -> float | None:
    for pattern, gb_per_s in _FIXED:
        if pattern.search(name):
            if gb_per_s is not None:
                return gb_per_s
            return 4900.0 if (memory_total_bytes or 0) > GH200_LARGE_MEMORY_BYTES else 4000.0
    return None


def formula_bytes_per_s(max_mem_clock_mhz: float, bus_width_bits: float) -> float:
    """Peak DRAM bandwidth from NVML's maximum memory clock and bus width: 2 x MHz x bits / 8."""
    return 2.0 * max_mem_clock_mhz * 1e6 * bus_width_bits / 8.0


def peak_bandwidth(
    name: str,
    max_mem_clock_mhz: float | None = None,
    bus_width_bits: float | None = None,
    memory_total_bytes: float | None = None,
    override: float | None = None,
) -> Peak | None:
    """The DRAM bandwidth that 100 % stands for.

    Args:
        name: the GPU's name as NVML spells it.
        max_mem_clock_mhz: NVML's maximum memory clock.
        bus_width_bits: NVML's memory bus width.
        memory_total_bytes: tells GH200's two memories apart.
        override: the user's own figure in bytes per second; wins.

    Returns:
        The peak with its source, or None where nobody knows it (then only percentages may be shown).
    """
    if override is not None and math.isfinite(override) and override > 0:
        return Peak(float(override), "user")
    mobile = _MOBILE.search(name) is not None
    if not mobile and (gb_per_s := _fixed(name, memory_total_bytes)) is not None:
        return Peak(gb_per_s * 1e9, "table")
    if max_mem_clock_mhz and bus_width_bits:
        by_formula = formula_bytes_per_s(max_mem_clock_mhz, bus_width_bits)
        low, high = _PLAUSIBLE_GB_PER_S
        if low * 1e9 <= by_formula <= high * 1e9:
            return Peak(by_formula, "nvml")
    if not mobile:
        for pattern, known_gb_per_s in _KNOWN:
            if pattern.search(name):
                return Peak(known_gb_per_s * 1e9, "datasheet")
    return None


def _card(
    name: str,
    memory_mib: float,
    gb_per_s: float,
    bf16_tflops: float,
    fp8_tflops: float | None,
    int8_tops: float | None,
    nvlink_gb_per_s: float | None,
    power_w: float,
    integrated: bool = False,
) -> Card:
    return Card(
        name=name,
        memory_bytes=round(memory_mib * MIB),
        bandwidth_bytes_per_s=gb_per_s * 1e9,
        bf16_flops=bf16_tflops * 1e12,
        fp8_flops=None if fp8_tflops is None else fp8_tflops * 1e12,
        int8_ops=None if int8_tops is None else int8_tops * 1e12,
        nvlink_bytes_per_s=None if nvlink_gb_per_s is None else nvlink_gb_per_s * 1e9,
        power_limit_w=power_w,
        integrated=integrated,
    )


CARDS: tuple[Card, ...] = (
    # name, memory MiB, GB/s, 16-bit, fp8, int8 (dense, T), NVLink GB/s both ways, W
    _card("GB300", 284_208, 8000, 2500, 5000, 167, 1800, 1400),
    _card("B300", 275_040, 8000, 2250, 4500, 150, 1800, 1100),
    _card("GB200", 189_471, 8000, 2500, 5000, 5000, 1800, 1200),
    _card("B200", 183_359, 7700, 2250, 4500, 4500, 1800, 1000),
    _card("GH200", 97_871, 4000, 989.4, 1978.9, 1978.9, 900, 900),
    _card("GH200 144GB", 147_456, 4900, 989.4, 1978.9, 1978.9, 900, 900),
    _card("H200", 143_771, 4800, 989.4, 1978.9, 1978.9, 900, 700),
    _card("H200 NVL", 143_771, 4800, 835.5, 1671, 1671, 900, 600),
    _card("H100 SXM", 81_559, 3350, 989.4, 1978.9, 1978.9, 900, 700),
    _card("H100 PCIe", 81_559, 2000, 756, 1513, 1513, 600, 350),
    _card("H100 NVL", 95_830, 3938, 835.5, 1671, 1671, 600, 400),
    _card("H800 SXM", 81_559, 3350, 989.4, 1978.9, 1978.9, 400, 700),
    _card("H20", 97_871, 4000, 148, 296, 296, 900, 500),
    _card("A100 80GB SXM", 81_920, 2039, 312, None, 624, 600, 400),
    _card("A100 80GB PCIe", 81_920, 1935, 312, None, 624, 600, 300),
    _card("A100 40GB", 40_960, 1555, 312, None, 624, 600, 400),
    _card("A800 80GB", 81_920, 2039, 312, None, 624, 400, 400),
    _card("A30", 24_576, 933, 165, None, 330, 200, 165),
    _card("A40", 46_068, 696, 149.7, None, 299.3, 112.5, 300),
    _card("A10G", 23_028, 600, 70, None, 140, None, 300),
    _card("A10", 23_028, 600, 125, None, 250, None, 150),
    _card("L40S", 46_068, 864, 362, 733, 733, None, 350),
    _card("L40", 46_068, 864, 181, 362, 362, None, 300),
    _card("L20", 46_068, 864, 119.5, 239, 239, None, 275),
    _card("L4", 23_034, 300, 121, 242.5, 242.5, None, 72),
    _card("T4", 15_360, 320, 65, None, 130, None, 70),
    _card("V100 16GB", 16_384, 900, 125, None, None, 300, 300),
    _card("V100 32GB", 32_768, 900, 125, None, None, 300, 300),
    _card("RTX PRO 6000 Blackwell", 97_887, 1792, 503.8, 1007.6, 1007.6, None, 600),
    _card("RTX PRO 5000 Blackwell", 48_935, 1344, 294.8, 589.6, 589.6, None, 300),
    _card("RTX 6000 Ada", 49_140, 960, 364.2, 728.5, 728.5, None, 300),
    _card("RTX 5000 Ada", 32_760, 576, 261.1, 522.1, 522.1, None, 250),
    _card("RTX A6000", 49_140, 768, 154.8, None, 309.7, 112.5, 300),
    _card("RTX A5000", 24_564, 768, 111.1, None, 222.2, 112.5, 230),
    _card("RTX A4000", 16_376, 448, 76.7, None, 153.4, None, 140),
    _card("RTX 5090", 32_607, 1792, 209.5, 419, 838, None, 575),
    _card("RTX 5080", 16_303, 960, 112.6, 225.1, 450.2, None, 360),
    _card("RTX 5070 Ti", 16_303, 896, 87.9, 175.8, 351.5, None, 300),
    _card("RTX 5070", 12_227, 672, 61.7, 123.5, 246.9, None, 250),
    _card("RTX 5060 Ti", 16_311, 448, 47.4, 94.9, 189.8, None, 180),
    _card("RTX 4090", 24_564, 1008, 165.2, 330.3, 660.6, None, 450),
    _card("RTX 4080 SUPER", 16_376, 736, 104.4, 208.9, 417.7, None, 320),
    _card("RTX 4080", 16_376, 717, 97.5, 194.9, 389.9, None, 320),
    _card("RTX 4070 Ti SUPER", 16_376, 672, 88.2, 176.4, 352.8, None, 285),
    _card("RTX 4070 Ti", 12_282, 504, 80.2, 160.4, 320.7, None, 285),
    _card("RTX 4070 SUPER", 12_282, 504, 71, 142, 284, None, 220),
    _card("RTX 4070", 12_282, 504, 58.3, 116.6, 233.2, None, 200),
    _card("RTX 4060 Ti", 16_380, 288, 44.1, 88.2, 176.5, None, 165),
    _card("RTX 3090 Ti", 24_564, 1008, 80, None, 320, 112.5, 450),
    _card("RTX 3090", 24_576, 936, 71, None, 284, 112.5, 350),
    _card("RTX 3080 Ti", 12_288, 912, 68.2, None, 272.8, None, 350),
    _card("RTX 3080", 10_240, 760, 59.5, None, 238, None, 320),
    _card("RTX 3060", 12_288, 360, 25.5, None, 102, None, 170),
    _card("RTX 2080 Ti", 11_264, 616, 53.8, None, 215.2, 100, 250),
    _card("GB10", 124_610, 273, 125, 250, 250, None, 140, integrated=True),
)
"""The cards whose arithmetic peaks are known; of one model, what a bare name most likely means comes first."""

_NOISE = frozenset(
    {"nvidia", "geforce", "tesla", "quadro", "rtx", "gtx", "gpu", "the", "card", "edition", "generation"}
)
_FORMS = frozenset({"sxm", "pcie", "nvl"})
"""Words that tell boards of one model number apart."""


@lru_cache(maxsize=256)
def _words(name: str) -> frozenset[str]:
    """The telling words of a name, one spelling each: sizes as `80gb`, `SXM5` as `sxm`, `rtx4090ti` as `4090`, `ti`."""
    text = re.sub(r"\b(\d+)\s*(?:GB|GiB|G)\b", r"\1gb", name, flags=re.IGNORECASE)
    text = re.sub(r"\bSXM\d*", "SXM", text, flags=re.IGNORECASE)
    text = re.sub(r"\bPCI\b", "PCIe", text, flags=re.IGNORECASE)
    text = re.sub(r"(?<=\d)(Ti|SUPER)\b", r" \1", text, flags=re.IGNORECASE)
    text = re.sub(r"RTX(?=[A-Z]?\d)", "RTX ", text, flags=re.IGNORECASE)
    return frozenset(word for word in re.split(r"[^a-z0-9]+", text.lower()) if word and word not in _NOISE)


def _is_detail(word: str) -> bool:
    return word in _FORMS or word.endswith("gb")


@lru_cache(maxsize=256)  # asked with every reading of a GPU and every look at a server
def find_card(name: str) -> Card | None:
    """A card by a loose name: `RTX 4090`, `4090`, `h100`, `NVIDIA H100 80GB HBM3`, `NVIDIA A100-SXM4-40GB`.

    Args:
        name: as a person or the driver writes it. Laptop parts are other chips under the same number: not found.

    Returns:
        The card, or None where its arithmetic peaks are not known.
    """
    if _MOBILE.search(name):
        return None
    words = _words(name)
    details = {word for word in words if _is_detail(word)}
    best: Card | None = None
    best_score = -1
    for card in CARDS:
        card_words = _words(card.name)
        model = {word for word in card_words if not _is_detail(word)} - {"blackwell"}  # often left out
        if not model <= words:
            continue
        # More of the model's words beat everything ("4080 SUPER" is no "4080"); then form and size decide.
        score = 100 * len(model) + 10 * len(card_words & details)
        sizes = {word for word in card_words | details if word.endswith("gb")}
        for kind in (_FORMS, sizes):
            if card_words & kind and details & kind and not card_words & details & kind:
                score -= 15
        if score > best_score:
            best, best_score = card, score
    return best
