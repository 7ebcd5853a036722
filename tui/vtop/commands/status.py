"""`vtop status`: servers, GPUs and metrics once, over a window."""

from __future__ import annotations

import argparse

from vtop import units
from vtop.commands.console import say, say_json, table, visible
from vtop.commands.session import options_from, with_service
from vtop.secrets import without_user
from vtop.servers.status import ServerStatus
from vtop.service import VtopService
from vtop.telemetry.snapshot import GpuReading, ServerView, Snapshot
from vtop.telemetry.to_json import snapshot_to_json
from vtop.vllm.reading import EngineReading, Latency

DEFAULT_WINDOW_S = 2.0
"""Long enough for a rate, short enough for a prompt."""


def _latency(latency: Latency | None) -> str:
    return units.DASH if latency is None else units.duration(latency.mean_s)


def _server_rows(view: ServerView) -> list[tuple[str, ...]]:
    """One row a model: figures of two models are never one figure."""
    status = view.status
    state = status.state.value.upper() + (" SIMULATED" if status.simulated else "")
    if not view.engines:
        return [(status.name, state, status.model or units.DASH, without_user(status.url), *[units.DASH] * 6)]
    return [(status.name, state, *_engine_cells(engine, status)) for engine in view.engines]


def _engine_cells(engine: EngineReading, status: ServerStatus) -> tuple[str, ...]:
    model = engine.model_name or status.model or units.DASH
    return (
        # Another server's own figures must not pass for vLLM's.
        model if engine.server_kind == "vllm" else f"{model} ({engine.server_kind})",
        without_user(status.url),
        units.count(engine.running),
        units.count(engine.waiting),
        units.percent(engine.kv_usage),
        units.rate(engine.generation_tokens_per_s, "tok/s"),
        _latency(engine.ttft),
        _latency(engine.tpot),
    )


def _gpu_row(gpu: GpuReading) -> tuple[str, ...]:
    bandwidth = gpu.bandwidth
    dram = units.DASH
    if bandwidth is not None:
        label = "mem busy (time)" if bandwidth.source == "busy" else bandwidth.source
        amount = units.bytes_per_s(bandwidth.bytes_per_s) if bandwidth.bytes_per_s is not None else ""
        dram = " ".join(part for part in (units.percent_of_100(bandwidth.percent), amount, label) if part)
    return (
        str(gpu.index),
        gpu.name
        + (f" in {gpu.host}" if gpu.host else "")
        + (" LOST" if gpu.lost else "")
        + (" SIMULATED" if gpu.simulated else ""),
        dram,
        units.percent_of_100(gpu.gpu_util_percent),
        f"{units.gib(gpu.memory_used_bytes)} / {units.gib(gpu.memory_total_bytes)}",
        units.watts(gpu.power_w),
        units.DASH if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C",
    )


_SERVER_HEADING = ("SERVER", "STATE", "MODEL", "URL", "RUN", "WAIT", "KV", "OUTPUT", "TTFT", "TPOT")
_GPU_HEADING = ("GPU", "NAME", "DRAM", "UTIL", "MEMORY", "POWER", "TEMP")


def describe(snapshot: Snapshot) -> str:
    """The snapshot as text for a terminal or a screen reader."""
    lines = [
        f"{snapshot.host.hostname} · window {snapshot.window_s:g} s" + (" · SIMULATED" if snapshot.simulated else "")
    ]
    if snapshot.servers:
        rows = [row for view in snapshot.servers for row in _server_rows(view)]
        lines.append(table(rows, _SERVER_HEADING, right=(4, 5, 6, 7, 8, 9)))
    else:
        lines.append("no servers; `vtop presets` lists what can be started")
    for view in snapshot.servers:
        remarks = [view.status.message, "" if view.scrape.state == "ok" else view.scrape.message]
        if view.status.diagnosis is not None:
            remarks.insert(0, view.status.diagnosis.headline)
            remarks += [f"Try: {remedy.text}" for remedy in view.status.diagnosis.remedies[:1]]
        if view.verdict is not None and view.scrape.state == "ok":
            remarks += [view.verdict.headline, view.verdict.suggestion]
        lines += [f"  {view.status.name}: {visible(text)}" for text in remarks if text]
    if snapshot.gpus:
        lines.append(table([_gpu_row(gpu) for gpu in snapshot.gpus], _GPU_HEADING))
        for gpu in snapshot.gpus:
            if gpu.lost:
                lines.append(f"  GPU {gpu.index} is lost: {gpu.missing.get('lost', 'it does not answer')}")
    if snapshot.gpu_status.message:
        lines.append(f"GPU: {snapshot.gpu_status.message}")
    return "\n".join(lines)


def run_status(arguments: argparse.Namespace) -> int:
    """Measures over the window and prints once."""
    window_s = getattr(arguments, "window", None) or DEFAULT_WINDOW_S

    async def use(service: VtopService) -> int:
        await service.supervisor.settle()
        snapshot = await service.hub.once(window_s)
        if arguments.json:
            say_json(snapshot_to_json(snapshot))
        else:
            say(describe(snapshot))
            for measurement in service.measurements.running():
                say(measurement.words())
            for left in await service.remains():
                say(f"left over: {left.text}. {left.remedy}")
        return 0

    return with_service(options_from(arguments, window_s=window_s), use)
