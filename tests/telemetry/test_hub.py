"""The hub: one picture of everything, published for whoever subscribes, whatever fails underneath."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hub_parts import Gpus, Host, gpu, gpu_event, server
from metric_pages import version_page
from raw_server import Asked, RawServer, Writer, answer, serving, write_answer

from vtop.clock import FakeClock, SystemClock
from vtop.servers.ports import answered_by_another
from vtop.servers.status import ServerState, ServerStatus
from vtop.telemetry.gpu.source import GpuFrame
from vtop.telemetry.hub import Hub
from vtop.telemetry.scrape import Poller
from vtop.telemetry.snapshot import GpuReading, GpuStatus, ServerView, Snapshot, Verdict

PAGE = version_page("0.33.0")
PATIENCE_S = 30
"""What these tests look at must be in the picture, however busy the machine is."""


def page(tokens: int, model: str = "m", started: float = 1.0) -> bytes:
    labels = f'engine="0",model_name="{model}"'
    return (
        f"process_start_time_seconds {started}\nvllm:num_requests_running{{{labels}}} 2\n"
        f"vllm:generation_tokens_total{{{labels}}} {tokens}\n"
    ).encode()


class Counting:
    """A server whose token counter a test sets."""

    def __init__(self) -> None:
        self.tokens = 0
        self.started = 1.0
        self.status = 200

    async def __call__(self, asked: Asked, writer: Writer) -> None:
        write_answer(asked, writer, page(self.tokens, started=self.started), self.status)


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Waits for a condition, and fails if it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come true in time"
        await asyncio.sleep(0.01)


async def test_a_subscriber_gets_the_newest_snapshot_at_once_and_then_each_new_one() -> None:
    async with serving(answer(PAGE)) as there:
        hub = Hub(server_statuses=lambda: [server("a", there.url)], host_source=Host(), interval_s=0.05)
        seen: list[Snapshot] = []
        unsubscribe = hub.subscribe(seen.append)
        assert [snapshot.sequence for snapshot in seen] == [0]
        await hub.open()
        await until(lambda: len(seen) >= 4)
        unsubscribe()
        count = len(seen)
        await hub.tick(PATIENCE_S)
        await hub.close()
    assert len(seen) == count
    assert [snapshot.sequence for snapshot in seen] == list(range(count))
    view = hub.snapshot().servers[0]
    assert view.scrape.state == "ok"
    assert view.engine is not None
    assert view.engine.running == 12
    assert hub.snapshot().host.cpu_percent == 12.5


async def test_rates_are_over_the_window_and_the_window_can_be_changed() -> None:
    clock, counting = FakeClock(), Counting()
    async with serving(counting) as there:
        hub = Hub(clock=clock, server_statuses=lambda: [server("a", there.url)], window_s=4)
        for second in range(21):
            counting.tokens = second * 10 if second < 15 else 140 + (second - 14) * 100
            await hub.tick(PATIENCE_S)
            clock.advance(1)
        engine = hub.snapshot().servers[0].engine
        assert engine is not None
        assert (engine.window_s, engine.generation_tokens_per_s) == (4, 100)
        hub.set_window(20)
        counting.tokens += 100
        await hub.tick(PATIENCE_S)
        engine = hub.snapshot().servers[0].engine
        assert engine is not None
        assert engine.window_s == 20
        assert hub.snapshot().window_s == 20
        await hub.close()


async def test_servers_come_and_go_and_a_stopped_one_is_not_asked() -> None:
    async with serving(answer(PAGE)) as one, serving(answer(PAGE)) as two:
        statuses = [server("a", one.url)]
        hub = Hub(server_statuses=lambda: statuses)
        await hub.tick(PATIENCE_S)
        statuses = [server("a", one.url, ServerState.STOPPED), server("b", two.url)]
        await hub.tick(PATIENCE_S)
        first, second = hub.snapshot().servers
        asked = len(one.asked)
        assert (first.scrape.state, first.engines) == ("pending", ())
        assert second.scrape.state == "ok"
        statuses = []
        await hub.tick(PATIENCE_S)
        await hub.close()
        assert len(one.asked) == asked
    assert hub.snapshot().servers == ()


@pytest.mark.parametrize("state", [ServerState.STARTING, ServerState.DEGRADED])
async def test_a_stranger_on_a_servers_port_is_not_read_under_its_name(state: ServerState) -> None:
    """Two starts raced for one port, or ours lost it: the page there holds somebody else's numbers."""
    async with serving(answer(PAGE)) as there:
        ours = server("a", there.url, state)
        hub = Hub(server_statuses=lambda: [ours])
        await hub.tick(PATIENCE_S)
        assert hub.snapshot().servers[0].engines
        ours = replace(ours, message=answered_by_another(8000, "pid 7, vllm"))
        asked = len(there.asked)
        await hub.tick(PATIENCE_S)
        view = hub.snapshot().servers[0]
        assert (view.engines, view.scrape.state) == ((), "other-server")
        assert "pid 7, vllm" in view.scrape.message
        ours = replace(ours, message="")
        assert len(there.asked) == asked
        await hub.tick(PATIENCE_S)
        assert hub.snapshot().servers[0].engines
        await hub.close()


async def test_a_server_that_is_being_stopped_is_left_alone() -> None:
    """A request in flight would hold its shutdown up."""
    async with serving(answer(PAGE)) as there:
        hub = Hub(server_statuses=lambda: [server("a", there.url, ServerState.STOPPING)])
        await hub.tick(PATIENCE_S)
        await hub.close()
        assert there.asked == []


async def test_a_hung_server_delays_neither_the_others_nor_the_end() -> None:
    async def hang(asked: Asked, writer: Writer) -> None:
        await asyncio.sleep(3600)

    async with serving(hang) as hung, serving(answer(PAGE)) as good:
        hub = Hub(server_statuses=lambda: [server("hung", hung.url), server("good", good.url)], interval_s=0.1)
        await hub.open()
        await until(lambda: any(view.engine for view in hub.snapshot().servers))
        began = time.monotonic()
        await hub.close()
        took_s = time.monotonic() - began
    assert took_s < 20, "0.3 s on an idle machine; the server hangs for an hour"
    assert hub.snapshot().servers[0].scrape.state == "pending"


async def test_a_hung_gpu_driver_delays_neither_the_picture_nor_the_end() -> None:
    source = Gpus(gpu())
    source.blocked = threading.Event()
    hub = Hub(gpu_source=source, interval_s=0.05, gpu_period_s=0.02)
    await hub.open()
    await until(lambda: hub.snapshot().sequence >= 3)
    assert hub.snapshot().gpu_status.message == "looking for GPUs"
    began = time.monotonic()
    await hub.close()
    assert time.monotonic() - began < 20, "the driver would block for 30 s"
    source.blocked.set()


async def test_gpus_are_read_in_one_thread_of_their_own() -> None:
    source = Gpus(gpu())
    hub = Hub(gpu_source=source, interval_s=0.05, gpu_period_s=0.02)
    await hub.open()
    await until(lambda: bool(hub.snapshot().gpus) and source.reads >= 2)
    await hub.close()
    await until(lambda: source.closed)
    assert source.threads == {"vtop-gpu"}
    assert hub.snapshot().gpu_status.available
    times, values = hub.history.series("gpu/GPU-1/bandwidth_percent")
    assert list(values) == [62.5] * len(times)


async def test_the_history_of_a_gpu_follows_its_uuid_and_a_lost_one_gets_no_more_values() -> None:
    """The third of four falls off the bus; the fourth goes on under the number of the third."""
    source = Gpus(*(gpu(uuid=f"GPU-{n}", gpu_util_percent=50.0 + n) for n in range(4)))
    hub = Hub(gpu_source=source, interval_s=0.05, gpu_period_s=0.02)
    await hub.open()
    await until(lambda: len(hub.history.series("gpu/GPU-3/gpu_util_percent")[0]) >= 2)
    alive = [gpu(uuid=f"GPU-{n}", gpu_util_percent=70.0 + n) for n in (0, 1, 3)]
    gone = gpu(uuid="GPU-2", gpu_util_percent=52.0, lost=True)
    source.frame = GpuFrame(GpuStatus(True), (alive[0], alive[1], replace(alive[2], index=2), gone))
    await until(lambda: hub.history.series("gpu/GPU-3/gpu_util_percent")[1][-1:] == [73.0])
    await until(lambda: hub.history.series("gpu/GPU-2/gpu_util_percent")[1][-1:] == [None])
    await hub.close()
    fourth = list(hub.history.series("gpu/GPU-3/gpu_util_percent")[1])
    assert set(fourth) == {53.0, 73.0}
    assert fourth == sorted(fourth, key=lambda value: value or 0.0), (
        "one line, first the old values, then the later ones"
    )
    third = list(hub.history.series("gpu/GPU-2/gpu_util_percent")[1])
    assert set(third) == {52.0, None}
    assert None not in third[: third.index(None)]


async def test_a_gpu_source_that_fails_is_said_and_recovers() -> None:
    source = Gpus(gpu())
    source.raises = RuntimeError("Driver/library version mismatch")
    hub = Hub(gpu_source=source, interval_s=0.05, gpu_period_s=0.02)
    await hub.open()
    await until(lambda: "mismatch" in hub.snapshot().gpu_status.message)
    source.raises = None
    await until(lambda: bool(hub.snapshot().gpus))
    await hub.close()


async def test_old_gpu_readings_carry_their_age() -> None:
    clock = FakeClock()
    source = Gpus(gpu())
    hub = Hub(clock=clock, gpu_source=source, gpu_period_s=0.02)
    await hub.open()
    await until(lambda: source.reads >= 1)
    source.blocked = threading.Event()
    await until(lambda: source.reads >= 2)
    clock.advance(7)
    await hub.tick(PATIENCE_S)
    assert hub.snapshot().gpus[0].age_s == 7
    assert "7 s" in hub.snapshot().gpu_status.message
    source.blocked.set()
    await hub.close()


async def test_a_driver_event_reaches_the_snapshot() -> None:
    source = Gpus(gpu())
    source.frame = GpuFrame(GpuStatus(True), (gpu(),), (gpu_event("Xid 79"),))
    hub = Hub(gpu_source=source, interval_s=0.05, gpu_period_s=0.02)
    await hub.open()
    await until(lambda: bool(hub.snapshot().events))
    await hub.close()
    assert hub.snapshot().events[0].text == "Xid 79"


async def test_state_changes_restarts_and_lost_pages_are_events() -> None:
    clock, counting = FakeClock(), Counting()
    async with serving(counting) as there:
        status = server("a", there.url, ServerState.STARTING)
        hub = Hub(clock=clock, server_statuses=lambda: [status])

        async def step() -> None:
            await hub.tick(PATIENCE_S)
            clock.advance(1)
            counting.tokens += 10

        await step()
        status = server("a", there.url)
        await step()
        counting.started, counting.tokens = 2.0, 0
        await step()
        await step()
        counting.status = 500
        await step()
        counting.status = 200
        await step()
        await hub.close()
    found = [(event.kind, event.text) for event in hub.snapshot().events]
    assert found == [
        ("state", "starting → ready"),
        ("restart", "the server began again: its counters started from zero"),
        ("state", "the metrics page answers 500"),
        ("state", "the metrics page is back"),
    ]


async def test_a_failure_makes_a_gap_in_the_history_and_never_a_zero() -> None:
    clock, counting = FakeClock(), Counting()
    async with serving(counting) as there:
        hub = Hub(clock=clock, server_statuses=lambda: [server("a", there.url)])
        for status in (200, 200, 500, 200):
            counting.status = status
            await hub.tick(PATIENCE_S)
            clock.advance(1)
            counting.tokens += 10
        await hub.close()
    times, values = hub.history.series("server/a/generation_tokens_per_s")
    assert list(times) == [1000, 1001, 1002, 1003]
    assert list(values) == [None, 10, None, 10]


async def test_the_models_own_reading_comes_first_and_the_version_is_filled_in() -> None:
    async def two(asked: Asked, writer: Writer) -> None:
        if asked.path == "/version":
            body = b'{"version":"0.32.0"}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        else:
            write_answer(asked, writer, page(1, "other") + page(2, "mine"))

    async with serving(two) as there:
        hub = Hub(server_statuses=lambda: [server("a", there.url, model="mine")])
        await hub.tick(PATIENCE_S)
        await hub.close()
    view = hub.snapshot().servers[0]
    assert [engine.model_name for engine in view.engines] == ["mine", "other"]
    assert view.status.version == "0.32.0"


async def test_a_verdict_is_asked_for_and_one_that_fails_harms_nothing() -> None:
    def judge(view: ServerView, gpus: Sequence[GpuReading]) -> Verdict | None:
        if view.status.name == "bad":
            raise ZeroDivisionError
        return Verdict("idle", "idle", tpot_floor_s=0.007)

    async with serving(answer(PAGE)) as there:
        hub = Hub(server_statuses=lambda: [server("good", there.url), server("bad", there.url)], verdict=judge)
        await hub.tick(PATIENCE_S)
        await hub.close()
    good, bad = (view.verdict for view in hub.snapshot().servers)
    assert good is not None
    assert bad is not None
    assert (good.bound, bad.bound) == ("idle", "unknown")
    assert list(hub.history.series("server/good/tpot_floor_s")[1]) == [0.007]


async def test_failures_of_the_parts_never_end_the_hub() -> None:
    host = Host()
    host.raises = OSError("no /proc")
    calls = 0

    def statuses() -> Sequence[ServerStatus]:
        nonlocal calls
        calls += 1
        raise RuntimeError("state file unreadable")

    def subscriber(snapshot: Snapshot) -> None:
        raise ValueError("a widget is gone")

    hub = Hub(server_statuses=statuses, host_source=host, interval_s=0.02)
    hub.subscribe(subscriber)
    await hub.open()
    await until(lambda: hub.snapshot().sequence >= 3)
    await hub.close()
    assert calls >= 3


async def test_process_trees_are_read_for_servers_with_processes() -> None:
    async with serving(answer(PAGE)) as there:
        statuses = [server("a", there.url, pids=(1, 2)), server("b", there.url)]
        hub = Hub(server_statuses=lambda: statuses, host_source=Host(), interval_s=0.05)
        await hub.open()
        await until(lambda: bool(hub.snapshot().servers) and hub.snapshot().servers[0].tree is not None)
        await hub.close()
    a, b = hub.snapshot().servers
    assert a.tree is not None
    assert a.tree.processes == 2
    assert b.tree is None


async def energy_hub(there: RawServer, counting: Counting, statuses: list[ServerStatus]) -> float | None:
    clock = FakeClock()
    source = Gpus(gpu(1000.0))
    hub = Hub(clock=clock, gpu_source=source, server_statuses=lambda: statuses, gpu_period_s=0.01)
    await hub.open()
    for _ in range(12):
        reads = source.reads
        await until(lambda reads=reads: source.reads > reads + 1)  # type: ignore[misc]
        await hub.tick(PATIENCE_S)
        clock.advance(1)
        counting.tokens += 100
        source.frame = replace(source.frame, gpus=(gpu(source.frame.gpus[0].energy_j + 500),))  # type: ignore[operator]
    await hub.close()
    return hub.snapshot().servers[0].joules_per_token


async def test_joules_per_token_come_from_the_energy_counter_over_the_window() -> None:
    counting = Counting()
    async with serving(counting) as there:
        joules = await energy_hub(there, counting, [server("a", there.url, gpu_uuids=("GPU-1",))])
    assert joules == pytest.approx(5.0, rel=0.15), "500 J and 100 tokens a second"


@pytest.mark.parametrize(
    ("other", "known"),
    [
        ({"gpu_uuids": ("GPU-1",)}, False),
        ({"gpu_uuids": ("GPU-1", "GPU-2")}, False),
        ({"gpu_uuids": None}, False),
        ({"gpu_uuids": ("GPU-2",)}, True),
        ({"gpu_uuids": None, "version": "0.32.0+cpu"}, True),
        ({"gpu_uuids": None, "host": "gpu-7"}, True),
        ({"gpu_uuids": None, "role": "router"}, True),
        ({"gpu_uuids": ("GPU-1",), "state": ServerState.STOPPED}, True),
    ],
)
async def test_joules_per_token_are_known_only_where_no_other_server_may_share_the_gpu(
    other: dict[str, object], known: bool
) -> None:
    counting = Counting()
    async with serving(counting) as there:
        statuses = [server("a", there.url, gpu_uuids=("GPU-1",)), server("b", "", **other)]
        joules = await energy_hub(there, counting, statuses)
    assert (joules is not None) == known


async def test_once_measures_over_its_window_and_leaves_nothing_open() -> None:
    counting = Counting()

    async def growing(asked: Asked, writer: Writer) -> None:
        await counting(asked, writer)
        counting.tokens += 500

    source = Gpus(gpu())
    async with serving(growing) as there:
        hub = Hub(server_statuses=lambda: [server("a", there.url)], gpu_source=source, host_source=Host())
        snapshot = await hub.once(0.3)
    engine = snapshot.servers[0].engine
    assert engine is not None
    assert 0.29 < engine.window_s < 60, "the two looks are at least the window apart"
    assert engine.generation_tokens_per_s is not None
    assert engine.generation_tokens_per_s > 0
    assert snapshot.gpus
    await until(lambda: source.closed)


async def test_once_does_not_wait_out_its_window_where_nobody_answers() -> None:
    began = time.monotonic()
    hub = Hub(clock=SystemClock(), server_statuses=lambda: [server("a", "http://127.0.0.1:9")])
    snapshot = await hub.once(60)
    assert time.monotonic() - began < 30
    assert snapshot.servers[0].scrape.state == "unreachable"


async def test_closing_twice_or_before_opening_is_harmless() -> None:
    hub = Hub(gpu_source=Gpus(gpu()))
    await hub.close()
    await hub.open()
    await hub.close()
    await hub.close()


async def test_anything_simulated_marks_the_whole_picture() -> None:
    hub = Hub(server_statuses=lambda: [server("a", "", simulated=True)])
    await hub.tick(PATIENCE_S)
    assert hub.snapshot().simulated


async def test_once_asks_a_server_that_did_not_answer_in_time_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Poller.__init__, "__defaults__", (None, 0.2))

    async def hang(asked: Asked, writer: Writer) -> None:
        await asyncio.sleep(3600)

    async with serving(hang) as there:
        hub = Hub(server_statuses=lambda: [server("a", there.url)])
        snapshot = await hub.once(0.1)
        assert len(there.asked) == 1
    assert snapshot.servers[0].scrape.state == "timeout"


async def test_a_simulated_server_that_somebody_else_runs_is_known_by_its_page() -> None:
    async with serving(answer(page(1) + b"vtop_simulated 1.0\n")) as sim, serving(answer(page(1))) as real:
        hub = Hub(server_statuses=lambda: [server("sim", sim.url), server("real", real.url)])
        await hub.tick(PATIENCE_S)
        await hub.close()
    assert [view.status.simulated for view in hub.snapshot().servers] == [True, False]
    assert hub.snapshot().simulated
