"""One reading as one point of the history: what the charts draw."""

from __future__ import annotations

from vtop.telemetry.snapshot import GpuReading, ServerView
from vtop.vllm.reading import Latency


def server_point(view: ServerView) -> dict[str, float | None]:
    """A server's values now; a latency that is only remembered is a gap."""
    engine = view.engine
    if engine is None:
        return {}
    ttft, tpot = _live(engine.ttft), _live(engine.tpot)
    p95 = ttft.p95 if ttft is not None else None
    return {
        "ttft_mean_s": None if ttft is None else ttft.mean_s,
        "ttft_p95_s": None if p95 is None else p95.value_s,
        "tpot_mean_s": None if tpot is None else tpot.mean_s,
        "generation_tokens_per_s": engine.generation_tokens_per_s,
        "prompt_tokens_per_s": engine.prompt_tokens_per_s,
        "requests_per_s": engine.requests_per_s,
        "running": engine.running,
        "waiting": engine.waiting,
        "kv_usage": engine.kv_usage,
        "prefix_hit_rate": engine.prefix_hit_rate,
        "acceptance": None if engine.speculation is None else engine.speculation.acceptance,
        "tpot_floor_s": None if view.verdict is None else view.verdict.tpot_floor_s,
    }


def gpu_point(gpu: GpuReading) -> dict[str, float | None]:
    """A GPU's values now; a lost one has none."""
    if gpu.lost:
        return {}
    return {
        "bandwidth_percent": None if gpu.bandwidth is None else gpu.bandwidth.percent,
        "sm_percent": gpu.sm_percent,
        "gpu_util_percent": gpu.gpu_util_percent,
        "memory_used_bytes": gpu.memory_used_bytes,
        "power_w": gpu.power_w,
    }


def _live(latency: Latency | None) -> Latency | None:
    return latency if latency is not None and latency.age_s == 0 else None
