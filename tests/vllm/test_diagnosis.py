"""Why a server died, from real logs and from one line of each known cause, in the wordings of vLLM 0.6 to 0.33."""

# ruff: noqa: E501 - log lines stay whole

from __future__ import annotations

from pathlib import Path

import pytest

from vtop.vllm.causes import CAUSES
from vtop.vllm.diagnosis import diagnose
from vtop.vllm.lifecycle import DeathContext, Diagnosis
from vtop.vllm.remedies import exit_words

DATA = Path(__file__).parent / "data"


def read(name: str) -> list[str]:
    return (DATA / name).read_bytes().decode(errors="replace").split("\n")


def overrides(diagnosis: Diagnosis) -> dict[str, str]:
    return {name: value for remedy in reversed(diagnosis.remedies) for name, value in remedy.overrides}


@pytest.mark.parametrize(
    ("log", "code", "headline", "fix", "line"),
    [
        (
            "died-memory-not-free-0.11.log",
            "gpu-memory-not-free",
            "Free memory on device (31.44/47.38 GiB) on startup is less than desired GPU memory utilization "
            "(0.95, 45.01 GiB)",
            ("gpu_memory_utilization", "0.66"),
            8,
        ),
        (
            "died-memory-not-free-0.32.log",
            "gpu-memory-not-free",
            "Free memory on device cuda:0 (31.44/47.38 GiB) on startup",
            ("gpu_memory_utilization", "0.66"),
            8,
        ),
        ("died-kv-too-small-0.15.log", "kv-cache-too-small", "24.0 GiB KV cache", ("max_model_len", "34736"), 8),
        ("died-kv-too-small-0.22.log", "kv-cache-too-small", "22.5 GiB KV cache", ("max_model_len", "810208"), 8),
        ("died-kv-too-small-v0.log", "kv-cache-too-small", "stored in KV cache (3664)", ("max_model_len", "3664"), 6),
        (
            "died-kv-too-small-hard-wrapped.log",
            "kv-cache-too-small",
            "(4.26 GiB KV cache is needed, which is larger than the available KV cache memory (4.25 GiB)",
            ("max_model_len", "99680"),
            9,
        ),
        (
            "died-oom-sampler-two-ranks-0.8.log",
            "oom-sampler-warmup",
            "CUDA out of memory occurred when warming up sampler with 1024 dummy requests",
            ("max_num_seqs", "256"),
            8,
        ),
        (
            "died-port-in-use-after-startup-complete.log",
            "port-in-use",
            "error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
            ("port", "auto"),
            5,
        ),
        ("died-portused-0.32.log", "port-in-use", "Port 18803 is in use", ("port", "auto"), 38),
        (
            "died-path-not-found.log",
            "model-not-found",
            "Invalid repository ID or local directory specified: '/models/does-not-exist'",
            None,
            3,
        ),
        ("died-nomodel-0.32.log", "model-not-found", "Model path not found: /no/such/model", None, 52),
        ("died-nohub-0.32.log", "model-not-cached", "outgoing traffic has been disabled", None, 61),
        ("died-badarch-0.32.log", "architecture-unsupported", "model type nosuch", None, 58),
        ("died-awqmissing-0.32.log", "quantization-config-missing", "Cannot find the config file for awq", None, 52),
        ("died-badflag-0.32.log", "unknown-flag", "unrecognized arguments: --no-such-flag 3", None, 5),
        ("died-oldspec-0.32.log", "unknown-flag", "--speculative-model x --num-speculative-tokens 3", None, 5),
        ("died-toolong-0.32.log", "max-model-len-too-long", "max_model_len (999999)", ("max_model_len", "4096"), 54),
        (
            "died-ready-timeout.log",
            "engine-ready-timeout",
            "Engine ready timeout (600 s)",
            ("env.VLLM_ENGINE_READY_TIMEOUT_S", "1400"),
            2,
        ),
    ],
)
def test_logs_of_real_deaths(log: str, code: str, headline: str, fix: tuple[str, str] | None, line: int) -> None:
    diagnosis = diagnose(read(log), exit_code=1)
    assert diagnosis.code == code
    assert headline in diagnosis.headline
    assert diagnosis.line_number == line
    assert "See root cause above" not in diagnosis.headline
    assert "fatal signal" not in diagnosis.headline
    assert "\n" not in diagnosis.headline
    if fix is None:
        assert not overrides(diagnosis)
    else:
        assert overrides(diagnosis)[fix[0]] == fix[1]
        assert diagnosis.remedies[0].overrides[0][0] == fix[0], "the best remedy comes first"


def test_no_context_length_is_invented_where_the_log_gives_none() -> None:
    diagnosis = diagnose(read("died-kv-too-small-no-estimate.log"), exit_code=1)
    assert diagnosis.code == "kv-cache-too-small"
    assert "max_model_len" not in overrides(diagnosis)


def test_the_allocation_that_failed_is_the_detail_of_the_sampler_warm_up() -> None:
    diagnosis = diagnose(read("died-oom-sampler-two-ranks-0.8.log"), exit_code=1)
    assert diagnosis.detail.count("Tried to allocate 1.16 GiB") == 1
    assert "0.98 GiB is free" in diagnosis.detail


def test_the_progress_at_a_ready_timeout_is_told() -> None:
    diagnosis = diagnose(read("died-ready-timeout.log"), exit_code=1)
    assert "105 of 163 weight shards" in diagnosis.remedies[0].text
    assert "loading weights 64 %" in diagnosis.detail


def test_error_lines_of_a_start_that_worked_are_no_failure() -> None:
    assert diagnose(read("ready-with-harmless-errors.log")).code == "no-failure"


def test_a_stop_is_not_a_failure() -> None:
    assert diagnose(read("stopped-cleanly-0.32.log"), exit_code=0).code == "stopped"


def test_exit_code_0_after_the_engine_was_killed_is_still_a_death() -> None:
    diagnosis = diagnose(read("died-engine-killed-0.32.log"), exit_code=0)
    assert diagnosis.code == "engine-died"
    assert "vLLM gives even when its engine crashed" in diagnosis.detail


def test_a_worker_that_dies_on_the_first_request_of_a_healthy_server() -> None:
    lines = [
        "INFO:     Application startup complete.",
        'INFO:     127.0.0.1:52420 - "GET /health HTTP/1.1" 200 OK',
        "(EngineCore pid=5) ERROR 11-30 03:21:25 [multiproc_executor.py:316] Worker proc VllmWorker-0 died unexpectedly "
        "(exit code: -4), shutting down executor.",
        "(APIServer pid=1) ERROR 11-30 03:21:25 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        "encountered an issue. See stack trace (above) for the root cause.",
    ]
    diagnosis = diagnose(lines, exit_code=0)
    assert diagnosis.code == "worker-illegal-instruction"
    assert "behind a healthy /health" in diagnosis.headline
    assert "40 prompt tokens" in diagnosis.remedies[0].text


def test_the_same_death_known_only_from_the_workers_exit_code() -> None:
    context = DeathContext(was_ready=True, worker_exit_codes=(-4,))
    assert diagnose([], exit_code=0, context=context).code == "worker-illegal-instruction"
    assert "while starting" in diagnose([], exit_code=-4).headline


SYNTHETIC = [
    ("gpu-memory-changed",
     "AssertionError: Error in memory profiling. Initial free memory 20.1 GiB, current free memory 22.3 GiB. This happens "
     "when the GPU memory was not properly cleaned up before initializing the vLLM instance.", {}),
    ("gpu-memory-changed",
     "AssertionError: Error in memory profiling. Initial free memory 20.1 GiB, current free memory 22.3 GiB. This happens "
     "when other processes sharing the same container release GPU memory while vLLM is profiling", {}),
    ("kv-cache-no-room",
     "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
     "engine.", {"gpu_memory_utilization": "0.95"}),
    ("batch-smaller-than-context",
     "  Value error, max_num_batched_tokens (512) is smaller than max_model_len (4096). This effectively limits [type="
     "value_error, input_value=x, input_type=y]", {"chunked_prefill": "true", "max_num_batched_tokens": "4096"}),
    ("batch-smaller-than-requests",
     "ValueError: max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (256).",
     {"max_num_batched_tokens": "256", "max_num_seqs": "64"}),
    ("gpu-out-of-memory",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of "
     "which 1.2 GiB is free.", {"gpu_memory_utilization": "0.85"}),
    ("gpu-out-of-memory", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB.",
     {"gpu_memory_utilization": "0.85"}),
    ("host-out-of-memory", "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory",
     {}),
    ("port-in-use", "OSError: [Errno 98] Address already in use", {"port": "auto"}),
    ("port-in-use", "OSError: [Errno 48] Address already in use", {"port": "auto"}),
    ("heads-not-divisible",
     "  Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8). [type=value_error]",
     {"tensor_parallel": "7"}),
    ("too-few-gpus",
     "  Value error, World size (8) is larger than the number of available GPUs (3) in this node. If this is intentional",
     {"tensor_parallel": "2", "gpus": "2"}),
    ("too-few-gpus", "RuntimeError: CUDA error: invalid device ordinal", {}),
    ("quantization-blocks",
     "ValueError: Weight output_partition_size = 1216 is not divisible by weight quantization block_n = 128.", {}),
    ("quantization-blocks",
     "ValueError: Weight output_size_per_partition = 33 is not divisible by min_thread_n = 64. Consider reducing "
     "tensor_parallel_size", {}),
    ("quantization-unknown", "  Value error, Unknown quantization method: nosuch. Must be one of ['awq', 'fp8'].", {}),
    ("invalid-flag-value", "api_server.py: error: argument --quantization/-q: invalid choice: 'nosuch' (choose from 'aqlm')", {}),
    ("quantization-mismatch",
     "  Value error, Quantization method specified in the model config (gptq) does not match the quantization method "
     "specified in the `quantization` argument (awq).", {"quantization": "gptq"}),
    ("quantization-gpu-too-old",
     "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 89. Current "
     "capability: 80.", {}),
    ("quantization-platform", "  Value error, fp8 quantization is currently not supported in cpu.", {}),
    ("quantization-platform",
     "RuntimeError: _C::static_scaled_fp8_quant() expected at most 0 argument(s) but received 4", {}),
    ("dtype-unsupported",
     "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute "
     "capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half.",
     {"dtype": "half"}),
    ("architecture-unsupported",
     "ValueError: Model architectures ['NoSuchLM'] are not supported for now. Supported architectures: ['LlamaForCausalLM']",
     {}),
    ("architecture-unsupported",
     "ValueError: NoSuchLM has no vLLM implementation and the Transformers implementation is not compatible with vLLM.", {}),
    ("weights-missing", "RuntimeError: Cannot find any model weights with `./tiny0`", {}),
    ("model-gated", "OSError: You are trying to access a gated repo.", {}),
    ("model-gated", "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: x)", {}),
    ("model-gated", "Cannot access gated repo for url https://host/api/models/m.", {}),
    ("model-gated", "Access to model org/m is restricted. You must have access to it. Please log in.", {}),
    ("model-not-found", "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: x)", {}),
    ("model-not-found", "OSError: org/nosuch is not a local folder and is not a valid model identifier listed on the hub", {}),
    ("driver-too-old",
     "RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver", {}),
    ("no-gpu", "RuntimeError: Failed to infer device type", {}),
    ("no-gpu", "RuntimeError: No CUDA GPUs are available", {}),
    ("nccl", "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
     {"env.NCCL_P2P_DISABLE": "1"}),
    ("nixl-missing", "RuntimeError: NIXL is not available", {}),
    ("trust-remote-code",
     "ValueError: The repository for m contains custom code which must be executed to correctly load the model. Please pass "
     "the argument `trust_remote_code=True` to allow custom code to be run.", {"trust_remote_code": "true"}),
    ("speculation-unsupported",
     "NotImplementedError: Speculative decoding with draft model is not supported yet. Please consider using other methods", {}),
    ("engine-ready-timeout", "TimeoutError: Timed out waiting for engine core processes to start.",
     {"env.VLLM_ENGINE_READY_TIMEOUT_S": "1200"}),
    ("cpu-threads", "AssertionError: Not enough allowed NUMA nodes to bind threads", {"env.VLLM_CPU_OMP_THREADS_BIND": "nobind"}),
    ("gpu-not-in-build", "RuntimeError: CUDA error: no kernel image is available for execution on the device", {}),
    ("disk-full", "OSError: [Errno 28] No space left on device", {}),
    ("permission", "PermissionError: [Errno 13] Permission denied: '/models/m/config.json'", {}),
    ("files-limit", "OSError: [Errno 24] Too many open files", {}),
    ("weights-corrupt", "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", {}),
    ("hub-unreachable", "OSError: We couldn't connect to 'https://huggingface.co' to load the files", {}),
    ("installation-broken", "ModuleNotFoundError: No module named 'vllm'", {}),
    ("installation-broken", "RuntimeError: operator torchvision::nms does not exist", {}),
    ("cuda-error", "RuntimeError: CUDA error: an illegal memory access was encountered", {"env.CUDA_LAUNCH_BLOCKING": "1"}),
    ("engine-died", "RuntimeError: Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.", {}),
    ("engine-died", "ERROR 01-13 11:35:21 [core.py:1] EngineCore encountered a fatal error.", {}),
    ("worker-died",
     "ERROR 01-13 11:35:21 [multiproc_executor.py:1] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", {}),
    ("engine-killed",
     "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}", {}),
    ("worker-illegal-instruction",
     "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': -4}", {}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line", "fix"), SYNTHETIC)
def test_the_wording_of_each_cause(code: str, line: str, fix: dict[str, str]) -> None:
    summary = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    diagnosis = diagnose(["Traceback (most recent call last):", line, summary], exit_code=1)
    assert diagnosis.code == code
    assert diagnosis.line_number == 2
    assert diagnosis.remedies
    assert fix.items() <= overrides(diagnosis).items()
    assert "[type=" not in diagnosis.headline


def test_every_known_cause_has_a_wording_above() -> None:
    real = {"gpu-memory-not-free", "kv-cache-too-small", "oom-sampler-warmup", "max-model-len-too-long", "unknown-flag"}
    real |= {"quantization-config-missing", "model-not-cached"}
    assert {cause.code for cause in CAUSES} == {code for code, _, _ in SYNTHETIC} | real


def test_the_cause_survives_colours_bars_and_rank_prefixes() -> None:
    lines = [
        "Loading safetensors checkpoint shards:  33% Completed | 1/3 [00:01<00:02,  1.10s/it]\r"
        "\x1b[1;36m(Worker_TP1 pid=9)\x1b[0;0m ERROR 01-13 11:35:21 [w.py:1] torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 2.00 GiB."
    ]
    diagnosis = diagnose(lines, exit_code=1)
    assert diagnosis.code == "gpu-out-of-memory"
    assert "\x1b" not in diagnosis.headline + diagnosis.detail
    assert "weights do not fit" in diagnosis.remedies[0].text


def test_remedies_start_from_the_settings_that_were_used() -> None:
    line = "ValueError: No available memory for the cache blocks."
    args = (
        "INFO 01-13 11:35:21 [u.py:1] non-default args: {'gpu_memory_utilization': 0.7, 'max_num_batched_tokens': 8192}"
    )
    fixed = overrides(diagnose([args, line]))
    assert fixed == {"gpu_memory_utilization": "0.75", "max_num_batched_tokens": "4096"}
    old = (
        "INFO 01-13 11:35:21 api_server.py:1] args: Namespace(model='m', gpu_memory_utilization=0.7, max_num_seqs=256)"
    )
    assert overrides(diagnose([old, line]))["gpu_memory_utilization"] == "0.75"
    context = DeathContext(settings={"gpu_memory_utilization": 0.5})
    assert overrides(diagnose([args, line], context=context))["gpu_memory_utilization"] == "0.55"


def test_utilization_is_not_raised_beyond_what_is_safe() -> None:
    context = DeathContext(settings={"gpu_memory_utilization": 0.95})
    diagnosis = diagnose(["ValueError: No available memory for the cache blocks."], context=context)
    assert "gpu_memory_utilization" not in overrides(diagnosis)


def test_who_has_the_port_and_the_gpu_is_named_where_it_is_known() -> None:
    context = DeathContext(port_owner="pid 812, vllm serve old", gpu_users="pid 99 holds 16 GiB")
    port = diagnose(["OSError: [Errno 98] Address already in use"], context=context)
    assert any("pid 812, vllm serve old" in remedy.text for remedy in port.remedies)
    memory = diagnose(read("died-memory-not-free-0.32.log"), context=context)
    assert any("pid 99 holds 16 GiB" in remedy.text for remedy in memory.remedies)


def test_errors_of_single_requests_do_not_explain_the_death_of_a_server() -> None:
    lines = [
        "INFO:     Application startup complete.",
        "ERROR 01-13 11:35:21 [serving.py:1] ValueError: max_num_batched_tokens (1) is smaller than max_model_len (2).",
        "ERROR 01-13 11:39:21 [core.py:1] EngineCore encountered a fatal error.",
        "ERROR 01-13 11:39:21 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
        "ERROR 01-13 11:39:22 [async_llm.py:1] EngineDeadError: EngineCore encountered an issue.",
    ]
    assert diagnose(lines, exit_code=0).code == "gpu-out-of-memory"


def test_an_appended_log_does_not_blame_the_run_before() -> None:
    lines = [
        "INFO 01-13 11:35:21 [api_server.py:1] vLLM API server version 0.11.0",
        "OSError: [Errno 98] Address already in use",
        "INFO 01-13 11:45:21 [api_server.py:1] vLLM API server version 0.11.0",
        "RuntimeError: Failed to infer device type",
    ]
    assert diagnose(lines, exit_code=1).code == "no-gpu"


def test_an_unknown_cause_shows_the_last_real_error_and_says_so() -> None:
    lines = [
        "ERROR 01-13 11:35:21 [core.py:1] EngineCore failed to start.",
        "ERROR 01-13 11:35:21 [core.py:1] Traceback (most recent call last):",
        "ERROR 01-13 11:35:21 [core.py:1] KeyError: 'layers.0.weight_scale'",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    diagnosis = diagnose(lines, exit_code=1)
    assert diagnosis.code == "unknown"
    assert diagnosis.headline == "Unknown cause; the last error in the log: 'layers.0.weight_scale'"
    assert diagnosis.line_number == 3


def test_an_empty_log_is_unknown_with_the_exit_code() -> None:
    diagnosis = diagnose([], exit_code=3)
    assert diagnosis.code == "unknown"
    assert "exit code 3" in diagnosis.headline


@pytest.mark.parametrize(
    ("exit_code", "code", "words"),
    [(-9, "killed", "out-of-memory killer"), (137, "killed", "SIGKILL"), (-11, "crashed", "SIGSEGV"), (-7, "crashed", "/dev/shm")],
)  # fmt: skip
def test_exit_codes_in_words(exit_code: int, code: str, words: str) -> None:
    diagnosis = diagnose(["INFO:     Application startup complete."], exit_code=exit_code)
    assert diagnosis.code == code
    assert words in diagnosis.headline


def test_a_known_cause_beats_the_signal_that_followed() -> None:
    assert diagnose(["RuntimeError: Failed to infer device type"], exit_code=-6).code == "no-gpu"


def test_exit_words() -> None:
    assert exit_words(2) == "exit code 2, wrong usage"
    assert exit_words(-15) == "ended by SIGTERM, somebody asked it to stop"
    assert exit_words(-63) == "ended by signal 63"


def test_secrets_in_a_log_do_not_reach_the_diagnosis() -> None:
    lines = [
        "vllm: error: unrecognized arguments: --api-key sk-secret --x",
        "ValueError: bad token hf_abcdefghijklmnopqrstuvwx",
    ]
    for one in lines:
        diagnosis = diagnose([one], exit_code=2)
        text = diagnosis.headline + diagnosis.detail + "".join(remedy.text for remedy in diagnosis.remedies)
        assert "sk-secret" not in text
        assert "hf_abcdefghijkl" not in text


def test_text_that_looks_like_markup_stays_as_it_is() -> None:
    diagnosis = diagnose(["ValueError: cannot load [/opt/lib/x.so] [bold]%s[/bold]"], exit_code=1)
    assert "[/opt/lib/x.so] [bold]%s[/bold]" in diagnosis.headline
