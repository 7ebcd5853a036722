"""Every test lives in directories of its own: nothing of the user's is read or written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples each time, and no limit for one of them: neither chance nor a busy machine decides what passes.
settings.register_profile("vtop", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vtop")


@pytest.fixture(autouse=True)
def private_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Points every directory of vtop below tmp_path, and hides what the surroundings might say."""
    for name in ("CONFIG", "STATE", "RUNS", "CACHE"):
        monkeypatch.setenv(f"VTOP_{name}_DIR", str(tmp_path / f"vtop-{name.lower()}"))
    for name in ("VTOP_VLLM", "VLLM_API_KEY", "SSH_CONNECTION", "NO_COLOR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
