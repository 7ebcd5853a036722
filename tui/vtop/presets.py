"""A preset: what to run, in vtop's neutral words, whatever the vLLM version calls it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Optimization = Literal[
    "continuous-batching",
    "prefix-caching",
    "speculative-decoding",
    "quantization",
    "pd-disaggregation",
    "tensor-parallel",
    "none",
]

Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Gpus = Annotated[list[int | str], msgspec.Meta(min_length=1)]
Command = Annotated[list[str], msgspec.Meta(min_length=1)]
ArgValue = str | int | float | bool
"""A value of a vLLM flag."""


class Speculative(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the next tokens are guessed."""

    method: Literal["ngram", "draft_model", "eagle", "eagle3", "mtp", "medusa", "suffix", "mlp_speculator"]
    num_tokens: Count
    """Tokens guessed per step."""
    model: str | None = None
    """The draft model or head; not for `ngram`."""
    prompt_lookup_max: Count | None = None
    prompt_lookup_min: Count | None = None
    draft_tensor_parallel_size: Count | None = None


class Disaggregated(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prefill and decode in separate servers behind one router."""

    connector: Literal["nixl", "shared-folder"] = "nixl"
    prefill: Count = 1
    """Prefill servers."""
    decode: Count = 1
    """Decode servers."""
    router_python: str | None = None
    """Interpreter (or `vllm-router` command) of the environment that holds the router; None: look for it."""
    prefill_args: dict[str, ArgValue] = {}
    decode_args: dict[str, ArgValue] = {}


class ServerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[server]` table. None means: leave it to vLLM."""

    model: str
    served_name: str | None = None
    host: str = "127.0.0.1"
    port: Port | Literal["auto"] = 8000
    max_model_len: Count | None = None
    gpu_memory_utilization: Share | None = None
    kv_cache_memory_bytes: Count | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    gpus: Count | Gpus | None = None
    """How many GPUs (vtop takes the first free ones), or which (indices or UUIDs)."""
    tensor_parallel: Count | None = None
    pipeline_parallel: Count | None = None
    data_parallel: Count | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    enforce_eager: bool | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    load_format: str | None = None
    trust_remote_code: bool | None = None
    replicas: Count = 1
    """Whole servers behind one router, each with GPUs of its own (`data_parallel` is vLLM's way, in one server)."""
    speculative: Speculative | None = None
    disaggregated: Disaggregated | None = None
    mfu_metrics: bool = True
    """Ask for vLLM's own byte and FLOP counters where the version has them."""
    shutdown_timeout_s: Seconds | None = None
    python: str | None = None
    """Interpreter of the environment that holds vLLM; None: look for it."""
    command: Command | None = None
    """A command of one's own (a container, say); `{args}`, `{port}`, `{gpus}`, `{name}`, `{model}` are filled in."""
    vllm_version: str | None = None
    """The vLLM inside `command`, which cannot be read from outside; None: write for the newest that vtop knows."""
    stop_command: Command | None = None
    """How such a command is stopped (`docker stop NAME`); None: SIGTERM like any other."""
    api_key: str | None = None
    """A reference, `env:NAME` or `file:PATH`; never the key itself."""
    args: dict[str, ArgValue | list[str | int | float] | dict[str, object]] = {}
    """Any other vLLM flag, without the dashes, passed as it is."""
    env: dict[str, str] = {}


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One preset file."""

    title: str
    server: ServerSpec
    optimization: Optimization = "none"
    summary: str = ""
    compare_with: str | None = None
    """The preset to compare with, by name."""
    shows_off: str | None = None
    """The workload in which it helps."""
    and_does_not_help: str | None = None
    """The workload in which it does not."""
    name: str = ""
    """The file's name without `.toml`; set by the loader."""
    source: str = ""
    """The file it came from; set by the loader."""
