"""Peak bandwidth by formula, table and datasheet, and cards by loose names."""

from __future__ import annotations

import math

import pytest

from vtop.hardware import CARDS, find_card, formula_bytes_per_s, peak_bandwidth

# Name as NVML spells it, its maximum memory clock and bus width, memory GB, datasheet GB/s.
BOARDS = [
    ("NVIDIA GeForce RTX 4090", 10501, 384, 24, 1008),
    ("NVIDIA GeForce RTX 3090", 9751, 384, 24, 936),
    ("NVIDIA GeForce RTX 5090", 14001, 512, 32, 1792),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 14001, 512, 96, 1792),
    ("NVIDIA GeForce RTX 5070 Ti", 14001, 256, 16, 896),
    ("NVIDIA GeForce RTX 4080", 11201, 256, 16, 717),
    ("NVIDIA RTX 6000 Ada Generation", 10001, 384, 48, 960),
    ("NVIDIA RTX A6000", 8001, 384, 48, 768),
    ("NVIDIA L40S", 9001, 384, 48, 864),
    ("NVIDIA L4", 6251, 192, 24, 300),
    ("Tesla T4", 5001, 256, 15, 320),
    ("NVIDIA A10G", 6251, 384, 24, 600),
    ("NVIDIA A40", 7251, 384, 48, 696),
    ("NVIDIA A30", 1215, 3072, 24, 933),
    ("NVIDIA A100-SXM4-40GB", 1215, 5120, 40, 1555),
    ("NVIDIA A100-SXM4-80GB", 1593, 5120, 80, 2039),
    ("NVIDIA A100 80GB PCIe", 1512, 5120, 80, 1935),
    ("NVIDIA H100 80GB HBM3", 2619, 5120, 80, 3350),
    ("NVIDIA H100 PCIe", 1593, 5120, 80, 2000),
    ("NVIDIA H100 NVL", 2619, 6016, 94, 3938),
    ("NVIDIA H20", 2619, 6144, 96, 4000),
    ("NVIDIA H200", 3201, 6144, 141, 4800),
    ("NVIDIA H200", 3201, 6016, 141, 4800),
    ("NVIDIA B200", 3996, 8192, 180, 7700),
    ("NVIDIA GH200 480GB", 2619, 6144, 96, 4000),
    ("NVIDIA GH200 144G HBM3e", 3201, 6144, 144, 4900),
    ("NVIDIA GB10", None, None, 128, 273),
]


@pytest.mark.parametrize(("name", "mhz", "bits", "gb", "expected"), BOARDS)
def test_peak_is_within_one_percent_of_the_datasheet(
    name: str, mhz: float | None, bits: float | None, gb: int, expected: float
) -> None:
    for clock, width in ((mhz, bits), (None, None), (mhz, None)):
        peak = peak_bandwidth(name, clock, width, gb * 1e9)
        assert peak is not None
        assert peak.bytes_per_s == pytest.approx(expected * 1e9, rel=0.01)
        assert peak.source in {"nvml", "table", "datasheet"}


def test_factor_is_two_for_every_kind_of_memory() -> None:
    assert formula_bytes_per_s(2619, 5120) == pytest.approx(3352.32e9)
    assert formula_bytes_per_s(10501, 384) == pytest.approx(1008.096e9)


def test_unreduced_bus_of_an_h200_does_not_reach_the_screen() -> None:
    peak = peak_bandwidth("NVIDIA H200", 3201, 6144)
    assert peak is not None
    assert (peak.bytes_per_s, peak.source) == (4800e9, "table")


def test_users_own_figure_wins_and_nonsense_does_not() -> None:
    peak = peak_bandwidth("NVIDIA H200", 3201, 6144, override=4.5e12)
    assert peak is not None and (peak.bytes_per_s, peak.source) == (4.5e12, "user")
    for nonsense in (0.0, -1.0, math.nan, math.inf):
        peak = peak_bandwidth("NVIDIA H200", override=nonsense)
        assert peak is not None and peak.source == "table"


def test_unknown_board_without_numbers_has_no_peak() -> None:
    assert peak_bandwidth("Example vGPU") is None
    assert peak_bandwidth("Example vGPU", 0, 0) is None
    assert peak_bandwidth("Example vGPU", 0xFFFFFFFF, 5120) is None, "a sentinel is no clock"


def test_laptop_parts_use_the_drivers_numbers_only() -> None:
    name = "NVIDIA GeForce RTX 4090 Laptop GPU"
    assert peak_bandwidth(name) is None
    peak = peak_bandwidth(name, 9001, 256)
    assert peak is not None and peak.source == "nvml"
    assert find_card(name) is None


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx 3090ti", "RTX 3090 Ti"),
        ("NVIDIA GeForce RTX 4080 SUPER", "RTX 4080 SUPER"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
        ("h100", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("A100", "A100 80GB SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("rtx pro 6000", "RTX PRO 6000 Blackwell"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Tesla V100-SXM2-16GB", "V100 16GB"),
        ("NVIDIA GB10", "GB10"),
    ],
)
def test_loose_names_find_their_card(name: str, card: str) -> None:
    found = find_card(name)
    assert found is not None and found.name == card


@pytest.mark.parametrize("name", ["", "6000", "GTX 1080", "Example PRO 96GB", "Radeon RX 7900", "H", "A100000"])
def test_other_names_find_nothing(name: str) -> None:
    assert find_card(name) is None


def test_every_card_finds_itself_and_agrees_with_the_bandwidth_table() -> None:
    for card in CARDS:
        assert find_card(card.name) is card
        peak = peak_bandwidth(card.name, memory_total_bytes=card.memory_bytes)
        if peak is not None:
            assert peak.bytes_per_s == pytest.approx(card.bandwidth_bytes_per_s, rel=0.02), card.name


def test_figures_are_dense() -> None:
    """With sparsity every one of these would be double; fp8 and int8 are at most four times the 16-bit rate."""
    by_name = {card.name: card for card in CARDS}
    assert by_name["H100 SXM"].bf16_flops == pytest.approx(989.4e12)
    assert by_name["RTX 4090"].bf16_flops == pytest.approx(165.2e12)
    assert by_name["A100 80GB SXM"].fp8_flops is None, "Ampere has no fp8 units"
    for card in CARDS:
        for other in (card.fp8_flops, card.int8_ops):
            assert other is None or other <= 4.02 * card.bf16_flops, card.name
