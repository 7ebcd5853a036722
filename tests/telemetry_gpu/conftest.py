from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry_gpu.fake_nvml import LoadedFakeNvml, build_fake_nvml, compiler, write_state
from vtop.clock import FakeClock


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NVML's library, compiled once."""
    if compiler() is None:
        pytest.skip("no C compiler (cc, gcc or clang), which the stand-in for NVML needs")
    return build_fake_nvml(tmp_path_factory.mktemp("fake-nvml"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def nvml(fake_library: Path, tmp_path: Path) -> Iterator[LoadedFakeNvml]:
    """The stand-in behind the real pynvml; nothing may be left open in it."""
    loaded = LoadedFakeNvml(fake_library, write_state(tmp_path / "gpus.state", gpm_min_ms=0))
    before = loaded.live_samples, loaded.live_event_sets, loaded.initialized
    yield loaded
    after = loaded.live_samples, loaded.live_event_sets, loaded.initialized
    loaded.unload()
    assert after == before, f"GPM samples, event sets and nvmlInit left open: {after}, before the test {before}"
