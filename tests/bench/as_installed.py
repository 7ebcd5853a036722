"""Runs vtop from the checkout as an installed program runs: from bytecode, which an installer leaves on the disk.

A checkout may forbid to write it (PYTHONDONTWRITEBYTECODE), and compiling all of vtop at each start costs more than the
rest of the start.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent


def environment_of(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment in which a first start leaves bytecode below `folder`, and later ones find it."""
    return {**environment, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def dashboard(*words: str) -> list[str]:
    """The dashboard with these words, watching only the servers that they name."""
    return [sys.executable, str(HERE / "dashboard_of_one.py"), *words]


def bare_textual() -> list[str]:
    """The least that a program with a Textual screen costs: one that draws a page of text once a second."""
    return [sys.executable, str(HERE / "bare_textual.py")]
