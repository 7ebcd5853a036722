"""Prefill, decode and router as one server."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from fake_servers import FAKE, QUICK, eventually, fake, free_port, get, until

from vtop.errors import VtopError
from vtop.servers import deployment
from vtop.servers.status import ServerState
from vtop.servers.supervisor import Supervisor
from vtop.vllm.launch import LaunchCommand

S = ServerState


def pair(*, router_words: tuple[str, ...] = (), idle_prefill: bool = False, boot: str = "0.1") -> list[LaunchCommand]:
    """A router that passes each request to both halves (or leaves the prefill server out)."""
    prefill = fake("--engine", "", "--boot", boot, role="prefill")
    decode = fake("--engine", "", role="decode")
    halves = [decode] if idle_prefill else [prefill, decode]
    forward = [word for half in halves for word in ("--forward", f"http://127.0.0.1:{half.port}")]
    router = fake("--engine", "", *forward, *router_words, role="router", max_model_len=None)
    return [router, decode, prefill]


async def test_ready_when_a_request_went_through_both_and_stopped_as_one(supervisor: Supervisor) -> None:
    await supervisor.start("pd", "pd-disaggregation", pair())
    ready = await supervisor.wait_ready("pd", 40)
    assert ready.role == "router"
    statuses = {status.name: status for status in supervisor.statuses()}
    assert set(statuses) == {"pd", "pd.prefill", "pd.decode"}
    assert {status.deployment for status in statuses.values()} == {"pd"}
    assert all(status.state is S.READY for status in statuses.values())
    served = await get(f"{statuses['pd.prefill'].url}/metrics")
    assert int(served.split()[1]) > 300
    report = await supervisor.stop("pd")
    assert report.stopped, report
    assert report.steps[0].startswith("pd: SIGTERM")
    assert {status.state for status in supervisor.statuses()} == {S.STOPPED}
    await supervisor.forget("pd")
    assert supervisor.statuses() == ()


async def test_the_router_waits_for_its_halves(supervisor: Supervisor) -> None:
    await supervisor.start("pd", "pd-disaggregation", pair(boot="3"))
    waiting = await until(supervisor, "pd", S.STARTING, message="waits for")
    assert "pd.prefill (starting)" in waiting.message
    await supervisor.wait_ready("pd", 40)


async def test_not_ready_when_prefill_served_nothing(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "_COUNTED_WITHIN_S", 0.5)
    await supervisor.start("pd", "pd-disaggregation", pair(idle_prefill=True))
    status = await until(supervisor, "pd", S.STARTING, message="prefill served nothing")
    assert status.message == "a request was answered, but prefill served nothing of it"


async def test_the_loss_of_one_half_is_survived_and_named(supervisor: Supervisor) -> None:
    await supervisor.start("pd", "pd-disaggregation", pair())
    await supervisor.wait_ready("pd", 40)
    pid = supervisor.status("pd.prefill").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    degraded = await until(supervisor, "pd", S.DEGRADED)
    assert degraded.message.startswith("prefill (pd.prefill) is failed")
    assert supervisor.status("pd.decode").state is S.READY
    assert (await supervisor.stop("pd")).stopped


async def test_a_half_that_fails_fails_the_start(supervisor: Supervisor) -> None:
    router, decode, _ = pair()
    prefill = fake("--engine", "", "--fault", "die-loading", role="prefill")
    await supervisor.start("pd", "pd-disaggregation", [router, decode, prefill])
    with pytest.raises(VtopError, match=r"pd\.prefill is failed: .*No available memory"):
        await supervisor.wait_ready("pd", 40)
    assert (await supervisor.stop("pd")).stopped


async def test_a_router_that_gave_up_too_early_is_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    """Some routers do not wait for their workers."""
    router, decode, prefill = pair(boot="2")
    counter = tmp_path / "starts"
    script = tmp_path / "router.py"
    script.write_text(
        "import runpy, sys, urllib.request\n"
        f"open({str(counter)!r}, 'a').write('x')\n"
        f"urllib.request.urlopen('http://127.0.0.1:{prefill.port}/health')\n"
        f"runpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    argv = (sys.executable, str(script), *router.argv[2:])
    again = fake(port=router.port, argv=argv, role="router", max_model_len=None)
    await supervisor.start("pd", "pd-disaggregation", [again, decode, prefill])
    await supervisor.wait_ready("pd", 40)
    assert counter.read_text() == "xx"


async def test_a_member_that_cannot_start_takes_the_others_back(supervisor: Supervisor) -> None:
    _, decode, prefill = pair()
    router = fake(argv=("/no/such/vllm-router",), role="router")
    with pytest.raises(VtopError, match="cannot run /no/such/vllm-router"):
        await supervisor.start("pd", "pd-disaggregation", [router, decode, prefill])
    assert all(status.pids == () for status in supervisor.statuses())


async def test_the_next_vtop_adopts_all_of_it(root: Path) -> None:
    first = Supervisor(root, patience=QUICK)
    await first.open()
    await first.start("pd", "pd-disaggregation", pair(boot="1"))
    await first.close()
    second = Supervisor(root, patience=QUICK)
    await second.open()
    assert (await second.wait_ready("pd", 40)).role == "router"
    pids = [pid for status in second.statuses() for pid in status.pids]
    assert len(pids) == 3
    await second.stop_all()
    await eventually(lambda: not any(map(psutil.pid_exists, pids)))
    await second.close()


def test_names_of_members() -> None:
    commands = [fake(role="decode"), fake(role="prefill"), fake(role="decode"), fake(role="router")]
    assert deployment.member_names("pd", commands) == ["pd.decode-1", "pd.prefill", "pd.decode-2", "pd"]
    assert [commands[index].role for index in deployment.spawn_order(commands)] == [
        "prefill",
        "decode",
        "decode",
        "router",
    ]
    assert deployment.member_names("one", [fake()]) == ["one"]
    with pytest.raises(VtopError, match="exactly one router"):
        deployment.member_names("pd", [fake(role="prefill"), fake(role="decode", port=free_port())])


async def test_members_of_an_earlier_start_are_no_part_of_the_next(supervisor: Supervisor) -> None:
    """They lie in folders of their own, and a stop of the name went to them instead of to the server that runs."""
    await supervisor.start("pd", "pd-disaggregation", pair())
    assert (await supervisor.stop("pd")).stopped
    await supervisor.start("pd", "baseline", [fake("--engine", "")])
    assert [status.name for status in supervisor.statuses()] == ["pd"]
    ready = await supervisor.wait_ready("pd", 40)
    assert (await supervisor.stop("pd")).stopped
    assert ready.pid is not None
    assert not psutil.pid_exists(ready.pid)


async def test_a_single_server_is_stopped_although_members_of_an_earlier_start_are_still_listed(
    supervisor: Supervisor,
) -> None:
    await supervisor.start("pd", "pd-disaggregation", pair())
    await supervisor.stop("pd")
    await supervisor.start("one", "baseline", [fake("--engine", "")])
    # As an earlier vtop left it: halves that name a deployment whose own record is of a single server.
    supervisor._registry.servers["pd.prefill"].record.deployment = "one"
    ready = await supervisor.wait_ready("one", 40)
    report = await supervisor.stop("one")
    assert report.stopped
    assert any("SIGTERM" in step for step in report.steps)
    assert ready.pid is not None
    assert not psutil.pid_exists(ready.pid)


async def test_a_member_of_an_earlier_start_that_still_runs_is_not_dropped(supervisor: Supervisor) -> None:
    await supervisor.start("pd", "pd-disaggregation", pair())
    await supervisor.wait_ready("pd", 40)
    assert (await supervisor.stop("pd.prefill")).stopped
    assert (await supervisor.stop("pd.prefill")).port_checked is False
    router = supervisor._registry.servers["pd"]
    os.kill(router.tree.alive()[0].pid, signal.SIGKILL)
    await until(supervisor, "pd", S.FAILED, S.LOST)
    with pytest.raises(VtopError, match=r"pd\.decode still has processes"):
        await supervisor.start("pd", "baseline", [fake("--engine", "")])
    assert (await supervisor.stop("pd")).stopped


async def test_a_name_that_leaves_no_room_for_its_members_starts_nothing(supervisor: Supervisor, root: Path) -> None:
    """A folder with a longer name would be seen by no vtop, and its process be out of reach."""
    name = "n" * 60
    with pytest.raises(VtopError, match=r"cannot be a server's name"):
        await supervisor.start(name, "pd-disaggregation", pair())
    assert os.listdir(root) == []
