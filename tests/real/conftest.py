"""The environment of the real-server tests, and one vtop a module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import Vtop, assert_nothing_left, real_root


@pytest.fixture(scope="session")
def real_env() -> Path:
    """The environment, or a skip that says how to make it."""
    root = real_root()
    if not (root / "vllm" / ".complete").exists() or not (root / "models" / "tiny" / "config.json").exists():
        absent = pytest.fail if os.environ.get("VTOP_REAL_REQUIRED") else pytest.skip
        absent(f"no real vLLM in {root}: run `python3 tests/real/make_env.py` (4 GB, a few minutes)")
    return root


@pytest.fixture(scope="module")
def vtop(real_env: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vtop]:
    """A vtop of this module; whatever it started is stopped and proven gone."""
    driver = Vtop(tmp_path_factory.mktemp("vtop"), real_env)
    try:
        yield driver
    finally:
        driver.run("stop", "--all", "--yes", check=False, timeout=180)
        assert_nothing_left(driver.home)
