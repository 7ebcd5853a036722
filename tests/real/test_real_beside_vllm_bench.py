"""vtop's load test and `vllm bench serve` in turn on one server: the same shape of load, the same numbers."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
from driving import Vtop, tiny_settings

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(1800)]

NAME = "bench"
ROUNDS = 3
INPUT, OUTPUT, PROMPTS, CONCURRENCY = 256, 64, 48, 8


def vllm_bench(root: Path, url: str, directory: Path, seed: int) -> dict[str, Any]:
    """One run of vLLM's own client with random token ids."""
    file = directory / f"vllm-{seed}.json"
    command = [
        str(root / "vllm" / "bin" / "vllm"), "bench", "serve",
        "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions",
        "--model", str(root / "models" / "tiny"), "--served-model-name", "tiny",
        "--dataset-name", "random", "--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT),
        "--num-prompts", str(PROMPTS), "--max-concurrency", str(CONCURRENCY), "--num-warmups", str(CONCURRENCY),
        "--ignore-eos", "--temperature", "0.7", "--seed", str(seed),
        "--save-result", "--result-filename", str(file),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return dict(json.loads(file.read_text()))


def test_both_clients_see_the_same_server(vtop: Vtop, real_env: Path, tmp_path: Path) -> None:
    """Alternating runs: throughput and TPOT agree within the spread of the runs; vtop's TTFT is not the larger one."""
    vtop.run("start", "cpu-small", "--name", NAME, "--wait", *tiny_settings(real_env, prefix_caching="false"))
    server = vtop.server(NAME)
    assert server is not None
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    words = ["-c", str(CONCURRENCY), "-n", str(PROMPTS), "--prompt-tokens", str(INPUT), "--max-tokens", str(OUTPUT)]
    for round_ in range(ROUNDS):
        ours.append(vtop.json("load", "random", "--server", NAME, "--temperature", "0.7", *words))
        theirs.append(vllm_bench(real_env, server["url"], tmp_path, 100 + round_))
    rows = {
        "output tok/s": ([r["output_tokens_per_s"] for r in ours], [r["output_throughput"] for r in theirs]),
        "TPOT mean ms": ([r["tpot_mean_s"] * 1e3 for r in ours], [r["mean_tpot_ms"] for r in theirs]),
        "TTFT mean ms": ([r["ttft_mean_s"] * 1e3 for r in ours], [r["mean_ttft_ms"] for r in theirs]),
    }
    for name, (mine, other) in rows.items():
        print(f"{name}: vtop {[round(v, 1) for v in mine]}, vllm bench {[round(v, 1) for v in other]}")
    for name in ("output tok/s", "TPOT mean ms"):
        mine, other = rows[name]
        spread = max(max(mine) - min(mine), max(other) - min(other)) / statistics.median(other)
        assert statistics.median(mine) / statistics.median(other) == pytest.approx(1.0, abs=max(0.1, spread)), name
    assert statistics.median(rows["TTFT mean ms"][0]) < 1.1 * statistics.median(rows["TTFT mean ms"][1])
