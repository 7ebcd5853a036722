"""The picture of a configuration under load: its own server, or the two halves behind a router, and their GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from vtop.results.comparison import ConfigurationFacts, FloorTimes
from vtop.servers.status import ServerState, ServerStatus
from vtop.service.picturing import picture_of
from vtop.service.windows import own_gpus, throttled_s, working
from vtop.telemetry.snapshot import Bandwidth, GpuReading, GpuStatus, HostReading, ServerView, Snapshot
from vtop.vllm.reading import EngineReading, Latency, Quantile, ScrapeStatus, SpeculationReading


class NoHistory:
    def series(self, key: str, seconds: float | None = None) -> tuple[Sequence[float], Sequence[float | None]]:
        return (), ()


def view(name: str, engine: EngineReading | None, **status: object) -> ServerView:
    known = {"name": name, "url": f"http://127.0.0.1/{name}", "state": ServerState.READY, **status}
    engines = () if engine is None else (engine,)
    return ServerView(ServerStatus(**known), ScrapeStatus("ok"), engines)  # type: ignore[arg-type]


def snapshot(*servers: ServerView, gpus: int = 3) -> Snapshot:
    readings = tuple(
        GpuReading(f"GPU-{n}", n, "RTX 4090", bandwidth=Bandwidth("simulated", 10.0 * (n + 1))) for n in range(gpus)
    )
    return Snapshot(1, 1.0, 1.0, 10.0, HostReading("vm"), GpuStatus(True), readings, servers, NoHistory())


def engine(**numbers: object) -> EngineReading:
    return EngineReading("m", 10.0, **numbers)  # type: ignore[arg-type]


def test_a_server_under_load_with_what_arithmetic_knows_of_it() -> None:
    reading = engine(
        running=16.0, waiting=2.0, ttft=Latency(0.3, 10), itl=Latency(0.02, 99, Quantile(0.017, 0.01, 0.02), None),
        speculation=SpeculationReading(0.9, 3.2, (0.95, 0.8)),
    )  # fmt: skip
    facts = ConfigurationFacts(
        weights_bytes=15.2e9, step_cost=1.1,
        floor=FloorTimes(batch=16, answer_tokens=64, prefill_s=0.1, step_s=0.0145),
    )  # fmt: skip
    found = picture_of("spec-ngram", "one", snapshot(view("one", reading, gpu_uuids=("GPU-1",))), facts)
    assert found is not None
    (server,) = found.servers
    assert (server.running, server.waiting, server.ttft_mean_s) == (16.0, 2.0, 0.3)
    assert (server.itl_p50_s, server.itl_p95_s, server.tpot_mean_s) == (0.017, None, None)
    assert (server.accepted_by_position, server.acceptance_length) == ((0.95, 0.8), 3.2)
    assert [(gpu.index, gpu.bandwidth_percent, gpu.bandwidth_source) for gpu in found.gpus] == [(1, 20.0, "simulated")]
    assert (found.weights_bytes, found.tpot_floor_s, found.break_even_length) == (15.2e9, 0.0145, 1.1)


def test_a_server_that_is_idle_or_gone_makes_no_picture() -> None:
    assert picture_of("a", "one", snapshot(view("one", engine(running=0.0))), None) is None
    assert picture_of("a", "one", snapshot(view("one", None)), None) is None
    assert picture_of("a", "gone", snapshot(view("one", engine(running=4.0))), None) is None


def test_a_pair_is_its_two_halves_with_the_gpus_of_both() -> None:
    router = view("pd", engine(running=4.0), role="router", deployment="pd", gpu_uuids=())
    prefill = view("pd.prefill", engine(running=1.0), role="prefill", deployment="pd", gpu_uuids=("GPU-0",), pids=(11,))
    decode = view("pd.decode", engine(running=3.0), role="decode", deployment="pd", gpu_uuids=("GPU-2",), pids=(12,))
    other = view("other", engine(running=9.0), gpu_uuids=("GPU-1",))
    now = snapshot(router, decode, prefill, other)
    found = picture_of("pd-disaggregation", "pd", now, None)
    assert found is not None
    assert [(server.role, server.running) for server in found.servers] == [("prefill", 1.0), ("decode", 3.0)]
    assert [gpu.index for gpu in found.gpus] == [0, 2]
    assert {status.name for status in working(router, now)} == {"pd.prefill", "pd.decode"}
    assert [status.name for status in working(other, now)] == ["other"]
    assert [gpu.uuid for gpu in own_gpus(other, now)] == ["GPU-1"]


@pytest.mark.parametrize(("gpus", "known"), [(1, 1), (3, 0)])
def test_without_a_known_server_only_the_one_gpu_of_this_machine_counts(gpus: int, known: int) -> None:
    assert len(own_gpus(None, snapshot(gpus=gpus))) == known


@pytest.mark.parametrize("interval_s", [0.25, 1.0, 5.0])
def test_seconds_of_throttling_are_seconds_however_often_vtop_looks(interval_s: float) -> None:
    hot, cool = GpuReading("a", 0, "X", throttle=("hardware thermal slowdown",)), GpuReading("b", 1, "X")
    looks = int(20 / interval_s) + 2
    seen = [(100 + n * interval_s, (cool, hot) if n * interval_s > 10 else (cool, cool)) for n in range(1, looks)]
    assert throttled_s(seen, 100.0, 120.0) == pytest.approx(10.0), "the last look comes after the test's end"
    assert throttled_s([], 0.0, 10.0) == 0.0
