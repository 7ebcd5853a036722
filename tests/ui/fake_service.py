"""A service without anything below it: snapshots by hand, calls recorded, time that moves only when told to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vtop.clock import FakeClock
from vtop.contract import ChatEvent, LaunchPlan, LoadShapeInfo, PresetProblem, RunSummary, WorkloadInfo
from vtop.errors import VtopError
from vtop.load.progress import LoadProgress, LoadRequest, LoadResult
from vtop.presets import Preset, ServerSpec, Speculative
from vtop.results.comparison import CompareProgress, CompareRequest
from vtop.servers.status import (
    Diagnosis,
    Remedy,
    ServerState,
    ServerStatus,
    StartProgress,
    StopReport,
)
from vtop.telemetry.snapshot import (
    Bandwidth,
    Event,
    GpuReading,
    GpuStatus,
    HostReading,
    ServerView,
    Snapshot,
    Verdict,
)
from vtop.vllm.reading import EngineReading, Latency, Quantile, ScrapeStatus, SpeculationReading

NOW = 100_000.0
"""The fake clock's monotonic seconds."""

WALL = 1_800_000_000.0

GIB = 2**30


class FakeHistory:
    """Series by key."""

    def __init__(self, series: Mapping[str, tuple[Sequence[float], Sequence[float | None]]]) -> None:
        self._series = series

    def series(self, key: str, seconds: float | None = None) -> tuple[Sequence[float], Sequence[float | None]]:
        return self._series.get(key, ((), ()))


def wave(
    base: float, swing: float, *, seconds: int = 120, gap: tuple[int, int] | None = None, end: float = NOW
) -> tuple[list[float], list[float | None]]:
    """One value a second with a slow wave, ending at `end`; None between the two moments of `gap`."""
    times = [end - seconds + 1 + index for index in range(seconds)]
    values: list[float | None] = [base + swing * math.sin(at / 9.0) + 0.3 * swing * math.sin(at / 2.3) for at in times]
    if gap is not None:
        for index in range(*gap):
            values[index] = None
    return times, values


def gpu(index: int = 0, **changes: Any) -> GpuReading:
    """An H100 that decodes."""
    reading = GpuReading(
        uuid=f"GPU-{index:08d}",
        index=index,
        name="NVIDIA H100 80GB HBM3",
        bandwidth=Bandwidth("gpm", 62.0, 2.08e12, 3.35e12, "nvml"),
        gpu_util_percent=98.0,
        mem_busy_percent=71.0,
        sm_percent=41.0,
        tensor_percent=12.0,
        memory_used_bytes=int(61.2 * GIB),
        memory_total_bytes=int(79.6 * GIB),
        power_w=512.0,
        power_limit_w=700.0,
        temperature_c=54.0,
        sm_clock_mhz=1980.0,
        memory_clock_mhz=2619.0,
        memory_clock_max_mhz=2619.0,
    )
    return replace(reading, **changes)


def engine(**changes: Any) -> EngineReading:
    """A vLLM that serves sixteen requests."""
    reading = EngineReading(
        model_name="qwen2.5-7b",
        window_s=10.0,
        running=16.0,
        waiting=3.0,
        kv_usage=0.42,
        kv_capacity_tokens=432_000.0,
        prompt_tokens_per_s=310.0,
        generation_tokens_per_s=892.0,
        requests_per_s=3.5,
        preemptions=0.0,
        prompt_computed_share=0.2,
        prompt_cached_share=0.8,
        prompt_transferred_share=0.0,
        prefix_hit_rate=0.8,
        ttft=Latency(0.084, 35, p95=Quantile(0.15, 0.1, 0.25)),
        tpot=Latency(0.0179, 35, p95=Quantile(0.02, 0.01, 0.025)),
        e2e=Latency(2.7, 35, p95=Quantile(4.0, 2.5, 5.0)),
        queue=Latency(0.011, 35),
        speculation=SpeculationReading(0.75, 3.25, (0.92, 0.78, 0.55), 90.0, 22.0),
    )
    return replace(reading, **changes)


VERDICT = Verdict(
    "bandwidth",
    "Bandwidth-bound: decoding reads 15.4 GB a step and moves 2.1 TB/s, 62 % of peak; TPOT is 1.18x its floor.",
    "Try: FP8 weights (floor 15.2 → 8.1 ms), or speculation for repetitive text.",
    0.0152,
    (
        ("weights read a step", "15.2 GB (7.6e9 parameters x 2 bytes)"),
        ("KV read a step", "0.2 GB (16 sequences x 230 tokens x 57,344 bytes)"),
        ("peak bandwidth", "3.35 TB/s (nvml)"),
        ("TPOT floor", "15.4 GB / 3.35 TB/s / 0.30 efficiency = 15.2 ms"),
    ),
)


def status(name: str = "baseline", **changes: Any) -> ServerStatus:
    """A server of ours that is ready."""
    known = ServerStatus(
        name=name,
        url="http://127.0.0.1:8000",
        state=ServerState.READY,
        preset=name,
        model="qwen2.5-7b",
        port=8000,
        version="0.33.0",
        owned=True,
        pid=4242,
        pids=(4242, 4250),
        started_wall_s=WALL - 8_040,
        log_path=f"/state/servers/{name}/log",
        gpu_uuids=("GPU-00000000",),
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=8192,
    )
    return replace(known, **changes)


def ready(name: str = "baseline", **changes: Any) -> ServerView:
    """A ready server with its readings."""
    view = ServerView(status(name), ScrapeStatus("ok", last_ok_age_s=0.4), (engine(),), verdict=VERDICT)
    return replace(view, **changes)


def starting(name: str = "spec-ngram", **changes: Any) -> ServerView:
    """A server that loads its weights."""
    progress = StartProgress(
        "weights",
        "loading weights 43 %",
        share=0.43,
        phase_elapsed_s=14.0,
        elapsed_s=31.0,
        expected_s=70.0,
        done=(("launch", 3.0), ("config", 6.0), ("engine", 8.0)),
    )
    shown = status(name, state=ServerState.STARTING, progress=progress, port=8001, url="http://127.0.0.1:8001")
    return replace(ServerView(shown, ScrapeStatus("pending", "not up yet")), **changes)


def failed(name: str = "awq", **changes: Any) -> ServerView:
    """A server that died for want of memory."""
    diagnosis = Diagnosis(
        "kv-cache-too-small",
        "The KV cache for 32,768 tokens needs 1.75 GiB and only 1.12 GiB are left.",
        remedies=(Remedy("Lower max_model_len to 20,960.", (("max_model_len", "20960"),)),),
        line_number=3,
    )
    shown = status(name, state=ServerState.FAILED, diagnosis=diagnosis, pids=(), port=8002, url="http://127.0.0.1:8002")
    return replace(ServerView(shown, ScrapeStatus("unreachable", "nothing listens on port 8002")), **changes)


def foreign(name: str = "host:8000", **changes: Any) -> ServerView:
    """Somebody else's server."""
    shown = status(
        name, state=ServerState.FOREIGN, preset=None, owned=False, pid=None, pids=(), log_path=None,
        started_wall_s=None, url="http://gpu-7:8000", host="gpu-7", gpu_uuids=None, gpu_reason="not on this machine",
    )  # fmt: skip
    return replace(ServerView(shown, ScrapeStatus("ok", last_ok_age_s=0.3), (engine(speculation=None),)), **changes)


def history(names: Sequence[str] = ("baseline",), gpus: int = 1) -> FakeHistory:
    """Two minutes of everything."""
    series: dict[str, tuple[Sequence[float], Sequence[float | None]]] = {}
    for name in names:
        series[f"server/{name}/ttft_mean_s"] = wave(0.084, 0.02, gap=(40, 52))
        series[f"server/{name}/tpot_mean_s"] = wave(0.0179, 0.0008)
        series[f"server/{name}/generation_tokens_per_s"] = wave(892.0, 60.0)
    for index in range(gpus):
        series[f"gpu/GPU-{index:08d}/bandwidth_percent"] = wave(62.0, 14.0)
    return FakeHistory(series)


def snapshot(
    *servers: ServerView, gpus: Sequence[GpuReading] | None = None, sequence: int = 1, **changes: Any
) -> Snapshot:
    """Everything at one moment; one ready server and one H100 where nothing else is asked for."""
    cards = tuple(gpus) if gpus is not None else (gpu(),)
    made = Snapshot(
        sequence=sequence,
        at_s=NOW,
        at_wall_s=WALL,
        window_s=10.0,
        host=HostReading("gpu-host", 12.0, 64, 80 * GIB, 512 * GIB, 4.2),
        gpu_status=GpuStatus(bool(cards), "" if cards else "no NVIDIA driver here: GPU panel off", "580.95"),
        gpus=cards,
        servers=servers,
        history=history([view.status.name for view in servers], len(cards)),
        events=(Event(NOW - 70, "load-start", "baseline", "load test started"),),
    )
    return replace(made, **changes)


PRESETS = (
    Preset(name="sequential", title="One request at a time", optimization="none", source="presets/sequential.toml",
           summary="What a plain generate loop does: no batching.",
           server=ServerSpec(model="Qwen/Qwen2.5-7B-Instruct")),
    Preset(name="baseline", title="vLLM as it comes", optimization="continuous-batching",
           source="presets/baseline.toml", summary="Continuous batching, nothing else.", compare_with="sequential",
           server=ServerSpec(model="Qwen/Qwen2.5-7B-Instruct")),
    Preset(name="prefix-caching", title="Prefix caching", optimization="prefix-caching",
           source="presets/prefix-caching.toml", summary="Keeps the KV of prompts that begin alike.",
           shows_off="shared-prefix", and_does_not_help="random", compare_with="baseline",
           server=ServerSpec(model="Qwen/Qwen2.5-7B-Instruct", prefix_caching=True)),
    Preset(name="spec-ngram", title="Speculative decoding, n-gram", optimization="speculative-decoding",
           source="presets/spec-ngram.toml", shows_off="repeat", and_does_not_help="random", compare_with="baseline",
           summary="Guesses the next tokens from the prompt itself; no draft model needed.",
           server=ServerSpec(model="Qwen/Qwen2.5-7B-Instruct", speculative=Speculative(method="ngram", num_tokens=5))),
    Preset(name="fp8", title="FP8 weights", optimization="quantization", source="presets/fp8.toml",
           summary="Half the bytes of every weight, half the reading.", compare_with="baseline",
           server=ServerSpec(model="Qwen/Qwen2.5-7B-Instruct", quantization="fp8")),
)  # fmt: skip


def launch_plan(preset: str = "spec-ngram", **changes: Any) -> LaunchPlan:
    """A plan that can start."""
    plan = LaunchPlan(
        preset=preset,
        name=preset,
        commands=(
            (
                "/opt/vllm/bin/vllm", "serve", "Qwen/Qwen2.5-7B-Instruct", "--port", "8000", "--served-model-name",
                "qwen2.5-7b", "--speculative-config",
                '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}',
            ),
        ),
        env={"VLLM_API_KEY": "***"},
        version="0.33.0",
        installation="/opt/vllm",
        fit=(("weights", "14.2 GiB"), ("KV capacity", "432k tokens, 52 requests of 8,192"),
             ("GPU free", "78.9 of 79.6 GiB")),
        expected_s=70.0,
    )  # fmt: skip
    return replace(plan, **changes)


class FakeService:
    """Answers the facade's protocol from what the test put into it, and records what was asked."""

    def __init__(self, first: Snapshot | None = None, *, readonly: bool = False, simulated: bool = False) -> None:
        self.clock = FakeClock(NOW, WALL)
        self.calls: list[tuple[str, Any]] = []
        self.readonly = readonly
        self.simulated = simulated
        self.current = first or snapshot(ready())
        self.callbacks: list[Callable[[Snapshot], None]] = []
        self.problems: tuple[PresetProblem, ...] = ()
        self.preset_list: tuple[Preset, ...] = PRESETS
        self.plans: dict[str, LaunchPlan | VtopError] = {}
        self.logs: dict[str, list[str]] = {}
        self.load: LoadProgress | None = None
        self.result: LoadResult | None = None
        self.timeline: list[Mapping[str, Any]] = []
        self.run_list: list[RunSummary] = []
        self.comparison: CompareProgress | None = None
        self.saved_comparisons: dict[str, CompareProgress] = {}
        self.chat_events: list[ChatEvent] = []
        self.errors: dict[str, Exception] = {}
        self.hang: set[str] = set()
        """Names of calls that never come back."""
        self.stop_report = StopReport("baseline", True, 2.3, ("SIGTERM", "gone"))

    def publish(self, new: Snapshot) -> None:
        """What the hub would do."""
        self.current = new
        for callback in list(self.callbacks):
            callback(new)

    async def _called(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments[0] if len(arguments) == 1 else arguments))
        if name in self.hang:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    # The worst kind of hang: a call that does not let itself be cancelled.
                    if name == "close":
                        continue
                    raise
        if name in self.errors:
            raise self.errors[name]

    def names(self) -> list[str]:
        """Calls that change something, in order."""
        return [name for name, _ in self.calls if name not in ("open", "close", "plan_start", "set_window")]

    async def open(self) -> None:
        await self._called("open")

    async def close(self) -> None:
        await self._called("close")

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        callback(self.current)
        return lambda: self.callbacks.remove(callback)

    def snapshot(self) -> Snapshot:
        return self.current

    def set_window(self, seconds: float) -> None:
        self.calls.append(("set_window", seconds))

    def presets(self) -> tuple[Sequence[Preset], Sequence[PresetProblem]]:
        return self.preset_list, self.problems

    async def plan_start(self, preset: str, overrides: Mapping[str, str] | None = None) -> LaunchPlan:
        await self._called("plan_start", preset)
        plan = self.plans.get(preset, launch_plan(preset))
        if isinstance(plan, VtopError):
            raise plan
        return plan

    async def start_server(self, preset: str, overrides: Mapping[str, str] | None = None) -> str:
        await self._called("start_server", preset, dict(overrides or {}))
        return preset

    async def start_again(self, name: str, changes: Mapping[str, str]) -> str:
        await self._called("start_again", name, dict(changes))
        return name

    async def stop_server(self, name: str) -> StopReport:
        await self._called("stop_server", name)
        return replace(self.stop_report, name=name)

    async def forget_server(self, name: str) -> None:
        await self._called("forget_server", name)

    def log_lines(self, name: str, last: int = 2000) -> Sequence[str]:
        if "log_lines" in self.errors:
            raise self.errors["log_lines"]
        return self.logs.get(name, [])[-last:]

    def load_shapes(self) -> Sequence[LoadShapeInfo]:
        request = LoadRequest(workload="chat", arrival="burst", requests=64, shape="burst")
        return (LoadShapeInfo("burst", "Burst", "64 chats at once on an idle server", request),)

    def workloads(self) -> Sequence[WorkloadInfo]:
        return (
            WorkloadInfo("demo", "Short chat prompts", "16 at a time, 64 requests, 150 tokens each"),
            WorkloadInfo("chat", "Chat", "Prompts and answers as in real chats"),
            WorkloadInfo("shared-prefix", "Shared prefix", "One long system prompt for all"),
            WorkloadInfo("repeat", "Repetitive", "Answers that repeat the prompt"),
            WorkloadInfo("random", "Random", "Nothing shared, nothing repeated"),
        )

    async def start_load(self, request: LoadRequest) -> str:
        await self._called("start_load", request)
        return "run-1"

    def load_progress(self) -> LoadProgress | None:
        return self.load

    async def stop_load(self) -> None:
        await self._called("stop_load")

    def load_result(self, run_id: str) -> LoadResult:
        if self.result is None:
            raise VtopError(f"there is no run {run_id}", "vtop runs lists them")
        return self.result

    def runs(self) -> Sequence[RunSummary]:
        return self.run_list

    def delete_run(self, run_id: str) -> None:
        self.calls.append(("delete_run", run_id))
        self.deleted_runs = [run for run in self.run_list if run.run_id == run_id]
        self.run_list = [run for run in self.run_list if run.run_id != run_id]

    def restore_run(self, run_id: str) -> None:
        self.calls.append(("restore_run", run_id))
        self.run_list = [*(run for run in self.deleted_runs if run.run_id == run_id), *self.run_list]

    def run_timeline(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        return self.timeline

    async def plan_compare(self, request: CompareRequest) -> CompareProgress:
        await self._called("plan_compare", request)
        return CompareProgress("", request, "planned", (), (), 0.0, 90.0 * request.repeats * len(request.presets))

    async def start_compare(self, request: CompareRequest) -> str:
        await self._called("start_compare", request)
        return "compare-1"

    def compare_progress(self) -> CompareProgress | None:
        return self.comparison

    def compare_result(self, run_id: str) -> CompareProgress:
        if run_id not in self.saved_comparisons:
            raise VtopError(f"there is no run {run_id}", "vtop runs lists them")
        return self.saved_comparisons[run_id]

    async def resume_compare(self, run_id: str) -> str:
        await self._called("resume_compare", run_id)
        self.comparison = replace(self.saved_comparisons[run_id], state="running")
        return run_id

    async def stop_compare(self) -> None:
        await self._called("stop_compare")

    def export(self, run_id: str, kind: str, path: str | None = None) -> str:
        self.calls.append(("export", (run_id, kind)))
        return f"/runs/{run_id}/report.{kind}"

    async def chat(self, name: str, prompt: str) -> AsyncIterator[ChatEvent]:
        await self._called("chat", name, prompt)
        for event in self.chat_events:
            yield event
            await asyncio.sleep(0)
