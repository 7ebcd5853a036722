"""The verdict line by table: one row a situation, on both sides of each boundary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from vtop.hardware import find_card
from vtop.presets import ServerSpec, Speculative
from vtop.servers.status import ServerState, ServerStatus
from vtop.telemetry.snapshot import Bandwidth, GpuReading, ServerView
from vtop.telemetry.verdict import ServerFacts, facts_for_spec, verdict
from vtop.vllm.reading import EngineReading, Latency, ScrapeStatus, SpeculationReading

CARD = find_card("RTX 4090")
assert CARD is not None
PEAK = CARD.bandwidth_bytes_per_s


def facts(**spec: Any) -> ServerFacts:
    return facts_for_spec(ServerSpec(model="Qwen/Qwen2.5-7B-Instruct", **spec), CARD)


def engine(**changes: Any) -> EngineReading:
    values: dict[str, Any] = {
        "model_name": "q",
        "window_s": 10.0,
        "running": 16.0,
        "waiting": 0.0,
        "kv_usage": 0.1,
        "kv_usage_max": 0.1,
        "kv_capacity_tokens": 120_000.0,
        "generation_tokens_per_s": 900.0,
        "prompt_tokens_per_s": 100.0,
        "prompt_computed_share": 1.0,
        "tokens_per_step": 20.0,
        "preemptions": 0.0,
        "tpot": Latency(0.0178, 20),
    }
    return EngineReading(**values | changes)


def gpu(
    percent: float | None = 80.0, tensor: float | None = 10.0, util: float | None = 99.0, **changes: Any
) -> GpuReading:
    moved = None if percent is None else percent / 100 * PEAK
    values: dict[str, Any] = {
        "uuid": "GPU-a",
        "index": 0,
        "name": "RTX 4090",
        "bandwidth": Bandwidth("gpm", percent, moved, PEAK, "table"),
        "tensor_percent": tensor,
        "gpu_util_percent": util,
    }
    return GpuReading(**values | changes)


def view(reading: EngineReading | None = None, **status: Any) -> ServerView:
    values: dict[str, Any] = {
        "name": "s",
        "url": "http://127.0.0.1:8000",
        "state": ServerState.READY,
        "gpu_uuids": ("GPU-a",),
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
    }
    return ServerView(
        ServerStatus(**values | status), ScrapeStatus("ok"), engines=(reading if reading is not None else engine(),)
    )


@dataclass(frozen=True)
class Row:
    name: str
    bound: str
    engine: dict[str, Any]
    gpu: dict[str, Any]
    status: dict[str, Any]


def row(name: str, bound: str, *, e: Any = None, g: Any = None, s: Any = None) -> Row:
    return Row(name, bound, e or {}, g or {}, s or {})


ROWS = [
    row("decoding at 80 % of the bandwidth", "bandwidth"),
    row("just at the limit", "bandwidth", g={"percent": 55.0}),
    row("just below the limit", "overhead", g={"percent": 54.9}),
    row("tensor cores at their limit", "compute", g={"percent": 20.0, "tensor": 45.0}),
    row("tensor cores just below", "overhead", g={"percent": 20.0, "tensor": 44.9}),
    row("both high, the larger decides", "compute", g={"percent": 60.0, "tensor": 70.0}),
    row("neither, and the GPU waits", "overhead", g={"percent": 20.0, "util": 59.0}),
    row("GPU mostly waits, less than one request runs", "idle", e={"running": 0.4}, g={"percent": 20.0, "util": 30.0}),
    row("nothing runs", "idle", e={"running": 0.0, "generation_tokens_per_s": 0.0, "prompt_tokens_per_s": 0.0}),
    row("nothing runs and the rates are unknown", "idle",
        e={"running": 0.0, "generation_tokens_per_s": None, "prompt_tokens_per_s": None}),
    row("only prompts, and none at this moment", "compute", g={"percent": 20.0, "tensor": 60.0},
        e={"running": 0.0, "generation_tokens_per_s": 0.0, "prompt_tokens_per_s": 9000.0}),
    row("all sequences taken", "queue-seqs", e={"waiting": 5.0}, s={"max_num_seqs": 16}),
    row("one sequence short of the limit", "bandwidth", e={"waiting": 5.0}, s={"max_num_seqs": 17}),
    row("limit of sequences unknown", "bandwidth", e={"waiting": 5.0}, s={"max_num_seqs": None}),
    row("two engines have twice the limit", "bandwidth", e={"waiting": 5.0, "engines": 2}, s={"max_num_seqs": 16}),
    row("KV cache full and requests wait", "queue-kv", e={"waiting": 2.0, "kv_usage_max": 0.9}),
    row("KV cache nearly full", "bandwidth", e={"waiting": 2.0, "kv_usage_max": 0.89}),
    row("KV cache full and nobody waits", "bandwidth", e={"kv_usage_max": 0.99}),
    row("preempted", "queue-kv", e={"preemptions": 1.0}),
    row("steps full of prefill", "queue-tokens", e={"waiting": 4.0, "tokens_per_step": 1700.0}),
    row("waiting only for KV from another server", "bandwidth",
        e={"waiting": 4.0, "waiting_by_reason": {"deferred": 4.0}}, s={"max_num_seqs": 16}),
    row("tensor activity unknown below the limit", "unknown", g={"percent": 30.0, "tensor": None}),
    row("no bandwidth", "unknown", g={"bandwidth": None}),
    row("starting", "unknown", s={"state": ServerState.STARTING}),
    row("its GPU is not among those seen", "unknown", s={"gpu_uuids": ("GPU-b",)}),
    row("the number of requests is unknown", "unknown", e={"running": None}),
]  # fmt: skip


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)
def test_what_bounds_the_server(case: Row) -> None:
    said = verdict(view(engine(**case.engine), **case.status), [gpu(**case.gpu)], facts())
    assert said.bound == case.bound
    if case.bound == "unknown":
        assert said.headline.startswith("Cannot tell: ")
        assert said.suggestion == ""


def test_a_preemption_is_told_where_nobody_waits_any_more() -> None:
    said = verdict(view(engine(preemptions=2.0)), [gpu()], facts()).headline
    assert said == "Queue-bound: 2 preempted for want of KV cache in the last 10 s; 10 % of 120k tokens in use now."
    said = verdict(view(engine(preemptions=2.0, waiting=3.0)), [gpu()], facts()).headline
    assert said == "Queue-bound: 3 requests wait for KV cache; 10 % of 120k tokens in use, 2 preempted."


def test_no_sentence_has_a_dash_for_what_a_mig_instance_or_an_old_page_does_not_say() -> None:
    small = verdict(view(engine()), [gpu(20.0, util=None)], facts()).headline
    assert small == "Overhead-bound: the GPU uses 20 % of its bandwidth and 10 % of its tensor peak."
    full = verdict(view(engine(waiting=2.0, kv_usage_max=0.95, kv_capacity_tokens=None)), [gpu()], facts()).headline
    assert full == "Queue-bound: 2 requests wait for KV cache; 95 % in use."


def test_the_sentence_has_bytes_bandwidth_and_floor() -> None:
    said = verdict(view(), [gpu()], facts())
    # 14.1 GB of weights and 12,000 cached tokens of 57,344 B; the floor is that over 1.008 TB/s.
    assert said.headline == (
        "Bandwidth-bound: decoding reads 14.8 GB a step and moves 806 GB/s, 80 % of peak; TPOT is 1.21x its floor."
    )
    assert said.tpot_floor_s == pytest.approx((14.141e9 + 12_000 * 57_344 + 16 * 57_344) / PEAK, rel=1e-3)
    assert said.suggestion.startswith("Try: --quantization fp8 (floor 14.7 ms → ")


def test_busy_time_is_never_called_bandwidth() -> None:
    reading = gpu(bandwidth=Bandwidth("busy", 95.0))
    said = verdict(view(), [reading], facts())
    assert said.bound == "unknown"
    assert "memory busy 95 % of the time" in said.headline


def test_an_estimate_is_called_one() -> None:
    reading = gpu(bandwidth=Bandwidth("vllm", 80.0, 0.8 * PEAK, PEAK, "table"))
    assert "80 % of peak (estimated)" in verdict(view(), [reading], facts()).headline


def test_two_sources_are_not_mixed() -> None:
    other = gpu(uuid="GPU-b", bandwidth=Bandwidth("dcgm", 80.0))
    said = verdict(view(gpu_uuids=("GPU-a", "GPU-b")), [gpu(), other], facts())
    assert said.bound == "unknown"


def test_with_several_gpus_and_no_match_it_abstains() -> None:
    said = verdict(view(gpu_uuids=None), [gpu(), gpu(uuid="GPU-b")], facts())
    assert said.bound == "unknown" and "which GPU" in said.headline


def test_a_load_generator_that_is_the_limit_is_named() -> None:
    said = verdict(view(), [gpu()], facts(), client="the load generator is 12 ms late")
    assert said.bound == "client" and "12 ms late" in said.headline


def test_an_unknown_model_gives_no_floor_and_no_bytes() -> None:
    said = verdict(view(), [gpu()], ServerFacts(card=CARD))
    assert said.bound == "bandwidth"
    assert said.tpot_floor_s is None
    assert "a step" not in said.headline
    assert ("model", "the model's shape is not known") in said.terms


@pytest.mark.parametrize(
    ("spec", "reading", "flag"),
    [
        ({}, {}, "--quantization fp8"),
        ({"quantization": "fp8"}, {}, "--speculative-config"),
        ({}, {"kv_usage": 0.9, "kv_capacity_tokens": 400_000.0}, "--kv-cache-dtype fp8"),
        (
            {"quantization": "fp8", "speculative": Speculative(method="ngram", num_tokens=4)},
            {},
            "--tensor-parallel-size 2",
        ),
    ],
)
def test_one_suggestion_that_names_the_flag(spec: dict[str, Any], reading: dict[str, Any], flag: str) -> None:
    said = verdict(view(engine(**reading)), [gpu()], facts(**spec))
    assert flag in said.suggestion
    assert said.suggestion.count("Try:") == 1


def test_one_request_at_a_time_is_told_to_take_more() -> None:
    said = verdict(view(engine(running=1.0, waiting=15.0), max_num_seqs=1), [gpu()], facts(max_num_seqs=1))
    assert said.bound == "queue-seqs"
    assert "--max-num-seqs 16" in said.suggestion


def test_speculation_in_a_large_compute_bound_batch_is_advised_against() -> None:
    reading = engine(running=128.0, speculation=SpeculationReading(0.3, 1.9, (0.5, 0.3, 0.1)))
    said = verdict(view(reading), [gpu(percent=40.0, tensor=70.0)], facts())
    assert said.bound == "compute" and "without --speculative-config" in said.suggestion


def test_speculation_divides_the_floor_by_its_length() -> None:
    plain = verdict(view(), [gpu()], facts())
    guessed = verdict(view(engine(speculation=SpeculationReading(0.5, 2.0, (0.6, 0.4)))), [gpu()], facts())
    assert plain.tpot_floor_s is not None and guessed.tpot_floor_s is not None
    assert guessed.tpot_floor_s == pytest.approx(plain.tpot_floor_s / 2, rel=0.01)


def test_a_stale_tpot_is_not_compared_with_the_floor_of_now() -> None:
    reading = engine(tpot=Latency(9.0, 3, age_s=60.0))
    said = verdict(view(reading), [gpu()], facts())
    # 16 running over 900 tokens/s are 17.8 ms each.
    assert dict(said.terms)["TPOT now"].startswith("17.8 ms")


def test_a_scrape_that_failed_says_why() -> None:
    broken = replace(view(), scrape=ScrapeStatus("needs-key", "needs an API key"))
    assert verdict(broken, [gpu()], facts()).headline == "Cannot tell: needs an API key."


def test_a_lost_gpu_is_said_before_anything_else_and_never_read_as_idle() -> None:
    gone = gpu(util=0.0, lost=True, age_s=12.0, missing={"lost": "it fell off the bus"})
    for reading in (engine(), engine(running=0.0, generation_tokens_per_s=0.0), engine(waiting=9.0, kv_usage_max=1.0)):
        said = verdict(view(reading), [gone, gpu(uuid="GPU-b", index=1)], facts())
        assert (said.bound, said.headline) == (
            "unknown",
            "Cannot tell: GPU 0, which this server uses, is lost: it fell off the bus.",
        )


def test_a_server_elsewhere_is_not_judged_by_this_machines_gpu() -> None:
    here = gpu(uuid="GPU-here")
    assert verdict(view(gpu_uuids=None), [here], facts()).bound == "bandwidth"
    said = verdict(view(gpu_uuids=None, host="gpu-7", gpu_reason="they are in another machine"), [here], facts())
    assert said.bound == "unknown"
    assert said.headline.startswith("Cannot tell: which GPU it uses is not known (they are in another machine).")
    assert verdict(view(gpu_uuids=None, host="gpu-7"), [here, gpu(host="gpu-7")], facts()).bound == "bandwidth"


def test_without_any_gpu_it_says_so_and_a_cpu_build_says_what_it_is() -> None:
    said = verdict(view(gpu_uuids=None, gpu_reason="it was started by somebody else"), [], facts())
    assert said.headline.startswith("Cannot tell: no GPU is read here.")
    said = verdict(view(gpu_uuids=None, version="0.32.0+cpu", gpu_reason="it runs on the CPU"), [gpu()], facts())
    assert said.headline.startswith("Cannot tell: it runs on the CPU.")


def test_without_rates_the_verdict_repeats_why_there_are_none() -> None:
    reading = engine(window_s=0.0, missing={"generation_tokens_per_s": "several servers answer in turn"})
    said = verdict(view(reading), [gpu()], facts())
    assert said.headline == "Cannot tell: several servers answer in turn."
