"""What becomes of a READY server: dead engines, hung servers, crashes with exit code 0, strangers on its port."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from fake_servers import FAKE, fake, get, running, until

from vtop.clock import FakeClock
from vtop.servers import life
from vtop.servers.ports import Listeners, PortOwner, is_answered_by_another
from vtop.servers.status import ServerState
from vtop.servers.supervisor import Supervisor
from vtop.servers.watching import HealthKind, HealthSample, HealthVerdict, HealthWatch

S = ServerState
OK = HealthSample(HealthKind.ANSWERED, 200, 0.01)
LATE = HealthSample(HealthKind.TIMED_OUT, took_s=2.0)
CLOSED = HealthSample(HealthKind.REFUSED)


def feed(watch: HealthWatch, clock: FakeClock, sample: HealthSample, seconds: int) -> HealthVerdict:
    """The verdict after so many looks, one a second."""
    verdict = watch.feed(sample)
    for _ in range(seconds):
        clock.advance(1.0)
        verdict = watch.feed(sample)
    return verdict


def test_one_lost_answer_neither_alarms_nor_clears() -> None:
    clock = FakeClock()
    watch = HealthWatch(clock)
    watch.feed(OK)
    assert watch.feed(LATE) == HealthVerdict(False)
    watch.feed(HealthSample(HealthKind.ANSWERED, 503))
    assert watch.feed(LATE).degraded


def test_no_answer_for_ten_seconds_is_hung() -> None:
    clock = FakeClock()
    watch = HealthWatch(clock)
    assert not feed(watch, clock, LATE, 7).degraded
    verdict = feed(watch, clock, LATE, 2)
    assert verdict.degraded
    assert verdict.message == "hung: accepts connections but has not answered for 11 s"
    assert watch.feed(OK) == HealthVerdict(False)


def test_a_closed_port_of_a_living_process_is_said() -> None:
    clock = FakeClock()
    watch = HealthWatch(clock)
    assert not feed(watch, clock, CLOSED, 4).degraded
    assert "port has been closed for 5 s" in feed(watch, clock, CLOSED, 1).message


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_error_of_health_is_a_dead_engine_at_once(status: int) -> None:
    """503 from 0.16 on, 500 before."""
    verdict = HealthWatch(FakeClock()).feed(HealthSample(HealthKind.ANSWERED, status))
    assert verdict.degraded
    assert verdict.engine_dead
    assert str(status) in verdict.message


def test_slow_health_is_said_and_is_no_fault() -> None:
    verdict = HealthWatch(FakeClock()).feed(HealthSample(HealthKind.ANSWERED, 200, 1.44))
    assert verdict == HealthVerdict(False, "/health answers slowly (1.4 s)")


async def test_engine_death_is_degraded_then_failed_although_the_exit_code_is_0(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake()])
    ready = await supervisor.wait_ready("one", 30)
    engine = next(pid for pid in ready.pids if psutil.Process(pid).cmdline()[0] == "VLLM::EngineCore")
    os.kill(engine, signal.SIGKILL)
    degraded = await until(supervisor, "one", S.DEGRADED)
    assert "engine is dead" in degraded.message
    failed = await until(supervisor, "one", S.FAILED)
    assert "exit code 0 in spite of that" in failed.message
    assert failed.diagnosis is not None
    assert failed.diagnosis.code == "engine-died"


async def test_a_hung_server_is_degraded(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtop.servers.watching.HUNG_AFTER_S", 2.5)
    await supervisor.start("one", "baseline", [fake()])
    ready = await supervisor.wait_ready("one", 30)
    await get(f"{ready.url}/hang")
    hung = await until(supervisor, "one", S.DEGRADED)
    assert hung.message.startswith("hung: accepts connections but has not answered")
    assert hung.pid == ready.pid


async def test_a_server_that_somebody_else_ended_is_lost(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake()])
    ready = await supervisor.wait_ready("one", 30)
    assert ready.pid is not None
    os.kill(ready.pid, signal.SIGTERM)
    lost = await until(supervisor, "one", S.LOST)
    assert "its process is gone (exit code 0)" in lost.message
    assert (await supervisor.stop("one")).stopped


async def test_a_server_that_the_kernel_killed_is_failed(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--engine", "")])
    ready = await supervisor.wait_ready("one", 30)
    assert ready.pid is not None
    os.kill(ready.pid, signal.SIGKILL)
    failed = await until(supervisor, "one", S.FAILED)
    assert failed.diagnosis is not None
    assert failed.diagnosis.code == "killed"


async def test_restarted_by_somebody_else(supervisor: Supervisor) -> None:
    """Ours is ended and another one serves on its port: ours is LOST, and the other is never taken for it."""
    launch = fake("--engine", "")
    await supervisor.start("one", "baseline", [launch])
    ready = await supervisor.wait_ready("one", 30)
    assert ready.pid is not None
    process = psutil.Process(ready.pid)
    process.suspend()
    process.kill()
    with running(str(FAKE), "--port", str(launch.port), "--engine", "", "--boot", "0") as other:
        gone = await until(supervisor, "one", S.LOST, S.FAILED)
        assert gone.pid is None
        report = await supervisor.stop("one")
        assert report.stopped
        assert other.poll() is None


async def test_another_server_on_the_port_of_a_ready_one_is_told(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours lives and holds its GPU, but what answers at its address is not it."""
    monkeypatch.setattr(life, "OWNER_EVERY_S", 0.2)
    await supervisor.start("one", "baseline", [fake("--engine", "")])
    ready = await supervisor.wait_ready("one", 30)
    stranger = Listeners(ours=False, stranger=PortOwner(4711, "python old_server.py"))
    monkeypatch.setattr(life, "listeners", lambda port, tree: stranger)
    told = await until(supervisor, "one", S.DEGRADED, message="pid 4711 (python old_server.py)")
    assert told.message == f"port {ready.port} is answered by another server (pid 4711 (python old_server.py))"
    assert is_answered_by_another(told.message)
    assert told.pid == ready.pid
