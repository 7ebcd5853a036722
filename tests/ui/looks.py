"""Applications in a given state, for pictures: snapshot tests, the README's picture and the eye."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ui.fake_service import (
    GIB,
    WALL,
    FakeService,
    engine,
    failed,
    foreign,
    gpu,
    launch_plan,
    ready,
    snapshot,
    starting,
    status,
)
from vtop.contract import ChatEvent, PresetProblem, RunSummary
from vtop.load.progress import LoadProgress, LoadRequest, LoadResult, Percentiles, RequestPoint
from vtop.results.comparison import CompareProgress, CompareRequest, CompareRow, CompareStep
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import Bandwidth, Verdict
from vtop.ui.app import VtopApp
from vtop.ui.display import DisplaySettings
from vtop.vllm.metrics import NEEDS
from vtop.vllm.reading import Latency, ScrapeStatus

if TYPE_CHECKING:
    from textual.pilot import Pilot

LONG_NAME = "Example Accelerator With A Very Long Marketing Name 141GB HBM3e"

LOG = [
    "INFO 06-11 10:07:01 [utils.py:344] version 0.33.0 model qwen2.5-7b",
    "(EngineCore pid=7) INFO 06-11 10:07:08 [core.py:396] loaded [/opt/lib/x.so] [node_modules] [/bold]",
    "ERROR 06-11 10:07:11 [core.py:396] EngineCore failed to start.",
    "ValueError: To serve at least one request with max_model_len 32768, 1.75 GiB KV cache is needed, 1.12 GiB left.",
    "Loading safetensors checkpoint shards: 100% Completed | 3/3 [00:03<00:00,  1.05s/it]",
    "模型/中文 wide characters stay in their cells \x1b[2J and control characters do not pass",
]


def percentiles(middle: float, n: int = 128) -> Percentiles:
    return Percentiles(n, middle * 1.05, middle, middle * 1.4, middle * 1.7, middle * 2.1, middle * 0.6, middle * 2.2)


def load_progress(state: str = "running", finished: int = 128, failures: int = 0) -> LoadProgress:
    """A chat load test, 128 of 200 done."""
    dice = random.Random(7)
    points = tuple(
        RequestPoint(
            0.25 * i + 1, True, 0.082 + 0.05 * dice.random() ** 3 + (0.1 if i < 16 else 0),
            0.018 + 0.003 * dice.random(), 2.7, 150,
        )
        for i in range(finished)
    )  # fmt: skip
    output = tuple((0.5 * i, 0.0 if i < 2 else 870 + 40 * math.sin(i / 3)) for i in range(finished // 2))
    return LoadProgress(
        "20270115-080000-chat", LoadRequest(workload="chat", server="baseline", concurrency=16), state, 16, 200,
        finished, failures, 0 if state != "running" else 16, finished * 0.25, None if state != "running" else 23.0,
        percentiles(0.082, finished), percentiles(0.0181, finished), percentiles(2.7, finished), 871.0, 893.0, output,
        points, 0.0006, 50_000.0, 0.0004,
        failures=(("HTTP 503: no instance [/bold] ready", failures),) if failures else (),
    )  # fmt: skip


def load_result() -> LoadResult:
    """What came of it."""
    return LoadResult(
        "20270115-080000-chat", "/home/user/.local/share/vtop/runs/20270115-080000-chat",
        LoadRequest(workload="chat", server="baseline", model="qwen2.5-7b", concurrency=16), True, 200, 198, 2, 51.3,
        29_700, 18_400, 871.0, 893.0, 3.86, percentiles(0.082, 198), percentiles(0.0181, 198),
        percentiles(0.0179, 29_502), percentiles(2.7, 198), failures=(("the stream ended without [DONE]", 2),),
        warnings=("198 requests are few for a p99",),
        server={"ttft_mean_s": 0.081, "prefix_hit_rate": 0.004, "acceptance": None, "generation_tokens_per_s": 868.0},
        gpu={"bandwidth_percent": 62.0, "power_w": 512.0, "joules_per_token": 0.57},
        repeat_command="vtop load chat --server baseline -c 16 -n 200 --seed 1234",
    )  # fmt: skip


def timeline() -> list[dict[str, float | None]]:
    return [
        {
            "at_s": float(i), "bandwidth_percent": 62 + 5 * math.sin(i / 5), "running": 16.0 if 3 < i < 48 else 4.0,
            "generation_tokens_per_s": 870.0 if 3 < i < 48 else 200.0, "kv_usage": 0.1,
        }
        for i in range(52)
    ]  # fmt: skip


def comparison(state: str = "running") -> CompareProgress:
    """Three presets, three rounds."""
    request = CompareRequest(("baseline", "prefix-caching", "spec-ngram"), "shared-prefix", 3)
    steps = []
    for number in range(9):
        name = request.presets[number % 3]
        if state == "finished" or number < 4:
            steps.append(CompareStep(number // 3 + 1, name, "done", "", 610.0 + 90 * (number % 3), 0.09, 0.0175))
        elif number == 4:
            steps.append(CompareStep(2, name, "loading", "41 of 64", None, None, None))
        else:
            steps.append(CompareStep(number // 3 + 1, name, "waiting"))
    common = {
        "ttft_p95_s": 0.2, "tpot_p95_s": 0.02, "e2e_mean_s": 2.7, "e2e_p95_s": 3.1, "bandwidth_source": "gpm",
        "joules_per_token": 0.6, "kv_capacity_tokens": 432_000.0, "weights_bytes": 15.2e9,
    }  # fmt: skip
    rows = (
        CompareRow(preset="baseline", runs=3, output_tokens_per_s=610.0, ratio=1.0, ratio_low=1.0, ratio_high=1.0,
                   ttft_p50_s=0.091, tpot_p50_s=0.0181, bandwidth_percent=61.0, prefix_hit_rate=0.0, acceptance=None,
                   failed=0, predicted_ratio=1.0, verdict="the first row", **common),
        CompareRow(preset="prefix-caching", runs=3, output_tokens_per_s=781.0, ratio=1.28, ratio_low=1.24,
                   ratio_high=1.33, ttft_p50_s=0.042, tpot_p50_s=0.0175, bandwidth_percent=64.0, prefix_hit_rate=0.81,
                   acceptance=None, failed=0, predicted_ratio=1.31, verdict="faster", **common),
        CompareRow(preset="spec-ngram", runs=3, output_tokens_per_s=604.0, ratio=0.99, ratio_low=0.96, ratio_high=1.03,
                   ttft_p50_s=0.09, tpot_p50_s=0.0184, bandwidth_percent=60.0, prefix_hit_rate=0.0, acceptance=0.12,
                   failed=1, predicted_ratio=1.02, verdict="no difference seen (could be up to 4 %)",
                   notes=("this load repeats little, so few guesses are accepted",), **common),
    )  # fmt: skip
    return CompareProgress(
        "20270115-090000-compare", request, state, tuple(steps), rows if state == "finished" else rows[:2],
        302.0, 680.0,
        warnings=("the GPU slowed down in round 2 (power cap)",) if state == "finished" else (),
        directory="/home/user/.local/share/vtop/runs/20270115-090000-compare",
    )  # fmt: skip


def runs() -> list[RunSummary]:
    return [
        RunSummary("r4", "load", "chat on baseline", WALL - 120, False, True, "871 tok/s · TTFT p50 82 ms"),
        RunSummary(
            "r3", "compare", "baseline, prefix-caching, spec-ngram", WALL - 7_200, False, True, "1.28x prefix-caching"
        ),
        RunSummary("r2", "load", "demo on [/bold] baseline", WALL - 90_000, True, True, "892 tok/s · TTFT p50 82 ms"),
        RunSummary("r1", "load", "chat on awq", WALL - 400_000, False, False, "412 tok/s · TTFT p50 1.2 s"),
    ]


def with_everything(service: FakeService) -> FakeService:
    """The same service with logs, runs and answers."""
    service.logs = {name: LOG for name in ("baseline", "awq", "spec-ngram")}
    service.run_list = runs()
    service.result = load_result()
    service.saved_comparisons = {"r3": replace(comparison("finished"), run_id="r3", expected_s=None)}
    service.timeline = list(timeline())
    service.chat_events = [
        ChatEvent("Decoding is bound by memory bandwidth:"), ChatEvent(" each token reads every weight once."),
        ChatEvent(done=True, ttft_s=0.081, tpot_s=0.0179, prompt_tokens=21, completion_tokens=13),
    ]  # fmt: skip
    return service


def busy() -> FakeService:
    """The README's state: one server at work, one starting, one failed, one foreign."""
    return FakeService(snapshot(ready(), starting(), failed(), foreign()))


def hostile() -> FakeService:
    """Names that other programs read as markup, wide characters, a line break."""
    names = ("[/bold] x", "模型/中文", 'org/chat "v2", {beta} # 1', "line1\nline2", "C:\\models\\qwen")
    views = [ready(name, status=status(name, model=name), engines=(engine(model_name=name),)) for name in names]
    return FakeService(snapshot(*views, gpus=[gpu(name="[red]GPU[/red] \x1b]0;owned\x07")]))


def stale() -> FakeService:
    """A server that stopped answering, a GPU that is old, nothing finished in the window."""
    quiet = engine(ttft=Latency(0.084, 0, age_s=14.0), tpot=Latency(0.0179, 0, age_s=14.0), generation_tokens_per_s=0.0)
    view = ready(
        status=status(state=ServerState.DEGRADED, message="/metrics does not answer"),
        scrape=ScrapeStatus("timeout", "no answer from http://127.0.0.1:8000/metrics within 2 s", last_ok_age_s=14.0),
        engines=(quiet,),
        verdict=Verdict("unknown", "Not enough data: the server has not answered for 14 s."),
    )
    return FakeService(snapshot(view, gpus=[gpu(age_s=9.0)]))


def no_bandwidth() -> FakeService:
    """A card that cannot count bytes, a server that knows little."""
    card = gpu(
        name="NVIDIA A10G", bandwidth=Bandwidth("busy", 71.0), sm_percent=None, tensor_percent=None,
        memory_used_bytes=int(20.1 * GIB), memory_total_bytes=int(22.5 * GIB), power_w=None, throttle=("power cap",),
        missing={"power_w": "this driver does not report it"},
    )  # fmt: skip
    verdict = Verdict("unknown", "Bandwidth unknown on this card: memory busy 71 % of the time.", tpot_floor_s=None)
    bare = engine(
        speculation=None, prompt_computed_share=None, prompt_cached_share=None, prompt_transferred_share=None,
        tpot=None,
        kv_capacity_tokens=None, missing={"tpot": NEEDS["tpot"]},
    )  # fmt: skip
    return FakeService(snapshot(ready(engines=(bare,), verdict=verdict), gpus=[card]))


def simulated() -> FakeService:
    view = ready(status=status(simulated=True))
    made = snapshot(view, gpus=[gpu(simulated=True, bandwidth=Bandwidth("simulated", 62.0, 2.08e12, 3.35e12))])
    service = FakeService(replace(made, simulated=True), simulated=True)
    return service


def loading(state: str = "running", failures: int = 0) -> FakeService:
    service = FakeService(snapshot(ready()))
    service.load = load_progress(state, 200 if state == "finished" else 128, failures)
    return service


def warming() -> FakeService:
    """A load test whose first requests are not counted yet."""
    service = loading()
    service.load = LoadProgress(
        "20270115-080000-chat", LoadRequest(workload="chat", server="baseline", concurrency=8), "warming-up", 8, 200,
        in_flight=5, remaining_s=20.0, client_overhead_s=0.0006, client_capacity_tokens_per_s=50_000.0,
        warmup_done=3, warmup_total=8, warmup_elapsed_s=12.0,
    )  # fmt: skip
    return service


def comparing(state: str) -> FakeService:
    service = FakeService(snapshot(ready()))
    service.comparison = comparison(state)
    return service


def with_problem() -> FakeService:
    service = FakeService(snapshot(ready()))
    service.problems = (PresetProblem("mine.toml", "[server] has no key `modle`; nearest: `model`", "rename it"),)
    service.plans["baseline"] = launch_plan("baseline", warnings=("port 8000 is taken by baseline",))
    service.plans["fp8"] = launch_plan("fp8", refusal="vLLM 0.6 has no FP8 for this card", commands=())
    return service


STATES: dict[str, Callable[[], FakeService]] = {
    "busy": busy,
    "one": lambda: FakeService(snapshot(ready())),
    "empty": lambda: FakeService(snapshot(gpus=())),
    "eight": lambda: FakeService(snapshot(ready(), gpus=[gpu(i, name=LONG_NAME) for i in range(8)])),
    "sixteen": lambda: FakeService(snapshot(ready(), gpus=[gpu(i) for i in range(16)])),
    "eight-busy": lambda: FakeService(
        snapshot(ready(), starting(), failed(), foreign(), gpus=[gpu(i) for i in range(8)])
    ),
    "starting": lambda: FakeService(snapshot(starting())),
    "failed": lambda: FakeService(snapshot(failed())),
    "hostile": hostile,
    "stale": stale,
    "no-bandwidth": no_bandwidth,
    "simulated": simulated,
    "loading": loading,
    "load-warming": warming,
    "load-failures": lambda: loading("running", 3),
    "loaded": lambda: loading("finished"),
    "comparing": lambda: comparing("running"),
    "compared": lambda: comparing("finished"),
    "presets": with_problem,
}


def app_for(name: str, settings: DisplaySettings | None = None) -> VtopApp:
    """The application in one of the states."""
    service = with_everything(STATES[name]())
    return VtopApp(service, settings or DisplaySettings(paint_hz=4.0), clock=service.clock)


async def settle(pilot: Pilot[int]) -> None:
    """Waits until everything that was asked for is painted."""
    app = pilot.app
    assert isinstance(app, VtopApp)
    for _ in range(3):
        await pilot.pause(0.02)
    app.tick()
    await pilot.pause()
