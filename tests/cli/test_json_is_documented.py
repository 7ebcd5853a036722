"""docs/json.md names every top-level key of what is printed, and no other."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from vtop.load.progress import LoadResult, Percentiles
from vtop.results.comparison import CompareProgress

DOCUMENT = Path(__file__).parents[2] / "docs" / "json.md"


def _documented(heading: str) -> set[str]:
    """The keys in the first column of a section's table."""
    section = DOCUMENT.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {key for row in rows for key in re.findall(r"`([^`]+)`", row)}


@pytest.mark.parametrize(
    ("heading", "shape"), [("`vtop compare --json`", CompareProgress), ("`vtop load --json`", LoadResult)]
)
def test_every_key_is_documented_and_every_documented_key_exists(heading: str, shape: type) -> None:
    printed = {f.name for f in fields(shape) if "Percentiles" not in str(f.type)}
    assert _documented(heading) == printed


def test_every_latency_of_a_load_test_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for field in fields(LoadResult):
        if "Percentiles" in str(field.type):
            assert f"`{field.name}`" in text
    for field in fields(Percentiles):
        assert f"`X_{field.name}" in text
