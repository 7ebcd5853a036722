"""Comparisons on a real vLLM for CPU: a difference that is there is found, one that is not is not claimed."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import Vtop

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def presets(vtop: Vtop, real_env: Path) -> Vtop:
    """Two user presets that differ in prefix caching alone."""
    folder = vtop.home / "config" / "presets"
    folder.mkdir(parents=True)
    for name, caching in (("cold", "false"), ("cached", "true")):
        (folder / f"{name}.toml").write_text(
            f"""title = "{name}"
optimization = "prefix-caching"

[server]
model = "{real_env / "models" / "tiny"}"
served_name = "tiny"
port = "auto"
load_format = "dummy"
enforce_eager = true
max_model_len = 4096
prefix_caching = {caching}
python = "{real_env / "vllm"}"

[server.env]
VLLM_CPU_KVCACHE_SPACE = "1"
"""
        )
    return vtop


def test_prefix_caching_is_faster_on_shared_prefixes(presets: Vtop) -> None:
    """TTFT with the `prefix` workload: *faster*, with an interval that excludes 1."""
    words = ["--workload", "prefix", "--order", "blocks", "--repeats", "3", "-n", "80", "-c", "2", "--max-tokens", "8"]
    outcome = presets.json("compare", "cold", "cached", *words, timeout=1500)
    assert outcome["state"] == "finished", outcome["message"]
    cold, cached = outcome["rows"]
    assert cold["failed"] == 0 and cached["failed"] == 0
    assert cached["prefix_hit_rate"] > 0.3
    assert cached["ttft_ratio_high"] < 1
    # On two cores that the server fills, the client itself may be late; then the verdict is refused, and says so.
    late = "not comparable: the load generator was late"
    assert cached["ttft_verdict"] == "faster" or cached["ttft_verdict"].startswith(late), cached
    assert cached["verdict"] == "faster" or cached["verdict"].startswith("not comparable"), cached
