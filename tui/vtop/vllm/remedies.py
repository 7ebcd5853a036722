"""What to change after a server died: advice computed from the numbers in its log and from its settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vtop.vllm.lifecycle import DeathContext, Remedy


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a cause may draw on beside its own message."""

    settings: Mapping[str, str]
    """Settings from the preset and from the log's own argument line."""
    context: DeathContext
    shards: tuple[int, int] | None = None
    """Weight shards loaded and in all, where the log shows the bar."""
    started: bool = False
    """The log says that start-up was complete before."""

    def number(self, name: str, default: float | None = None) -> float | None:
        """A setting as a number."""
        try:
            return float(self.settings[name])
        except (KeyError, ValueError):
            return default


Advice = Callable[[re.Match[str], Evidence], list[Remedy]]
Title = Callable[[re.Match[str], Evidence], str]


def fix(text: str, **overrides: object) -> Remedy:
    """A remedy with the overrides that apply it; `env__NAME` stands for `env.NAME`."""
    return Remedy(text, tuple((name.replace("__", "."), str(value)) for name, value in overrides.items()))


def say(*texts: str) -> Advice:
    """Advice in words only."""
    return lambda _match, _evidence: [Remedy(text) for text in texts]


def _integer(text: str) -> int:
    return int(text.replace(",", ""))


def _floor2(value: float) -> float:
    return math.floor(value * 100 + 1e-9) / 100


def memory_not_free(match: re.Match[str], evidence: Evidence) -> list[Remedy]:
    """The share of the GPU that is free, and who has the rest."""
    free, total = float(match[1]), float(match[2])
    remedies = []
    share = _floor2(free / total) if total else 0.0
    if share >= 0.05:
        remedies.append(
            fix(f"Ask for no more than is free: gpu_memory_utilization {share}", gpu_memory_utilization=share)
        )
    users = evidence.context.gpu_users
    remedies.append(
        Remedy(f"Free the GPU: {users}" if users else "End the other processes on this GPU (or start on another)")
    )
    return remedies


def _raise_utilization(evidence: Evidence) -> list[Remedy]:
    now = evidence.number("gpu_memory_utilization", 0.9) or 0.9
    wanted = min(0.95, _floor2(now + 0.05))
    if wanted <= now:
        return []
    return [
        fix(f"Give vLLM more of the GPU: gpu_memory_utilization {wanted} (now {now:g})", gpu_memory_utilization=wanted)
    ]


def no_kv_room(_match: re.Match[str], evidence: Evidence) -> list[Remedy]:
    """Ways to leave room for the KV cache beside the weights."""
    batch = evidence.number("max_num_batched_tokens")
    smaller = [fix(f"A smaller step needs less activation memory: max_num_batched_tokens {int(batch) // 2}",
                    max_num_batched_tokens=int(batch) // 2)] if batch and batch >= 1024 else []  # fmt: skip
    return [
        *_raise_utilization(evidence),
        *smaller,
        Remedy("The weights fill the GPU: take a quantized or smaller model, or spread it (tensor_parallel)"),
    ]


def kv_too_small(match: re.Match[str], evidence: Evidence) -> list[Remedy]:
    """The context that fits by vLLM's own estimate, never an invented one."""
    groups = match.groupdict()
    fits = groups.get("estimate") or groups.get("stored")
    remedies = []
    if fits:
        length = _integer(fits)
        remedies.append(fix(f"Shorten the context to what fits: max_model_len {length}", max_model_len=length))
    else:
        remedies.append(Remedy("Shorten the context (max_model_len); the log does not say to how much"))
    needed, available = groups.get("needed"), groups.get("available")
    auto = evidence.settings.get("kv_cache_dtype", "auto") == "auto"
    if needed and available and auto and float(needed) / 2 <= float(available):
        remedies.append(fix("Halve the KV cache's bytes: kv_cache_dtype fp8 (where the GPU can)", kv_cache_dtype="fp8"))
    return remedies + _raise_utilization(evidence)


def kv_title(match: re.Match[str], _evidence: Evidence) -> str:
    """Names the context that was wanted."""
    return f"KV cache too small for max_model_len {_integer(match['wanted'])}"


def too_long(match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """The model's own limit."""
    limits = [int(float(number)) for number in re.findall(r"=(\d+(?:\.\d+)?)", match[2])]
    remedies = []
    if limits:
        remedies.append(fix(f"Use the model's own limit: max_model_len {min(limits)}", max_model_len=min(limits)))
    remedies.append(
        fix("Or override it (beyond its training the model's answers may be nonsense): VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
             env__VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)
    )  # fmt: skip
    return remedies


def sampler_oom(match: re.Match[str], evidence: Evidence) -> list[Remedy]:
    """Fewer requests first: the KV budget is not what ran out."""
    fewer = max(1, int(match[1]) // 4)
    now = evidence.number("gpu_memory_utilization", 0.9) or 0.9
    less = _floor2(max(0.1, now - 0.05))
    return [
        fix(f"Fewer requests at a time: max_num_seqs {fewer} (the warm-up used {match[1]})", max_num_seqs=fewer),
        fix(f"Or leave more memory outside vLLM's share: gpu_memory_utilization {less}", gpu_memory_utilization=less),
    ]


def oom(_match: re.Match[str], evidence: Evidence) -> list[Remedy]:
    """By where it ran out: weights, or everything after."""
    now = evidence.number("gpu_memory_utilization", 0.9) or 0.9
    less = _floor2(max(0.1, now - 0.05))
    remedies = []
    if evidence.shards and evidence.shards[0] < evidence.shards[1]:
        remedies.append(
            Remedy("The weights do not fit: take a quantized or smaller model, or spread it (tensor_parallel)")
        )
    remedies.append(
        fix(f"Leave more memory outside vLLM's share: gpu_memory_utilization {less}", gpu_memory_utilization=less)
    )
    seqs = evidence.number("max_num_seqs")
    remedies.append(
        fix(f"Fewer requests at a time: max_num_seqs {int(seqs) // 2}", max_num_seqs=int(seqs) // 2)
        if seqs and seqs >= 2
        else Remedy("Fewer requests at a time (max_num_seqs), or smaller steps (max_num_batched_tokens)")
    )
    if evidence.context.gpu_users:
        remedies.append(Remedy(f"Free the GPU: {evidence.context.gpu_users}"))
    return remedies


def _port(match: re.Match[str], evidence: Evidence) -> str:
    return match.groupdict().get("port") or evidence.settings.get("port") or "8000"


def port_title(match: re.Match[str], evidence: Evidence) -> str:
    """Names the port."""
    return f"Port {_port(match, evidence)} is in use"


def port_remedies(match: re.Match[str], evidence: Evidence) -> list[Remedy]:
    """Another port, or who has this one."""
    owner = evidence.context.port_owner
    return [
        fix("Take a free port: port auto", port="auto"),
        Remedy(
            f"Or end what listens on port {_port(match, evidence)}: {owner or 'often what is left of the last run'}"
        ),
    ]


def heads(match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """The largest size that divides the heads."""
    heads, size = int(match[1]), int(match[2])
    best = max(divisor for divisor in range(1, max(1, min(heads, size)) + 1) if heads % divisor == 0)
    return [fix(f"Use a number of GPUs that divides {heads}: tensor_parallel {best}", tensor_parallel=best)]


def too_few_gpus(match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """The largest power of two that is there."""
    available = int(match[2])
    if available < 1:
        return [Remedy("No GPU is visible to the server: check CUDA_VISIBLE_DEVICES and the driver (`vtop doctor`)")]
    size = 2 ** int(math.log2(available))
    return [fix(f"Use the {available} GPUs there are: tensor_parallel {size}", tensor_parallel=size, gpus=size)]


def block_split(_match: re.Match[str], evidence: Evidence) -> list[Remedy]:
    """Half the split."""
    size = evidence.number("tensor_parallel")
    if size and size >= 2:
        half = int(size) // 2
        return [fix(f"Split the quantized blocks less: tensor_parallel {half}", tensor_parallel=half)]
    return [Remedy("Use a smaller tensor_parallel, or a checkpoint with smaller quantization blocks")]


def quantization_mismatch(match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """What the checkpoint says it is."""
    return [fix(f"Use what the checkpoint is: quantization {match[1]}", quantization=match[1])]


def unknown_quantization(match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """The version's own list."""
    return [
        Remedy(f"This version knows: {match[2]}" if match[2] else "See `vtop presets show` for what this version knows")
    ]


def old_gpu_quantization(match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """What older cards can run."""
    return [Remedy(f"This GPU (compute capability {int(match[3]) / 10:.1f}) needs another quantization: AWQ and GPTQ "
                   "run from 7.5, FP8 from 8.9")]  # fmt: skip


def half(_match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """float16 where bfloat16 is missing."""
    return [fix("Use 16-bit floats of the kind this GPU has: dtype half", dtype="half")]


def model_path(match: re.Match[str], _evidence: Evidence) -> str:
    """Names the path or repository."""
    name = next((group for group in match.groups() if group), "")
    if name.startswith(("/", "./", "../", "~")):
        return f"Model path not found: {name}"
    return f"Model not found: {name}" if name else "Model not found"


def batch_below_context(match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """Chunks, or a larger step."""
    need = int(match[2])
    return [
        fix("Let long prompts run in pieces: chunked_prefill on", chunked_prefill="true"),
        fix(f"Or let a step hold a whole context: max_num_batched_tokens {need}", max_num_batched_tokens=need),
    ]


def batch_below_seqs(match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """A larger step, or fewer requests."""
    tokens, seqs = int(match[1]), int(match[2])
    return [
        fix(f"Let a step hold a token of each request: max_num_batched_tokens {seqs}", max_num_batched_tokens=seqs),
        fix(f"Or allow fewer requests: max_num_seqs {tokens}", max_num_seqs=tokens),
    ]


def timeout_title(match: re.Match[str], _evidence: Evidence) -> str:
    """Names the limit."""
    return f"Engine ready timeout ({match[1]} s)" if match[1] else "Engine ready timeout"


def ready_timeout(match: re.Match[str], evidence: Evidence) -> list[Remedy]:
    """A limit by how far the weights had come, with half as much again."""
    waited = int(match[1]) if match[1] else 600
    needed = float(waited * 2)
    why = ""
    if evidence.shards and evidence.shards[0]:
        done, total = evidence.shards
        needed = max(needed, waited * total / done * 1.5)
        why = f" ({done} of {total} weight shards were loaded after {waited} s)"
    limit = math.ceil(needed / 100) * 100
    return [
        fix(f"Wait longer: VLLM_ENGINE_READY_TIMEOUT_S={limit}{why}", env__VLLM_ENGINE_READY_TIMEOUT_S=limit),
        Remedy(
            "The engine may still be loading and hold the GPU: stop what is left of this server before the next start"
        ),
    ]


def trust(_match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """Permission for code from the repository."""
    return [
        fix(
            "Run the model's own code, if you trust where it comes from: trust_remote_code true",
            trust_remote_code="true",
        )
    ]


def flags(match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """Which preset keys made the flags."""
    words = match[1]
    if "--speculative-model" in words or "--num-speculative-tokens" in words:
        return [
            Remedy("These flags ended with vLLM 0.9: write `speculative = { ... }` in the preset, vtop translates it")
        ]
    names = re.findall(r"--[\w.-]+", words)
    named = ", ".join(f"args.{name[2:]}" for name in names) or "the argument"
    return [Remedy(f"Remove or correct {named} in the preset; `vtop presets show NAME` prints the command line")]


def threads(_match: re.Match[str], evidence: Evidence) -> list[Remedy]:
    """A core for each rank."""
    size = int(evidence.number("tensor_parallel", 1) or 1)
    bind = "|".join(str(rank) for rank in range(size)) if size > 1 else "nobind"
    return [
        fix(f"Say which cores each rank uses: VLLM_CPU_OMP_THREADS_BIND={bind}", env__VLLM_CPU_OMP_THREADS_BIND=bind)
    ]


def illegal_title(_match: re.Match[str] | None, evidence: Evidence) -> str:
    """Says whether it served before."""
    when = "on a request, behind a healthy /health" if evidence.started else "while starting"
    return f"A worker died of an illegal CPU instruction (SIGILL) {when}"


def illegal(_match: re.Match[str] | None, evidence: Evidence) -> list[Remedy]:
    """What sets off SIGILL in each phase."""
    if evidence.started:
        return [
            Remedy("Start it again and send a first request of some 40 prompt tokens (vtop's own check does): on CPUs "
                   "with AMX a very short first prompt runs a kernel before the permission for AMX was asked"),
        ]  # fmt: skip
    return [
        Remedy("This build uses instructions that the CPU lacks: install a vLLM build for this CPU (AVX2 or AVX-512)")
    ]


def nccl(_match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """Ways around NCCL's failures."""
    return [
        Remedy("In a container: more shared memory (`--shm-size`, `--ipc=host`)"),
        fix("Do without peer-to-peer: NCCL_P2P_DISABLE=1", env__NCCL_P2P_DISABLE=1),
        fix("See why: NCCL_DEBUG=INFO", env__NCCL_DEBUG="INFO"),
    ]


def cuda_error(_match: re.Match[str], _evidence: Evidence) -> list[Remedy]:
    """How to find where a kernel failed."""
    return [
        fix("Find the place: CUDA_LAUNCH_BLOCKING=1", env__CUDA_LAUNCH_BLOCKING=1),
        Remedy("If it repeats: another attention backend, enforce_eager, or a look at the card (`dmesg`, Xid)"),
    ]


def killed_title(match: re.Match[str], _evidence: Evidence) -> str:
    """Who ended the engine, by its exit code."""
    return f"The engine was {exit_words(int(match[1] or match[2]))}"


def worker_died_title(match: re.Match[str], _evidence: Evidence) -> str:
    """Names the worker and its exit code."""
    return f"Worker {match[1]} died" + (f" ({exit_words(int(match[2]))})" if match[2] else "")


DEATH_REMEDY = (
    "Nothing in the log says why: look for the kernel's OOM killer (`dmesg`), a container memory limit, "
    "or somebody who ended the process; then start it again"
)

_SIGNALS: Mapping[int, str] = {
    1: "SIGHUP, its terminal went away",
    2: "SIGINT, somebody pressed Ctrl-C",
    4: "SIGILL, an instruction that this CPU does not have",
    6: "SIGABRT, a library gave up",
    7: "SIGBUS, often /dev/shm is too small",
    8: "SIGFPE, a wrong calculation in native code",
    9: "SIGKILL: the kernel's out-of-memory killer, a container's memory limit, or somebody's kill -9",
    11: "SIGSEGV, a crash in native code",
    15: "SIGTERM, somebody asked it to stop",
}


def signal_of(code: int | None) -> int | None:
    """The signal behind an exit code: -9 as subprocess says it, 137 as a shell says it."""
    if code is None:
        return None
    if code < 0:
        return -code
    return code - 128 if code - 128 in _SIGNALS else None


def exit_words(code: int) -> str:
    """An exit code in words.

    Args:
        code: as `subprocess` gives it (negative: a signal) or as a shell does (128 + signal).
    """
    if signal := signal_of(code):
        return f"ended by {_SIGNALS.get(signal, f'signal {signal}')}"
    meaning = {
        0: ", which vLLM gives even when its engine crashed",
        1: "",
        2: ", wrong usage",
        127: ", command not found",
    }
    return f"exit code {code}{meaning.get(code, '')}"
