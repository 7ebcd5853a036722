"""`vtop status` in a process of its own over a stand-in for NVML's library, through the real pynvml."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.vtop_process import Vtop
from telemetry_gpu.fake_nvml import build_fake_nvml, compiler, environment, write_state


@pytest.mark.skipif(compiler() is None, reason="the stand-in for NVML needs a C compiler")
def test_status_has_measured_bandwidth_where_gpm_is_and_time_where_it_is_not(vtop: Vtop, tmp_path: Path) -> None:
    library = build_fake_nvml(tmp_path / "nvml")
    vtop.env |= environment(library, write_state(tmp_path / "gpus.state", gpm_min_ms=0), {})
    first, second = vtop("status", "--json", "--window", "1").json()["gpus"]
    assert first["bandwidth"]["source"] == "gpm"
    assert first["bandwidth"]["percent"] == pytest.approx(63.75)
    assert first["bandwidth"]["bytes_per_s"] == pytest.approx(0.6375 * first["bandwidth"]["peak_bytes_per_s"])
    assert second["bandwidth"]["source"] == "busy"
    assert second["bandwidth"]["percent"] == pytest.approx(41)
    assert second["bandwidth"]["bytes_per_s"] is None
    assert "mem busy (time)" in vtop("status", "--window", "1").out
