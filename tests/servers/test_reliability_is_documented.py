"""docs/reliability.md names a test for every fault, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "reliability.md"


def _rows() -> list[list[str]]:
    """The cells of every row of every table, without heading rows."""
    lines = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[-1] != "test"]


def test_every_fault_has_a_test_that_exists() -> None:
    existing = {name for file in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}
    rows = _rows()
    assert len(rows) > 40
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row[-1])
        assert named, f"no test for: {row[0]}"
        assert set(named) <= existing, f"{row[0]}: {set(named) - existing} is no test"
