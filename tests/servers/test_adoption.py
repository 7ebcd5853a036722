"""The next vtop: after a kill, a restart of the machine, beside another vtop, with damaged or newer records."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from fake_servers import DEADLINE_S, FAKE, QUICK, eventually, fake, free_port, gone, until

from vtop.errors import VtopError
from vtop.servers import adoption
from vtop.servers.process import Place, ProcessIdentity, alive, here, identify
from vtop.servers.state_files import ServerRecord, StateFolder
from vtop.servers.status import ServerState
from vtop.servers.supervisor import Supervisor

S = ServerState
Open = Callable[[], Awaitable[Supervisor]]

VTOP = """
import asyncio, sys
from pathlib import Path
from vtop.servers.supervisor import Supervisor
from vtop.vllm.launch import LaunchCommand

async def main():
    root, fake, port, boot, wait = sys.argv[1:]
    one = Supervisor(Path(root))
    await one.open()
    argv = (sys.executable, fake, "--port", port, "--boot", boot, "--worker")
    command = LaunchCommand(argv=argv, served_name="tiny", host="127.0.0.1", port=int(port))
    await one.start("one", "baseline", [command])
    if wait == "ready":
        await one.wait_ready("one", 60)
    print("there", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def vtop_process(root: Path, *, boot: float = 0.1, wait: str = "ready") -> subprocess.Popen[str]:
    """A process that starts a server as vtop does, then stays."""
    words = [sys.executable, "-c", VTOP, str(root), str(FAKE), str(free_port()), str(boot), wait]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=DEADLINE_S)


def edit(root: Path, name: str = "one", **fields: Any) -> None:
    """Changes fields of a record on disk."""
    path = root / name / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def record_of(root: Path, name: str = "one") -> dict[str, Any]:
    return dict(json.loads((root / name / "state.json").read_text()))


@pytest.fixture
async def opened(root: Path) -> AsyncIterator[Open]:
    """Opens supervisors one after the other; the last one ends what runs."""
    made: list[Supervisor] = []

    async def make() -> Supervisor:
        one = Supervisor(root, patience=QUICK)
        await one.open()
        made.append(one)
        return one

    yield make
    if made:
        await made[-1].stop_all()
    for one in made:
        await one.close()


async def test_a_vtop_that_was_killed_leaves_the_server_to_the_next(root: Path, opened: Open) -> None:
    first = vtop_process(root)
    leader = record_of(root)["leader"]["pid"]
    kill(first)
    second = await opened()
    status = second.status("one")
    assert status.state is S.READY
    assert status.pid == leader
    assert len(status.pids) >= 3
    assert (await second.stop("one")).stopped
    assert all(gone(pid) for pid in status.pids)


async def test_killed_in_the_middle_of_a_start(root: Path, opened: Open) -> None:
    """The start goes on without vtop; phases are read again from the log."""
    kill(vtop_process(root, boot=1.0, wait="no"))
    second = await opened()
    ready = await until(second, "one", S.READY)
    assert ready.progress is not None
    assert "weights" in [phase for phase, _ in ready.progress.done]


async def test_orphans_are_found_although_no_vtop_saw_them(root: Path, opened: Open) -> None:
    """vtop left right after the spawn; engines that came later are known by their session and mark."""
    kill(vtop_process(root, boot=60, wait="no"))
    leader = record_of(root)["leader"]["pid"]
    await eventually(lambda: children_of(leader) >= 1)
    os.kill(leader, signal.SIGKILL)
    second = await opened()
    failed = await until(second, "one", S.FAILED)
    assert leader not in failed.pids
    assert len(failed.pids) >= 1
    assert (await second.stop("one")).stopped


def children_of(pid: int) -> int:
    return len(psutil.Process(pid).children())


async def test_exit_code_of_an_adopted_server_is_unknown_and_said_so(root: Path, opened: Open) -> None:
    kill(vtop_process(root))
    second = await opened()
    pid = second.status("one").pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    lost = await until(second, "one", S.LOST)
    assert "exit code unknown" in lost.message


async def test_died_while_no_vtop_looked(root: Path, opened: Open) -> None:
    kill(vtop_process(root))
    leader = record_of(root)["leader"]["pid"]
    os.kill(leader, signal.SIGTERM)
    await eventually(lambda: gone(leader))
    second = await opened()
    assert (await until(second, "one", S.LOST)).pid is None


async def test_a_recycled_pid_is_never_signalled(root: Path, opened: Open) -> None:
    """The record's pid belongs to a stranger by now: other creation time, so it is not ours, and it lives on."""
    kill(vtop_process(root))
    first = await opened()
    assert (await first.stop("one")).stopped
    await first.close()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # noqa: ASYNC220
    try:
        identity = identify(stranger.pid)
        assert identity is not None
        recycled = {"pid": stranger.pid, "started": identity.started - 100.0, "boot": identity.boot, "title": "python"}
        edit(root, leader=recycled, processes=[recycled], state="ready")
        second = await opened()
        lost = await until(second, "one", S.LOST, S.FAILED)
        assert lost.pids == ()
        assert (await second.stop("one")).stopped
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_after_a_restart_of_the_machine(root: Path, opened: Open) -> None:
    first = await opened()
    await first.start("one", "baseline", [fake()])
    await first.wait_ready("one", 30)
    await first.stop("one")
    await first.close()
    old = {**record_of(root)["place"], "boot": "another-boot"}
    edit(root, place=old, state="ready")
    status = (await opened()).status("one")
    assert status.state is S.STOPPED
    assert status.message == "machine was restarted"


async def test_a_server_of_another_machine_is_left_alone(root: Path, opened: Open) -> None:
    """A home directory that several hosts share."""
    first = await opened()
    await first.start("one", "baseline", [fake()])
    await first.stop("one")
    await first.close()
    edit(root, place={"machine": "gpu-host-7", "boot": "another-boot"}, state="ready")
    before = record_of(root)
    second = await opened()
    assert second.statuses() == ()
    assert "belongs to another machine (gpu-host-7)" in second.problems()[0].what
    with pytest.raises(VtopError, match="gpu-host-7"):
        await second.stop("one")
    assert record_of(root) == before


def test_places() -> None:
    now = here()
    assert adoption.whereabouts(now) is adoption.Whereabouts.HERE
    renamed = Place("renamed", now.boot, now.namespace)
    assert adoption.whereabouts(renamed) is adoption.Whereabouts.HERE
    container = Place(now.machine, now.boot, "pid:[1]")
    assert adoption.whereabouts(container) is adoption.Whereabouts.RESTARTED


async def test_a_newer_record_is_left_alone(root: Path, opened: Open) -> None:
    folder = root / "one"
    folder.mkdir()
    content = json.dumps({"format": 99, "name": "one", "shiny": True})
    (folder / "state.json").write_text(content)
    one = await opened()
    assert one.statuses() == ()
    assert "newer vtop" in one.problems()[0].what
    with pytest.raises(VtopError, match="newer vtop"):
        await one.start("one", "baseline", [fake()])
    assert (folder / "state.json").read_text() == content


@pytest.mark.parametrize("content", ["", '{"format": 1, "na', "[]", '{"hello": 1}', '{"format": 1, "name": 5}', "\0\0"])
async def test_half_written_and_foreign_records_block_only_themselves(root: Path, opened: Open, content: str) -> None:
    folder = root / "broken"
    folder.mkdir()
    (folder / "state.json").write_text(content)
    one = await opened()
    assert len(one.problems()) == 1
    assert "broken" in one.problems()[0].what
    await one.start("good", "baseline", [fake()])
    assert (await one.wait_ready("good", 30)).state is S.READY


async def test_processes_of_a_damaged_record_can_still_be_ended(root: Path, opened: Open) -> None:
    """The record is lost while the server lives: its processes carry the folder in their mark."""
    kill(vtop_process(root))
    (root / "one" / "state.json").write_text('{"format": 1, "na')
    second = await opened()
    status = second.status("one")
    assert status.state is S.LOST
    assert len(status.pids) >= 3
    assert (await second.stop("one")).stopped


async def test_fields_of_a_later_vtop_are_kept(root: Path, opened: Open) -> None:
    kill(vtop_process(root))
    edit(root, added_later={"a": 1})
    second = await opened()
    assert second.status("one").state is S.READY
    await second.stop("one")
    assert record_of(root)["added_later"] == {"a": 1}
    assert record_of(root)["state"] == "stopped"


async def test_killed_between_decision_and_spawn(root: Path, opened: Open) -> None:
    first = await opened()
    await first.start("one", "baseline", [fake()])
    await first.stop("one")
    await first.close()
    edit(root, leader=None, processes=[], state="starting", ready_wall_s=None)
    status = (await opened()).status("one")
    assert status.state is S.FAILED
    assert "interrupted" in status.message


async def test_killed_between_spawn_and_record(root: Path, opened: Open) -> None:
    """The pid was never written down; the mark finds the process."""
    kill(vtop_process(root, boot=1.0, wait="no"))
    leader = record_of(root)["leader"]["pid"]
    edit(root, leader=None, processes=[])
    second = await opened()
    assert (await until(second, "one", S.READY)).pid == leader


async def test_an_interrupted_stop_can_be_repeated(root: Path, opened: Open) -> None:
    kill(vtop_process(root))
    gone_vtop = {"pid": os.getpid(), "started": 1.0, "boot": here().boot}
    edit(root, state="stopping", stopper=gone_vtop)
    second = await opened()
    assert second.status("one").state in (S.DEGRADED, S.READY)
    assert (await second.stop("one")).stopped


async def test_two_vtops_see_each_others_servers(root: Path) -> None:
    """What one starts and stops, the other shows; a stop by one is no loss for the other."""
    one, other = Supervisor(root, patience=QUICK), Supervisor(root, patience=QUICK)
    await one.open()
    await other.open()
    seen: list[ServerState] = []
    other.on_change(lambda status: seen.append(status.state))
    await one.start("one", "baseline", [fake()])
    await eventually(lambda: bool(other.statuses()))
    await until(other, "one", S.READY)
    await until(one, "one", S.READY)
    with pytest.raises(VtopError, match="exists already"):
        await other.start("one", "baseline", [fake()])
    assert (await one.stop("one")).stopped
    await until(other, "one", S.STOPPED)
    assert not {S.FAILED, S.LOST} & set(seen)
    await other.start("one", "baseline", [fake()])
    await other.wait_ready("one", 30)
    await until(one, "one", S.READY)
    assert (await one.stop("one")).stopped
    assert (await other.stop("one")).stopped
    await one.close()
    await other.close()


async def test_two_vtops_start_the_same_name_at_once(root: Path) -> None:
    """One of them wins; the other is told, and no second process exists."""
    one, other = Supervisor(root, patience=QUICK), Supervisor(root, patience=QUICK)
    await one.open()
    await other.open()
    starts = (vtop.start("one", "baseline", [fake("--engine", "")]) for vtop in (one, other))
    results = await asyncio.gather(*starts, return_exceptions=True)
    assert sorted(type(result) for result in results if result is not None) == [VtopError]
    await until(one, "one", S.READY) if results[0] is None else await until(other, "one", S.READY)
    winner = one if results[0] is None else other
    assert len(winner.status("one").pids) == 1
    assert (await winner.stop("one")).stopped
    await one.close()
    await other.close()


async def test_a_disk_that_fills_up_later_is_told_and_the_server_is_watched_on(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await supervisor.start("one", "baseline", [fake("--boot", "1")])

    def full(self: StateFolder, record: ServerRecord) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(StateFolder, "write", full)
        assert (await supervisor.wait_ready("one", 30)).state is S.READY
        assert "cannot be written: No space left on device" in supervisor.problems()[0].what
    assert (await supervisor.stop("one")).stopped
    assert supervisor.problems() == ()


async def test_closing_is_quick_with_a_hung_server_and_leaves_it(root: Path) -> None:
    one = Supervisor(root, patience=QUICK)
    await one.open()
    await one.start("one", "baseline", [fake("--answer-s", "30")])
    await until(one, "one", S.STARTING)
    pid = one.status("one").pid
    began = time.monotonic()
    await one.close()
    assert time.monotonic() - began < 2.0
    two = Supervisor(root, patience=QUICK)
    await two.open()
    assert two.status("one").pid == pid
    assert (await two.stop("one")).stopped
    await two.close()


async def test_forget_only_what_has_ended(supervisor: Supervisor, root: Path) -> None:
    await supervisor.start("one", "baseline", [fake()])
    with pytest.raises(VtopError, match="still has processes"):
        await supervisor.forget("one")
    await supervisor.stop("one")
    await supervisor.forget("one")
    assert supervisor.statuses() == ()
    assert os.listdir(root) == []
    with pytest.raises(VtopError, match="no server named one"):
        await supervisor.stop("one")


async def test_what_another_vtop_has_just_started_again_is_not_forgotten(root: Path, supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake()])
    await supervisor.stop("one")
    other = Supervisor(root, patience=QUICK)
    await other.open()
    assert other.status("one").state is S.STOPPED
    await supervisor.start("one", "baseline", [fake()])
    with pytest.raises(VtopError, match="still has processes"):
        await other.forget("one")
    await other.close()
    assert (await supervisor.wait_ready("one", 30)).state is S.READY
    assert (await supervisor.stop("one")).stopped


async def test_a_stop_of_what_another_vtop_has_just_forgotten_says_so(root: Path, supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake()])
    await supervisor.stop("one")
    other = Supervisor(root, patience=QUICK)
    await other.open()
    await supervisor.forget("one")
    with pytest.raises(VtopError, match=r"another vtop has just forgotten one|no server named one"):
        await other.stop("one")
    await other.close()


async def test_a_server_is_stopped_although_its_lock_cannot_be_opened(root: Path, supervisor: Supervisor) -> None:
    """As on a disk that has become read-only."""
    await supervisor.start("one", "baseline", [fake()])
    (root / "one" / "lock").unlink()
    (root / "one" / "lock").mkdir()
    assert (await supervisor.stop("one")).stopped


def test_identity_survives_json_and_knows_its_process() -> None:
    identity = identify(os.getpid())
    assert identity is not None
    assert alive(msgspec.json.decode(msgspec.json.encode(identity), type=ProcessIdentity))
