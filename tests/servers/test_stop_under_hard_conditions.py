"""Stop means stopped: streaming clients, start-up, stubborn engines, killed API processes, strangers left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fake_servers import QUICK, eventually, fake, free_port, get, gone, running, until

from vtop.clock import SystemClock
from vtop.servers import stopping
from vtop.servers.discovery import leftovers
from vtop.servers.ports import port_is_free
from vtop.servers.process import identify
from vtop.servers.status import ServerState
from vtop.servers.stopping import TreeStopper
from vtop.servers.supervisor import Supervisor
from vtop.servers.tree import ServerTree

S = ServerState


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process with the title of an engine, in a session of its own."""
    process = subprocess.Popen(
        ["VLLM::EngineCore", "-c", "import time; time.sleep(600)"], executable=sys.executable, start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


async def test_a_streaming_client_does_not_keep_the_api_process(supervisor: Supervisor) -> None:
    """The engine goes at SIGTERM, the API process waits for its client for ever: it is killed, and soon."""
    launch = fake()
    await supervisor.start("one", "baseline", [launch])
    ready = await supervisor.wait_ready("one", 30)
    async with httpx.AsyncClient(trust_env=False) as client, client.stream("GET", f"{ready.url}/stream"):
        report = await supervisor.stop("one")
    assert report.stopped, report
    assert any("waits for a client" in step for step in report.steps)
    assert port_is_free("127.0.0.1", launch.port)


async def test_running_requests_get_the_time_that_the_server_gives_them(supervisor: Supervisor) -> None:
    """With a shutdown timeout a stop waits for the answers that are under way, and kills nothing."""
    await supervisor.start("one", "baseline", [fake("--drain", "30", shutdown_timeout_s=30.0)])
    ready = await supervisor.wait_ready("one", 30)
    async with httpx.AsyncClient(trust_env=False) as client, client.stream("GET", f"{ready.url}/stream?40") as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        stop = asyncio.create_task(supervisor.stop("one"))
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    report = await stop
    assert report.stopped, report
    assert not any("SIGKILL" in step for step in report.steps), report.steps


async def test_a_client_that_streams_beyond_the_drain_is_cut(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--drain", "1", shutdown_timeout_s=20.0)])
    ready = await supervisor.wait_ready("one", 30)
    async with httpx.AsyncClient(trust_env=False) as client, client.stream("GET", f"{ready.url}/stream"):
        report = await supervisor.stop("one")
    assert report.stopped, report
    assert any("waits for a client" in step for step in report.steps), report.steps
    assert all(gone(pid) for pid in ready.pids)


async def test_own_streams_are_closed_before_the_signal(supervisor: Supervisor) -> None:
    """With vtop's own streams closed first the server goes by itself, without a SIGKILL."""
    await supervisor.start("one", "baseline", [fake()])
    ready = await supervisor.wait_ready("one", 30)
    client = httpx.AsyncClient(trust_env=False)
    stream = await client.send(client.build_request("GET", f"{ready.url}/stream"), stream=True)

    async def close_stream(name: str) -> None:
        assert name == "one"
        await stream.aclose()
        await client.aclose()

    supervisor.before_stop.append(close_stream)
    report = await supervisor.stop("one")
    assert report.stopped
    assert not any("SIGKILL" in step for step in report.steps), report.steps


async def test_a_stream_that_cannot_be_closed_does_not_prevent_the_stop(supervisor: Supervisor) -> None:
    async def fail(name: str) -> None:
        raise RuntimeError(name)

    supervisor.before_stop.append(fail)
    await supervisor.start("one", "baseline", [fake()])
    assert (await supervisor.stop("one")).stopped


async def test_cancel_during_start_up_escalates_although_sigterm_is_lost(supervisor: Supervisor) -> None:
    launch = fake("--fault", "hang-loading", "--engine", "stubborn", "--worker")
    await supervisor.start("one", "baseline", [launch])
    await eventually(lambda: "nccl" in supervisor.log_path("one").read_text())
    report = await supervisor.stop("one")
    assert report.stopped, report
    assert any(step.startswith("SIGKILL") for step in report.steps)
    assert supervisor.status("one").pids == ()


async def test_a_stop_right_after_the_spawn_leaves_nothing(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--worker")])
    assert (await supervisor.stop("one")).stopped
    assert supervisor.status("one").state is S.STOPPED


async def test_engines_that_ignore_sigterm_are_killed_workers_first(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--engine", "stubborn", "--worker")])
    pids = (await supervisor.wait_ready("one", 30)).pids
    assert len(pids) == 3
    report = await supervisor.stop("one")
    assert report.stopped, report
    killed = next(step for step in report.steps if step.startswith("SIGKILL"))
    assert killed.index("VLLM::Worker_TP0") < killed.index("VLLM::EngineCore")
    assert all(gone(pid) for pid in pids)


async def test_orphans_of_a_killed_api_process_are_told_and_ended_and_strangers_never_touched(
    supervisor: Supervisor, stranger: subprocess.Popen[bytes]
) -> None:
    """The port is free at once, but the engines live on in process groups of their own."""
    launch = fake("--engine", "stubborn", "--worker")
    await supervisor.start("one", "baseline", [launch])
    ready = await supervisor.wait_ready("one", 30)
    assert ready.pid is not None
    os.kill(ready.pid, signal.SIGKILL)
    dead = await until(supervisor, "one", S.FAILED, S.LOST)
    assert len(dead.pids) == 2
    assert "VLLM::EngineCore" in dead.message
    assert "stop it to end them" in dead.message
    assert stranger.pid not in dead.pids
    held = leftovers(supervisor.statuses())
    assert [(left.name, left.pids) for left in held] == [("one", dead.pids)]
    assert held[0].memory_bytes
    report = await supervisor.stop("one")
    assert report.stopped, report
    assert all(gone(pid) for pid in dead.pids)
    assert stranger.poll() is None


async def test_a_start_beside_leftovers_is_refused(supervisor: Supervisor) -> None:
    """An API process that gave up while its engine goes on loading: the engine must go before the next start."""
    await supervisor.start("one", "baseline", [fake("--fault", "leave-engine", "--worker")])
    failed = await until(supervisor, "one", S.FAILED)
    assert failed.diagnosis is not None
    assert failed.diagnosis.code == "engine-ready-timeout"
    await eventually(lambda: len(supervisor.status("one").pids) >= 1)
    with pytest.raises(Exception, match="has left processes"):
        await supervisor.start("one", "baseline", [fake()])
    assert (await supervisor.stop("one")).stopped
    await supervisor.start("one", "baseline", [fake()])
    await supervisor.wait_ready("one", 30)


async def test_a_hung_server_is_stopped(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake()])
    ready = await supervisor.wait_ready("one", 30)
    await get(f"{ready.url}/hang")
    assert (await supervisor.stop("one")).stopped


async def test_two_stops_at_once_are_one(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake()])
    await supervisor.wait_ready("one", 30)
    first, second = await asyncio.gather(supervisor.stop("one"), supervisor.stop("one"))
    assert first == second
    assert first.stopped


async def test_what_cannot_be_killed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals that have no effect (a process that hangs in the kernel): the outcome names the process."""
    with running("-c", "import time; time.sleep(600)") as process:
        identity = identify(process.pid)
        assert identity is not None
        monkeypatch.setattr(stopping, "send_signal", lambda member, number: "")
        quick = stopping.StopPatience(starting_s=0.2, descendants_s=0.1, kill_s=0.2, orphans_s=0.1)
        outcome = await TreeStopper(ServerTree(identity), SystemClock(), starting=True, patience=quick).run("", None)
        assert [member.pid for member in outcome.processes_left] == [process.pid]
        assert str(process.pid) in outcome.left[0]
        assert "not everything is gone" in outcome.steps[-1]


async def test_memory_that_did_not_come_back_is_in_the_report(root: Path) -> None:
    asked: list[set[int]] = []

    def check(pids: set[int]) -> list[str]:
        asked.append(pids)
        return ["GPU 0 still holds 3.1 GiB of it"]

    one = Supervisor(root, patience=QUICK, gpu_check=check)
    await one.open()
    await one.start("one", "baseline", [fake()])
    pid = (await one.wait_ready("one", 30)).pid
    report = await one.stop("one")
    await one.close()
    assert not report.stopped
    assert report.left == ("GPU 0 still holds 3.1 GiB of it",)
    assert pid in asked[0]


async def test_a_container_is_stopped_by_its_own_command(supervisor: Supervisor) -> None:
    port = free_port()
    code = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/shutdown')"
    await supervisor.start("one", "baseline", [fake(port=port, stop_argv=(sys.executable, "-c", code))])
    await supervisor.wait_ready("one", 30)
    report = await supervisor.stop("one")
    assert report.stopped, report
    assert report.steps[0].endswith("to stop it")
    assert not any("SIG" in step for step in report.steps), report.steps


async def test_a_stop_command_that_does_not_work_is_followed_by_signals(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake(stop_argv=("/no/such/runtime", "stop"))])
    await supervisor.wait_ready("one", 30)
    report = await supervisor.stop("one")
    assert report.stopped, report
    assert any("could not be run" in step for step in report.steps)
