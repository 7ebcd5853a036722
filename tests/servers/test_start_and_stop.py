"""The basic way: start, READY after a real answer, stop that verifies, adoption by the next supervisor."""

from __future__ import annotations

from pathlib import Path

from fake_servers import QUICK, fake, get, gone, until

from vtop.servers.ports import port_is_free
from vtop.servers.status import ServerState, ServerStatus
from vtop.servers.supervisor import Supervisor

S = ServerState


async def test_ready_comes_after_a_real_answer_of_forty_tokens(supervisor: Supervisor) -> None:
    seen: list[ServerStatus] = []
    supervisor.on_change(seen.append)
    await supervisor.start("one", "baseline", [fake("--worker")])
    assert supervisor.status("one").state is S.STARTING
    ready = await supervisor.wait_ready("one", 30)
    assert ready.state is S.READY
    assert seen[0].state is S.STARTING
    assert seen[-1].state is S.READY
    prompt = await get(f"{ready.url}/first-prompt")
    assert len(prompt.split()) == 40
    assert ready.progress is not None
    assert ready.progress.phase == "ready"
    assert {"weights", "kv-cache"} <= {phase for phase, _ in ready.progress.done}


async def test_stop_ends_the_whole_tree_and_frees_the_port(supervisor: Supervisor) -> None:
    launch = fake("--worker")
    await supervisor.start("one", "baseline", [launch])
    await supervisor.wait_ready("one", 30)
    pids = supervisor.status("one").pids
    report = await supervisor.stop("one")
    assert report.stopped, report
    assert report.left == ()
    assert len(pids) >= 2
    assert all(gone(pid) for pid in pids)
    assert port_is_free("127.0.0.1", launch.port)
    assert supervisor.status("one").state is S.STOPPED
    again = await supervisor.stop("one")
    assert again.stopped


async def test_the_next_supervisor_adopts_a_running_server(root: Path) -> None:
    first = Supervisor(root, patience=QUICK)
    await first.open()
    await first.start("one", "baseline", [fake("--worker")])
    ready = await first.wait_ready("one", 30)
    await first.close()

    second = Supervisor(root, patience=QUICK)
    await second.open()
    adopted = second.status("one")
    assert adopted.state is S.READY
    assert adopted.pid == ready.pid
    assert adopted.owned
    assert adopted.preset == "baseline"
    assert ready.progress is not None
    assert adopted.progress is not None
    assert adopted.progress.done == ready.progress.done
    assert (await second.stop("one")).stopped
    await second.close()


async def test_a_start_is_adopted_in_the_middle(root: Path) -> None:
    first = Supervisor(root, patience=QUICK)
    await first.open()
    await first.start("one", "baseline", [fake("--boot", "1.5")])
    await first.close()

    second = Supervisor(root, patience=QUICK)
    await second.open()
    assert second.status("one").state is S.STARTING
    assert (await until(second, "one", S.READY)).pid is not None
    assert (await second.stop("one")).stopped
    await second.close()
