"""Phases of a start-up and the numbers in it, from the log lines of vLLM 0.6 to 0.33."""

# ruff: noqa: E501 - log lines stay whole

from __future__ import annotations

from pathlib import Path

import pytest

from vtop.clock import FakeClock
from vtop.vllm.startup import PHASES, StartupTracker

DATA = Path(__file__).parent / "data"


def follow(*lines: str, seconds_a_line: float = 1.0) -> tuple[StartupTracker, FakeClock]:
    clock = FakeClock()
    tracker = StartupTracker(clock)
    for line in lines:
        clock.advance(seconds_a_line)
        tracker.feed(line)
    return tracker, clock


def read(name: str) -> list[str]:
    return (DATA / name).read_bytes().decode(errors="replace").split("\n")


def test_a_real_start_of_0_32_goes_through_its_phases_in_order() -> None:
    tracker, _ = follow(*read("startup-0.32-cpu.log"))
    progress = tracker.progress()
    assert [phase for phase, _ in progress.done] == ["launch", "config", "engine", "weights", "kv-cache"]
    assert progress.phase == "warm-up"
    assert sum(seconds for _, seconds in progress.done) + progress.phase_elapsed_s == progress.elapsed_s


def test_a_real_start_tells_its_numbers() -> None:
    facts = follow(*read("startup-0.32-cpu.log"))[0].facts
    assert facts["version"] == "0.32.0"
    assert facts["model"] == "./tiny0"
    assert facts["architecture"] == "Qwen2ForCausalLM"
    assert facts["max_model_len"] == 1024
    assert facts["kv_cache_gib"] == 1.0
    assert facts["kv_cache_tokens"] == 2_097_152
    assert facts["max_concurrency"] == 2048
    assert facts["init_seconds"] == 2.63
    assert "quantization" not in facts, "None in the log is unknown, not a word"


V0_06 = (
    "INFO 10-12 00:20:00 api_server.py:526] vLLM API server version 0.6.3.post1",
    "INFO 10-12 00:20:00 api_server.py:527] args: Namespace(model='m')",
    "INFO 10-12 00:20:10 config.py:1021] Chunked prefill is enabled with max_num_batched_tokens=512.",
    "INFO 10-12 00:20:12 llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: model='m', "
    "dtype=torch.float16, max_seq_len=4096, tensor_parallel_size=2, quantization=awq, enforce_eager=False",
    "INFO 10-12 00:20:13 utils.py:1008] Found nccl from library libnccl.so.2",
    "(VllmWorkerProcess pid=77) INFO 10-12 00:20:13 pynccl.py:63] vLLM is using nccl==2.20.5",
    "INFO 10-12 00:20:20 model_runner.py:1056] Starting to load model m...",
    "INFO 10-12 00:20:40 model_runner.py:1067] Loading model weights took 14.2487 GB",
    "(VllmWorkerProcess pid=77) INFO 10-12 00:20:41 model_runner.py:1067] Loading model weights took 14.2500 GB",
    "INFO 10-12 00:20:50 gpu_executor.py:122] # GPU blocks: 7,123, # CPU blocks: 4681",
    "INFO 10-12 00:20:50 gpu_executor.py:126] Maximum concurrency for 4096 tokens per request: 27.82x",
    "INFO 10-12 00:20:52 model_runner.py:1395] Capturing the model for CUDA graphs. This may lead to ...",
    "INFO 10-12 00:21:10 model_runner.py:1523] Graph capturing finished in 18 secs, took 0.33 GiB",
    "INFO 10-12 00:21:12 launcher.py:19] Available routes are:",
    "INFO:     Application startup complete.",
)


def test_a_v0_start_of_0_6_with_two_ranks() -> None:
    tracker, _ = follow(*V0_06)
    progress = tracker.progress()
    assert [phase for phase, _ in progress.done] == [
        "launch",
        "config",
        "engine",
        "nccl",
        "weights",
        "kv-cache",
        "graphs",
    ]
    assert progress.phase == "warm-up"
    facts = tracker.facts
    assert facts["version"] == "0.6.3.post1"
    assert facts["max_num_batched_tokens"] == 512
    assert facts["tensor_parallel"] == 2
    assert facts["quantization"] == "awq"
    assert facts["weights_gib"] == 14.25, "the fuller GPU counts"
    assert facts["kv_cache_blocks"] == 7123
    assert facts["max_concurrency"] == 27.82
    assert facts["graph_capture_seconds"] == 18


@pytest.mark.parametrize(
    ("line", "phase", "name", "value"),
    [
        ("INFO 01-13 11:35:21 a.py:1] Model loading took 14.25 GB and 5.1 seconds", "weights", "weights_gib", 14.25),
        ("INFO 01-13 11:35:21 [a.py:1] Model loading took 14.25 GiB and 5.1 seconds", "weights", "weights_gib", 14.25),
        ("INFO 01-13 11:35:21 [a.py:1] Model loading took 2.5 GiB memory and 5.1 seconds", "weights", "weights_gib", 2.5),
        ("INFO 01-13 11:35:21 [a.py:1] Available KV cache memory: 50.11 GiB", "kv-cache", "kv_cache_gib", 50.11),
        ("INFO 01-13 11:35:21 [a.py:1] GPU KV cache size: 432,816 tokens", "kv-cache", "kv_cache_tokens", 432816),
        (
            "INFO 01-13 11:35:21 [a.py:1] GPU KV cache size: 432,816 tokens, Maximum concurrency for 8,192 tokens per "
            "request: 52.83x",
            "kv-cache",
            "max_concurrency",
            52.83,
        ),
        ("INFO 01-13 11:35:21 [a.py:1] torch.compile takes 41.22 s in total", "compile", "compile_seconds", 41.22),
        ("INFO 01-13 11:35:21 [a.py:1] Dynamo bytecode transform time: 6.22 s", "compile", None, None),
        (
            "INFO 01-13 11:35:21 [a.py:1] init engine (profile, create kv cache, warmup model) took 61.50 seconds",
            "warm-up",
            "init_seconds",
            61.5,
        ),
        (
            "INFO 01-13 11:35:21 [a.py:1] init engine (profile, create kv cache, warmup model) took 61.50 s "
            "(compilation: 33.10 s, other)",
            "warm-up",
            "compile_seconds",
            33.1,
        ),
        (
            "INFO 01-13 11:35:21 worker.py:241] the current vLLM instance can use total_gpu_memory (23.64GiB) x "
            "gpu_memory_utilization (0.90) = 21.28GiB",
            "profile",
            "gpu_memory_gib",
            23.64,
        ),
        (
            "INFO 01-13 11:35:21 [a.py:1] Filesystem type for checkpoints: ext4. Checkpoint size: 14.19 GiB. "
            "Available RAM: 100.00 GiB.",
            "weights",
            "checkpoint_gib",
            14.19,
        ),
        (
            "INFO 01-13 11:35:21 weight_utils.py:1] Time spent downloading weights for m: 93.102 seconds",
            "download",
            "download_seconds",
            93.102,
        ),
        ("INFO 01-13 11:35:21 [a.py:1] Starting vLLM API server 0 on http://h:1", "warm-up", "listens_on", "http://h:1"),
        ("INFO 01-13 11:35:21 [a.py:1] Starting vLLM server on http://h:1", "warm-up", "listens_on", "http://h:1"),
        ("INFO 01-13 11:35:21 [c.py:1] Using FLASH_ATTN backend.", "launch", "attention_backend", "FLASH_ATTN"),
    ],
)  # fmt: skip
def test_wordings_of_single_lines(line: str, phase: str, name: str | None, value: object) -> None:
    tracker, _ = follow(line)
    assert tracker.progress().phase == phase
    if name is not None:
        assert tracker.facts[name] == value


def test_a_shard_bar_gives_the_share_and_words() -> None:
    tracker, _ = follow(
        "Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]\r"
        "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:03<00:03,  1.6s/it]"
    )
    progress = tracker.progress()
    assert (progress.phase, progress.share, progress.text) == ("weights", 0.5, "loading weights 50 %")


def test_a_graph_bar_gives_the_share_and_which_graphs() -> None:
    tracker, _ = follow("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  40%|████      | 20/50 [00:01<00:02]")
    progress = tracker.progress()
    assert (progress.phase, progress.share) == ("graphs", 0.4)
    assert progress.text == "capturing CUDA graphs (mixed prefill-decode, PIECEWISE) 40 %"


def test_older_graph_bars_are_read_too() -> None:
    tracker, _ = follow("Capturing CUDA graph shapes:  40%|████      | 20/50 [00:01<00:02]")
    assert tracker.progress().share == 0.4


def test_parallel_download_bars_add_up() -> None:
    tracker, _ = follow(
        "Fetching 2 files:   0%|          | 0/2 [00:00<?, ?it/s]",
        "model-00001-of-00002.safetensors:  50%|█████     | 2.00G/4.00G [00:10<00:10, 200MB/s]",
        "model-00002-of-00002.safetensors: 100%|██████████| 1.00G/1.00G [00:05<00:00, 200MB/s]",
    )
    progress = tracker.progress()
    assert (progress.phase, progress.share) == ("download", 0.6)


def test_a_late_rank_does_not_set_the_phase_back() -> None:
    tracker, _ = follow(
        "(Worker_TP0 pid=1) INFO 01-13 11:35:21 [a.py:1] Dynamo bytecode transform time: 6.22 s",
        "(Worker_TP1 pid=2) INFO 01-13 11:35:21 [a.py:1] Starting to load model m...",
        "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:03<00:03,  1.6s/it]",
    )
    assert tracker.progress().phase == "compile"
    assert tracker.progress().share is None


def test_startup_complete_in_the_log_is_not_ready() -> None:
    """A server that cannot bind its port prints it as well."""
    tracker, _ = follow(*read("died-port-in-use-after-startup-complete.log"))
    assert tracker.progress().phase == "warm-up"
    tracker.mark_ready()
    assert tracker.progress().phase == "ready"


def test_a_silent_nccl_is_stuck_only_after_its_limit_and_says_what_to_try() -> None:
    tracker, clock = follow(*read("starting-nccl-hang.log"))
    assert tracker.progress().phase == "nccl"
    clock.advance(30)
    assert tracker.progress().stuck == ""
    clock.advance(270)
    progress = tracker.progress()
    assert progress.silent_s == 300
    assert "no log line for 5:00" in progress.stuck
    assert "NCCL_P2P_DISABLE=1" in progress.stuck


def test_slow_loading_that_still_moves_is_not_stuck() -> None:
    tracker, clock = follow("INFO 01-13 11:35:21 [a.py:1] Starting to load model m...")
    for shard in range(163):
        clock.advance(15)
        tracker.feed(
            f"Loading safetensors checkpoint shards: {shard}% Completed | {shard}/163 [09:30<04:59,  5.16s/it]\r"
        )
        assert tracker.progress().stuck == ""
    assert tracker.progress().elapsed_s > 2222


def test_a_long_silent_compile_is_not_stuck() -> None:
    tracker, clock = follow("INFO 01-13 11:35:21 [a.py:1] Dynamo bytecode transform time: 6.22 s")
    clock.advance(2222)
    assert tracker.progress().stuck == ""


def test_every_phase_has_words() -> None:
    clock = FakeClock()
    tracker = StartupTracker(clock, expected_s=40)
    assert tracker.progress().text == "starting Python"
    assert tracker.progress().expected_s == 40
    assert PHASES[0] == "launch"
    assert PHASES[-1] == "ready"


def test_hostile_text_does_no_harm() -> None:
    tracker, _ = follow(
        *read("hostile-text.log"), "\x1b[31m", "", "\r\r\r", "(", "(a b=", "args: Namespace(" + "(" * 50_000
    )
    assert tracker.facts["model"] == "/models/Example-0.6B"
