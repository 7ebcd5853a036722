"""The dashboard and `vtop status --json` say the same numbers: the screen shows what the JSON holds, in its units."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from ui.looks import app_for
from vtop import units
from vtop.telemetry.to_json import snapshot_to_json


def shown(app: Any) -> str:
    """What stands on the screen, as text."""
    words = re.findall(r"<text[^>]*>([^<]*)</text>", app.export_screenshot())
    return re.sub(r"\s+", " ", html.unescape(" ".join(words)).replace("\xa0", " "))


@pytest.fixture
async def screen_and_json() -> tuple[str, dict[str, Any]]:
    """One snapshot, drawn and as JSON."""
    app = app_for("busy")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.pause()
        return shown(app), snapshot_to_json(app.service.snapshot())


def test_the_server_s_numbers_agree(screen_and_json: tuple[str, dict[str, Any]]) -> None:
    text, data = screen_and_json
    engine = data["servers"][0]["engines"][0]
    for words in (
        units.rate(engine["generation_tokens_per_s"], "tok/s"),
        f"mean {units.duration(engine['ttft_mean_s'])}",
        f"mean {units.duration(engine['tpot_mean_s'])}",
        f"{units.count(engine['running'])} running",
        f"{units.count(engine['waiting'])} waiting",
        f"{units.percent(engine['kv_usage_share'])} of {units.count(engine['kv_capacity_tokens'])} tokens",
        f"preempted {units.count(engine['preemptions'])}",
        f"{units.percent(engine['prompt_computed_share'])} computed · "
        f"{units.percent(engine['prompt_cached_share'])} prefix cache",
        f"{units.significant(sum(engine['speculation']['per_position_share']))} of "
        f"{len(engine['speculation']['per_position_share'])} accepted",
        f"{engine['ttft_p95_low_s'] * 1000:.0f}–{engine['ttft_p95_high_s'] * 1000:.0f} ms",
    ):
        assert words in text


def test_the_gpu_s_numbers_agree(screen_and_json: tuple[str, dict[str, Any]]) -> None:
    text, data = screen_and_json
    gpu = data["gpus"][0]
    bandwidth = gpu["bandwidth"]
    for words in (
        units.percent_of_100(bandwidth["percent"]),
        bandwidth["source"],
        f"{gpu['temperature_c']:.0f} °C",
        units.percent_of_100(gpu["sm_percent"]),
        f"{gpu['power_w']:.0f}",
    ):
        assert words in text


def test_the_verdict_and_the_window_agree(screen_and_json: tuple[str, dict[str, Any]]) -> None:
    text, data = screen_and_json
    assert f"{data['window_s']:.0f} s window" in text
    assert data["servers"][0]["verdict"]["headline"] in text
