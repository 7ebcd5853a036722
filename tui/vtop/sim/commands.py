"""A preset as simulated processes: what the supervisor starts instead of vLLM with `--sim`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vtop.errors import VtopError
from vtop.presets import Preset, ServerSpec
from vtop.sim.gpu import simulated_uuid
from vtop.sim.machine import StartFailure, default_limits, find_machine_card, resolve_setup
from vtop.sim.options import FAULTS, Options, parse_for_start
from vtop.vllm.launch import LaunchCommand

VERSION = "0.33.0 simulated"
STARTUP_S = 3.0
READY_TIMEOUT_S = 60.0

_KNOWN_ARGS = {
    "max-model-len", "gpu-memory-utilization", "kv-cache-memory-bytes", "max-num-seqs", "max-num-batched-tokens",
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enforce-eager", "quantization",
    "kv-cache-dtype", "seed",
    "startup-s", "speed",
}  # fmt: skip
"""Flags of `[server.args]` that the simulation understands; the last two are its own."""


def sim_commands(
    preset: Preset,
    *,
    gpu: str,
    port: int,
    name: str,
    free_port: Callable[[], int],
    speed: float = 1.0,
    fault: str | None = None,
    startup_s: float = STARTUP_S,
) -> tuple[LaunchCommand, ...]:
    """The processes of a preset, simulated.

    Args:
        preset: what to run.
        gpu: the card to simulate.
        port: where clients connect.
        name: the server's name, for messages.
        free_port: finds a free port for each further process of a P/D pair.
        speed: runs time faster (tests).
        fault: how to misbehave; see `FAULTS`.
        startup_s: how long the simulated start takes.

    Raises:
        VtopError: the card or the model is unknown to the simulation, or the fault is.
    """
    if fault and fault not in FAULTS:
        raise VtopError(f"no such fault: {fault}", "Known: " + ", ".join(FAULTS))
    spec = preset.server
    if spec.replicas > 1:
        raise VtopError("the simulation has no replicas behind a router", "Leave replicas out: --set replicas=1")
    card = find_machine_card(gpu)
    _check_model(spec, gpu)
    base = [sys.executable, "-m", "vtop.sim", *_server_arguments(spec, gpu, startup_s, speed)]
    if spec.disaggregated is None:
        indices = _indices(0, _gpu_count(spec))
        argv = [*base, *_place(spec, port, indices), *_fault(fault)]
        return (_command(spec, card.memory_bytes, argv, port, indices),)
    return _pair(spec, card.memory_bytes, base, port, free_port, fault)


def _check_model(spec: ServerSpec, gpu: str) -> None:
    try:
        resolve_setup(Options(model=spec.model, gpu=gpu))
    except StartFailure as error:
        if error.kind != "OSError":
            return  # vLLM would fail in the same way, and the simulated server says it in its log
        raise VtopError(
            f"the simulation does not know the shape of {spec.model}",
            "Use a model of vtop's table (`vtop fit` lists them) or a folder that holds its config.json.",
        ) from error


def _server_arguments(spec: ServerSpec, gpu: str, startup_s: float, speed: float) -> list[str]:
    values: dict[str, Any] = {
        "model": spec.model,
        "served-model-name": spec.served_name,
        "gpu": gpu,
        "max-model-len": spec.max_model_len,
        "gpu-memory-utilization": spec.gpu_memory_utilization,
        "kv-cache-memory-bytes": spec.kv_cache_memory_bytes,
        "max-num-seqs": spec.max_num_seqs,
        "max-num-batched-tokens": spec.max_num_batched_tokens,
        "tensor-parallel-size": spec.tensor_parallel,
        "pipeline-parallel-size": spec.pipeline_parallel,
        "data-parallel-size": spec.data_parallel,
        "quantization": spec.quantization,
        "kv-cache-dtype": spec.kv_cache_dtype,
        "enforce-eager": spec.enforce_eager,
        "enable-prefix-caching": spec.prefix_caching,
        "enable-chunked-prefill": spec.chunked_prefill,
        "speculative-config": _speculative(spec),
        "enable-mfu-metrics": spec.mfu_metrics or None,
        "shutdown-timeout": spec.shutdown_timeout_s,
        "startup-s": startup_s,
        "speed": speed if speed != 1.0 else None,
    }
    values |= {key: value for key, value in _own_flags(spec).items() if key in _KNOWN_ARGS}
    arguments: list[str] = []
    for key, value in values.items():
        if value is True:
            arguments.append(f"--{key}")
        elif value is False and key.startswith("enable-"):
            arguments.append(f"--no-{key}")
        elif value is not None and value is not False:  # a 0 is a value
            arguments += [f"--{key}", str(value)]
    return arguments


def _own_flags(spec: ServerSpec) -> dict[str, Any]:
    """`[server.args]`, where dashes and underscores are the same."""
    return {key.replace("_", "-"): value for key, value in spec.args.items()}


def _speculative(spec: ServerSpec) -> str | None:
    plan = spec.speculative
    if plan is None:
        return None
    table = {
        "method": plan.method,
        "num_speculative_tokens": plan.num_tokens,
        "model": plan.model,
        "prompt_lookup_max": plan.prompt_lookup_max,
        "prompt_lookup_min": plan.prompt_lookup_min,
    }
    return json.dumps({key: value for key, value in table.items() if value is not None})


def _gpu_count(spec: ServerSpec) -> int:
    return (spec.tensor_parallel or 1) * (spec.pipeline_parallel or 1) * (spec.data_parallel or 1)


def _indices(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def _place(spec: ServerSpec, port: int, indices: tuple[int, ...]) -> list[str]:
    return ["--host", spec.host, "--port", str(port), "--gpu-index", *map(str, indices)]


def _fault(fault: str | None) -> list[str]:
    return ["--fault", fault] if fault else []


def _command(
    spec: ServerSpec, memory_bytes: int, argv: list[str], port: int, indices: tuple[int, ...], role: str = ""
) -> LaunchCommand:
    batched, seqs = default_limits(memory_bytes)
    # `[server.args]` may set what the spec's own fields leave open, so the finished command line decides.
    options = parse_for_start(argv[3:])
    ignored = sorted(set(_own_flags(spec)) - _KNOWN_ARGS)
    notes = [f"simulated: --{key} has no effect" for key in ignored]
    if spec.disaggregated is not None and (spec.disaggregated.prefill_args or spec.disaggregated.decode_args):
        notes.append("simulated: prefill_args and decode_args have no effect")
    if options.speed != 1.0:
        notes.append(f"simulated: time runs {options.speed:g} times as fast, so rates and latencies are not the card's")
    if spec.speculative is not None and spec.speculative.method not in {"ngram", "suffix"}:
        notes.append("simulated: the acceptance of a draft model is an assumption, not a measurement")
    return LaunchCommand(
        argv=tuple(argv),
        served_name=spec.served_name or spec.model,
        host=spec.host,
        port=port,
        unset_env=("VLLM_API_KEY",) if spec.api_key is None else (),
        api_key=spec.api_key,
        role=role,
        version=VERSION,
        simulated=True,
        shutdown_timeout_s=spec.shutdown_timeout_s or 0.0,
        ready_timeout_s=READY_TIMEOUT_S,
        max_num_seqs=options.max_num_seqs or seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or batched,
        max_model_len=options.max_model_len,
        gpus=tuple(map(simulated_uuid, indices)),
        notes=tuple(notes),
    )


def _pair(
    spec: ServerSpec,
    memory_bytes: int,
    base: list[str],
    port: int,
    free_port: Callable[[], int],
    fault: str | None,
) -> tuple[LaunchCommand, ...]:
    """Prefill servers, decode servers, and the router in front; each server has its own cards."""
    pair = spec.disaggregated
    assert pair is not None
    each = _gpu_count(spec)
    first = 0
    commands = []
    urls: dict[str, list[str]] = {"prefill": [], "decode": []}
    for role, count in (("prefill", pair.prefill), ("decode", pair.decode)):
        for _ in range(count):
            own_port = free_port()
            indices = _indices(first, each)
            first += each
            argv = [*base, *_place(spec, own_port, indices), "--kv-role", role]
            if role == "decode":
                argv += _fault(fault)
            commands.append(_command(spec, memory_bytes, argv, own_port, indices, role))
            urls[role].append(f"http://{_address(spec.host)}:{own_port}")
    argv = [sys.executable, "-m", "vtop.sim", "--role", "router", "--host", spec.host, "--port", str(port)]
    argv += ["--served-model-name", spec.served_name or spec.model]
    for role, found in urls.items():
        for url in found:
            argv += [f"--{role}", url]
    router = _command(spec, memory_bytes, argv, port, (), "router")
    return (*commands, replace(router, gpus=(), max_num_seqs=None, max_num_batched_tokens=None, notes=()))


def _address(host: str) -> str:
    if host in {"0.0.0.0", "::"}:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
