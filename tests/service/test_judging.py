"""Model, card and arithmetic that the verdict and the roofline estimate rest on."""

from __future__ import annotations

import pytest

from vtop.servers.status import ServerState, ServerStatus
from vtop.service.judging import Judge
from vtop.telemetry.snapshot import GpuReading, ServerView
from vtop.vllm.reading import EngineReading, ScrapeStatus

CARDS = [GpuReading("GPU-a", 0, "NVIDIA GeForce RTX 4090"), GpuReading("GPU-b", 1, "NVIDIA GeForce RTX 4090")]


def seen(engines: int) -> ServerView:
    """A server whose engines each run eight requests of 1,000 tokens at 400 tokens a second."""
    status = ServerStatus(
        "s",
        "http://127.0.0.1:8000",
        ServerState.FOREIGN,
        model="Qwen/Qwen2.5-7B-Instruct",
        gpu_uuids=("GPU-a", "GPU-b")[:engines],
    )
    reading = EngineReading(
        model_name="Qwen/Qwen2.5-7B-Instruct",
        window_s=10.0,
        engines=engines,
        running=8.0 * engines,
        kv_usage=0.1,
        kv_capacity_tokens=80_000.0 * engines,
        generation_tokens_per_s=400.0 * engines,
    )
    return ServerView(status, ScrapeStatus("ok"), (reading,))


def test_estimated_traffic_is_that_of_one_gpu_however_many_engines_there_are() -> None:
    judge = Judge(lambda: None)
    one = judge.bytes_per_s(seen(1), CARDS)
    assert one is not None
    # 50 steps a second, each reading 7 billion parameters in bf16 and some KV.
    assert one == pytest.approx(50 * 14.9e9, rel=0.1)
    assert judge.bytes_per_s(seen(2), CARDS) == pytest.approx(one)
