"""vLLM's own code reads what vtop saves, and its own benchmark saves the same keys."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vtop.load.progress import LoadRequest
from vtop.load.runner import LoadRunner

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

MOCK = Path(__file__).parents[1] / "load" / "mock_server.py"

READER = """
import json, sys
from pathlib import Path
from vllm.benchmarks.plot import construct_timeline_data
from vllm.benchmarks.sweep.plot import _convert_inf_nan_strings, _get_metric
from vllm.benchmarks.sweep.plot_pareto import _prepare_records

run = json.loads(Path(sys.argv[1]).read_text())
columns = [run[name] for name in ("start_times", "ttfts", "itls", "input_lens", "output_lens")]
requests = [
    {"start_time": s, "ttft": t, "itl": i, "latency": t + sum(i), "prompt_len": p, "output_tokens": o}
    for s, t, i, p, o in zip(*columns, strict=True)
]
segments = construct_timeline_data(requests, [0.025, 0.050], ["a", "b", "c"])
(record,), skipped = _prepare_records([run], user_count_var="max_concurrency", gpu_count_var=None)
(converted,) = _convert_inf_nan_strings([dict(run)])
print(json.dumps({
    "segments": len(segments),
    "skipped": skipped,
    "tokens_per_user": record["tokens_per_user"],
    "median_ttft_ms": _get_metric(run, "median_ttft_ms"),
    "rate_is_infinite": converted["request_rate"] == float("inf"),
}))
"""


@pytest.fixture
def mock_url() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, str(MOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


async def ours(url: str, directory: Path) -> Path:
    """A small load test of vtop's own; the file that it saved."""
    runner = LoadRunner(runs_dir=directory)
    request = LoadRequest(
        workload="demo", url=url, model="normal", concurrency=3, requests=6, max_tokens=5, measure_client=False
    )
    try:
        await runner.start(request)
        return Path((await runner.wait()).directory) / "result.json"
    finally:
        await runner.close()


def test_vllms_plots_read_our_result(real_env: Path, mock_url: str, tmp_path: Path) -> None:
    file = asyncio.run(ours(mock_url, tmp_path))
    python = str(real_env / "vllm" / "bin" / "python")
    done = subprocess.run([python, "-c", READER, str(file)], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout.splitlines()[-1])
    saved = json.loads(file.read_text(encoding="utf-8"))
    # Six requests of five tokens: a TTFT and four gaps each.
    assert (read["segments"], read["skipped"]) == (6 * 5, 0)
    assert read["tokens_per_user"] == pytest.approx(saved["output_throughput"] / 3)
    assert read["median_ttft_ms"] == saved["median_ttft_ms"] > 0
    assert read["rate_is_infinite"]


def test_vllm_bench_saves_the_keys_that_we_save(real_env: Path, mock_url: str, tmp_path: Path) -> None:
    mine: dict[str, Any] = json.loads(asyncio.run(ours(mock_url, tmp_path)).read_text(encoding="utf-8"))
    file = tmp_path / "theirs.json"
    command = [
        str(real_env / "vllm" / "bin" / "vllm"), "bench", "serve",
        "--backend", "openai-chat", "--base-url", mock_url, "--endpoint", "/v1/chat/completions",
        "--model", "normal", "--tokenizer", str(real_env / "models" / "tiny"),
        "--dataset-name", "random", "--random-input-len", "16", "--random-output-len", "5",
        "--num-prompts", "6", "--max-concurrency", "3", "--ready-check-timeout-sec", "0",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99",
        "--save-result", "--save-detailed", "--result-filename", str(file),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    theirs: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert set(mine) - set(theirs) == {"vtop_schema", "vtop_result"}
    assert set(theirs) - set(mine) == set()
    for key, value in theirs.items():
        if isinstance(value, list):
            assert isinstance(mine[key], list) and len(mine[key]) == len(value), key
        elif isinstance(value, int | float):
            assert isinstance(mine[key], int | float), key
