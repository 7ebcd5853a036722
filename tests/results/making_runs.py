"""Load results made by hand, for tests of comparisons and reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vtop.load.progress import LoadRequest, LoadResult, Percentiles


def a_run(
    tokens_per_s: float = 600.0,
    *,
    round: int = 1,
    ttft_s: float = 0.080,
    tpot_s: float = 0.020,
    requests: int = 200,
    failed: int = 0,
    output_length: float = 150.0,
    server: dict[str, Any] | None = None,
    gpu: dict[str, Any] | None = None,
    version: str = "0.32.0",
    request: LoadRequest | None = None,
    **changes: Any,
) -> LoadResult:
    """A finished chat load with the given headline numbers."""
    completed = requests - failed
    tokens = round_to_int(completed * output_length)
    duration_s = tokens / tokens_per_s
    request = request or LoadRequest(
        workload="chat",
        url="http://127.0.0.1:8000",
        model="m",
        concurrency=16,
        requests=requests,
        max_tokens=150,
        prompt_tokens=512,
        temperature=0.7,
        ignore_eos=True,
        endpoint="chat",
    )
    result = LoadResult(
        run_id=f"run-{round}",
        directory="",
        request=request,
        complete=True,
        requests=requests,
        completed=completed,
        failed=failed,
        duration_s=duration_s,
        output_tokens=tokens,
        prompt_tokens=completed * 512,
        output_tokens_per_s=tokens_per_s,
        steady_tokens_per_s=tokens_per_s * 1.02,
        requests_per_s=completed / duration_s,
        ttft=spread(completed, ttft_s),
        tpot=spread(completed, tpot_s),
        itl=spread(completed, tpot_s),
        e2e=spread(completed, ttft_s + tpot_s * (output_length - 1)),
        server={"prefix_hit_rate": 0.004} if server is None else server,
        gpu=gpu or {},
        seed=1000 + round,
        fingerprint={"vllm_version": version, "model": "m"},
        repeat_command="vtop load chat --server m",
    )
    return replace(result, **changes)


def spread(n: int, middle: float) -> Percentiles:
    """Percentiles around a median."""
    return Percentiles(
        n,
        mean=middle * 1.05,
        p50=middle,
        p90=middle * 1.3,
        p95=middle * 1.4,
        p99=middle * 1.6,
        minimum=middle * 0.8,
        maximum=middle * 2,
    )


def round_to_int(value: float) -> int:
    """Nearest whole number."""
    return int(value + 0.5)
