"""The load that a prediction is made for: how many sequences a configuration decodes at once."""

from __future__ import annotations

from typing import Any

import pytest

from vtop.hardware import find_card
from vtop.load.progress import LoadRequest
from vtop.presets import ServerSpec
from vtop.results.comparison import CompareRequest
from vtop.service.predicting import floor_times

BASELINE = ServerSpec(model="Qwen/Qwen2.5-7B-Instruct")


@pytest.mark.parametrize(
    ("wishes", "at_once"),
    [
        ({"workload": "chat"}, 16),
        ({"workload": "chat", "concurrency": 40}, 40),
        ({"workload": "chat", "requests": 4}, 4),
        ({"workload": "chat", "arrival": "burst", "requests": 100}, 100),
        ({"workload": "chat", "arrival": "burst", "requests": 100, "concurrency": 30}, 30),
        ({"workload": "chat", "choices": 4}, 64),
        ({"file": "prompts.jsonl", "concurrency": 8}, 8),
    ],
)
def test_a_prediction_is_for_the_sequences_that_the_load_brings_at_once(wishes: dict[str, Any], at_once: int) -> None:
    request = CompareRequest(("a", "b"), load=LoadRequest(**wishes))
    floor = floor_times(BASELINE, find_card("RTX 4090"), request)
    assert floor is not None
    assert floor.batch == at_once


def test_the_servers_own_limit_is_kept() -> None:
    request = CompareRequest(("a", "b"), load=LoadRequest(workload="chat", arrival="burst", requests=100))
    spec = ServerSpec(model=BASELINE.model, max_num_seqs=24)
    floor = floor_times(spec, find_card("RTX 4090"), request)
    assert floor is not None
    assert floor.batch == 24
