"""The command line of the simulated server: vLLM's own flag names wherever vLLM has them."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from vtop.errors import UsageError

FAULTS: dict[str, str] = {
    "die-loading": "dies while loading weights (a damaged file)",
    "oom": "runs out of GPU memory while loading",
    "gpu-busy": "another process holds the GPU's memory",
    "hang": "stops making progress while loading, for ever",
    "slow-health": "/health answers after five seconds",
    "first-request": "dies on the first request behind a healthy /health",
    "hang-serving": "accepts requests and never answers them",
    "cut-streams": "ends every fourth stream after five tokens, without an end",
    "reset-streams": "resets the connection of every fourth stream after five tokens",
    "stream-errors": "ends every fourth stream with an error event",
    "refuse": "answers every fourth request with 503",
    "restart": "restarts inside: streams end, counters begin again at 0",
    "exit-zero": "the engine dies, /health says 503, then the process exits with code 0",
    "crash": "dies at once with code 1, as after an out-of-memory kill",
    "ignore-term": "ignores SIGTERM while a request runs, as vLLM does with a client that streams",
}
"""Ways to misbehave, with what they do."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a simulated process was told to be."""

    role: str = "server"
    """`server` (with `kv_role`) or `router`."""
    model: str = "Qwen/Qwen2.5-7B-Instruct"
    served_model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    gpu: str = "RTX 4090"
    gpu_index: tuple[int, ...] = (0,)
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    enforce_eager: bool = False
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    speculative_config: dict[str, Any] | None = None
    enable_mfu_metrics: bool = False
    kv_role: str = ""
    """`prefill`, `decode` or "" for both in one."""
    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    startup_s: float = 3.0
    speed: float = 1.0
    seed: int = 0
    shutdown_timeout: float = 0.0
    fault: str = ""
    fault_after_s: float = 5.0

    @property
    def served_name(self) -> str:
        """The name that /v1/models lists."""
        return self.served_model_name or self.model


class _Telling(argparse.ArgumentParser):
    """Raises what is wrong instead of ending the process, which is vtop's own while it works a start out."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"no simulated server starts so: {message}", "Correct that key of the preset, or leave it out."
        )


def build_parser(kind: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser; every option has the default of `Options`."""
    default = Options()
    parser = kind(
        prog="python -m vtop.sim",
        description="A simulated vLLM server: real sockets and scheduling, step times from the roofline of a GPU.",
    )
    add = parser.add_argument
    flag = argparse.BooleanOptionalAction
    add("--role", choices=("server", "router"), default=default.role)
    add("--model", default=default.model, help="a known model or a folder with config.json")
    add("--served-model-name", default="")
    add("--host", default=default.host)
    add("--port", type=int, default=default.port)
    add("--gpu", default=default.gpu, help="the card to simulate")
    add("--gpu-index", type=int, nargs="+", default=[0], help="which of the simulated cards it uses")
    add("--max-model-len", type=int)
    add("--gpu-memory-utilization", type=float, default=default.gpu_memory_utilization)
    add("--kv-cache-memory-bytes", type=int)
    add("--max-num-seqs", type=int)
    add("--max-num-batched-tokens", type=int)
    add("--tensor-parallel-size", type=int, default=1)
    add("--pipeline-parallel-size", type=int, default=1)
    add("--data-parallel-size", type=int, default=1)
    add("--enable-prefix-caching", action=flag, default=True)
    add("--enable-chunked-prefill", action=flag, default=True)
    add("--enforce-eager", action="store_true")
    add("--quantization")
    add("--kv-cache-dtype", default=default.kv_cache_dtype)
    add("--speculative-config", type=_table, help="JSON, as vLLM takes it")
    add("--enable-mfu-metrics", action="store_true")
    add("--kv-role", choices=("", "prefill", "decode"), default="")
    add("--prefill", action="append", default=[], help="router: URL of a prefill server")
    add("--decode", action="append", default=[], help="router: URL of a decode server")
    add("--startup-s", type=_not_negative, default=default.startup_s, help="how long the simulated start takes")
    add("--speed", type=_positive, default=default.speed, help="runs time this much faster (tests)")
    add("--seed", type=int, default=default.seed)
    add("--shutdown-timeout", type=float, default=0.0)
    add("--fault", choices=("", *FAULTS), default="", help="how to misbehave")
    add("--fault-after-s", type=float, default=default.fault_after_s, help="for faults that come later")
    return parser


def _not_negative(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"must be a number of 0 or more, not {text}")
    return value


def _positive(text: str) -> float:
    if (value := _not_negative(text)) == 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def _table(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON table is needed")
    return value


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Reads the command line; exits with code 2 on a wrong one, as vLLM does."""
    return _options(build_parser().parse_args(arguments))


def parse_for_start(arguments: Sequence[str]) -> Options:
    """Reads a command line that is to be started.

    Raises:
        UsageError: it is wrong.
    """
    return _options(build_parser(_Telling).parse_args(arguments))


def _options(parsed: argparse.Namespace) -> Options:
    values = vars(parsed)
    for key in ("gpu_index", "prefill", "decode"):
        values[key] = tuple(values[key])
    return Options(**values)
