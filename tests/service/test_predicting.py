"""The least times of a load, where several servers share it."""

from __future__ import annotations

import pytest

from vtop.hardware import find_card
from vtop.presets import Disaggregated, ServerSpec
from vtop.results.comparison import CompareRequest, FloorTimes
from vtop.service.predicting import floor_times

MODEL = "Qwen/Qwen2.5-7B-Instruct"


def floors(concurrency: int, **spec: object) -> FloorTimes:
    request = CompareRequest(presets=("a",), workload="chat", concurrency=concurrency)
    found = floor_times(ServerSpec(model=MODEL, **spec), find_card("H100"), request)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("decode", [2, 3, 4])
def test_one_request_behind_several_decode_servers_still_reads_all_weights(decode: int) -> None:
    """Half a request on each of two is none at all in whole tokens, and would take no time."""
    alone = floors(1)
    assert floors(1, disaggregated=Disaggregated(decode=decode)).step_s == pytest.approx(alone.step_s)


@pytest.mark.parametrize("spec", [{"replicas": 2}, {"data_parallel": 2}])
def test_two_whole_servers_do_twice_the_work_of_one(spec: dict[str, object]) -> None:
    one, two = floors(8), floors(16, **spec)
    assert two.batch == 16
    assert two.step_s == pytest.approx(one.step_s)
    assert two.tokens_per_s() == pytest.approx(2 * one.tokens_per_s())


def test_a_limit_of_requests_counts_for_each_server() -> None:
    assert floors(16, max_num_seqs=1).batch == 1
    assert floors(16, max_num_seqs=1, replicas=4).batch == 4
    assert floors(2, max_num_seqs=1, replicas=4).batch == 2
