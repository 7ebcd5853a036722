"""Every preset that comes with vtop, in old and new vLLM: it starts, or is refused with a reason."""

from __future__ import annotations

import pytest

from vtop import paths
from vtop.errors import VtopError
from vtop.load.workload import WORKLOADS
from vtop.preset_files import load_catalog, warnings
from vtop.presets import Preset
from vtop.vllm.dialect import commands
from vtop.vllm.versions import hypothetical_installation, known_versions

PROMISED = {
    "sequential", "baseline", "prefix-caching", "spec-ngram", "spec-draft", "spec-eagle3", "awq", "gptq", "fp8", "int8",
    "kv-fp8", "tensor-parallel", "pd-disaggregation", "everything", "cpu-small",
}  # fmt: skip
CATALOG = load_catalog(user_dir=paths.shipped_presets_dir() / "no-such-folder")
ALL = sorted(CATALOG.presets)

REFUSED = {
    "0.6.0": {"spec-eagle3", "pd-disaggregation"},
    "0.6.6": {"spec-eagle3", "pd-disaggregation"},
    "0.8.5": {"pd-disaggregation"},
    "0.10.2": {"spec-draft"},
    "0.14.1": {"spec-draft"},
}
"""What a version cannot do; everything else it can."""


def test_all_that_was_promised_is_there_and_sound() -> None:
    assert set(ALL) >= PROMISED
    assert CATALOG.problems == ()


@pytest.mark.parametrize("name", ALL)
def test_it_says_what_it_is_and_where_it_helps(name: str) -> None:
    preset = CATALOG.find(name)
    assert preset.title and preset.summary and "\n" not in preset.summary
    assert preset.shows_off in WORKLOADS
    assert preset.and_does_not_help in WORKLOADS
    assert preset.shows_off != preset.and_does_not_help
    assert preset.server.served_name
    assert warnings(preset) == ()


@pytest.mark.parametrize("name", [name for name in ALL if CATALOG.find(name).compare_with])
def test_it_is_compared_with_the_same_model(name: str) -> None:
    """A quantized checkpoint is the same model; another model would make the comparison worthless."""
    preset = CATALOG.find(name)
    other = CATALOG.find(preset.compare_with or "")
    assert preset.server.served_name == other.server.served_name
    assert preset.server.model.split("/")[-1].startswith(other.server.model.split("/")[-1])
    assert preset.server.max_model_len == other.server.max_model_len
    assert preset.server.gpu_memory_utilization == other.server.gpu_memory_utilization


@pytest.mark.parametrize("version", [*REFUSED, known_versions()[-1], "0.40.0"])
@pytest.mark.parametrize("name", ALL)
def test_it_starts_or_is_refused_with_a_reason(name: str, version: str) -> None:
    preset: Preset = CATALOG.find(name)
    installation = hypothetical_installation(version)
    if name in REFUSED.get(version, set()):
        with pytest.raises(VtopError) as caught:
            commands(preset, installation, port=8000, name=name)
        assert version in caught.value.what
        assert caught.value.remedy
        return
    made = commands(preset, installation, port=8000, name=name)
    assert all(preset.server.model in command.argv for command in made if command.role != "router")
    assert made[-1].port == 8000
