"""The presets that the documentation prints are presets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vtop.load.shapes import parse_shape
from vtop.preset_files import parse_preset
from vtop.vllm.dialect import commands
from vtop.vllm.versions import hypothetical_installation

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = [
    pytest.param(text, id=f"{file.stem}-{number}")
    for file in sorted(DOCS.glob("*.md"))
    for number, text in enumerate(re.findall(r"```toml\n(.*?)```", file.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_it_parses_and_translates(text: str) -> None:
    if "\n[load]\n" in text:
        assert parse_shape(text, "documented").request().workload
        return
    preset = parse_preset(text, "documented")
    (command,) = commands(preset, hypothetical_installation("0.33.0"), port=8000, name="documented")
    assert preset.server.model in command.argv
