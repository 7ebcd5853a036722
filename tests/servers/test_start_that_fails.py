"""Starts that go wrong: each is told with its cause, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import Collection
from pathlib import Path

import psutil
import pytest
from fake_servers import FAKE, QUICK, eventually, fake, free_port, running, until

from vtop.errors import UsageError, VtopError
from vtop.servers import readiness
from vtop.servers.ports import Listeners, port_is_free
from vtop.servers.state_files import ServerRecord, StateFolder
from vtop.servers.status import ServerState
from vtop.servers.supervisor import Supervisor
from vtop.vllm.launch import LaunchCommand

S = ServerState


def script(path: Path, text: str) -> str:
    """An executable file."""
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def all_files(root: Path) -> bytes:
    """The content of everything below a directory."""
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


async def test_death_while_loading_is_failed_with_cause_and_remedy(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--fault", "die-loading", "--engine", "")])
    with pytest.raises(VtopError, match="No available memory for the cache blocks") as caught:
        await supervisor.wait_ready("one", 30)
    assert "gpu_memory_utilization" in caught.value.remedy
    status = supervisor.status("one")
    assert status.state is S.FAILED
    assert status.diagnosis is not None
    assert status.diagnosis.code == "kv-cache-no-room"


async def test_who_has_the_rest_of_the_gpu_is_named_with_the_cause(root: Path) -> None:
    """Asked with the GPUs of this server and without its own processes, which the driver lists a moment longer."""
    asked: list[tuple[Collection[str] | None, Collection[int]]] = []

    def users(uuids: Collection[str] | None, without: Collection[int]) -> str:
        asked.append((uuids, without))
        return "python (pid 4711) holds 16.0 GiB of GPU 0"

    one = Supervisor(root, patience=QUICK, gpu_users=users)
    await one.open()
    try:
        await one.start("one", "baseline", [fake("--fault", "no-free-memory", gpus=("GPU-1",))])
        failed = await until(one, "one", S.FAILED)
    finally:
        await one.stop_all()
        await one.close()
    assert failed.diagnosis is not None
    assert failed.diagnosis.code == "gpu-memory-not-free"
    assert ("gpu_memory_utilization", "0.66") in failed.diagnosis.remedies[0].overrides
    assert any("python (pid 4711)" in remedy.text for remedy in failed.diagnosis.remedies)
    assert asked[0][0] == ["GPU-1"]
    assert len(asked[0][1]) >= 1


async def test_exit_code_0_after_a_failed_start_is_still_failed(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--fault", "exit-0-loading", "--engine", "")])
    status = await until(supervisor, "one", S.FAILED)
    assert "No available memory" in status.message


async def test_worker_that_dies_on_the_first_request_behind_a_healthy_health(supervisor: Supervisor) -> None:
    """READY needs an answer, not a 200 of /health."""
    seen: list[ServerState] = []
    supervisor.on_change(lambda status: seen.append(status.state))
    await supervisor.start("one", "baseline", [fake("--fault", "die-on-request", "--engine", "")])
    await until(supervisor, "one", S.FAILED)
    assert S.READY not in seen


async def test_port_taken_names_the_owner_and_starts_nothing(supervisor: Supervisor, root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(VtopError, match=rf"port {port} is taken by pid {os.getpid()} \(.*python") as caught:
            await supervisor.start("one", "baseline", [fake(port=port)])
    assert "port=auto" in caught.value.remedy
    assert supervisor.statuses() == ()
    assert os.listdir(root) == []


async def test_port_of_a_server_that_is_still_starting_is_taken(supervisor: Supervisor) -> None:
    """It has not bound its port yet, but it will."""
    port = free_port()
    await supervisor.start("one", "baseline", [fake("--boot", "60", port=port)])
    with pytest.raises(VtopError, match="taken by vtop's server one"):
        await supervisor.start("two", "baseline", [fake(port=port)])


async def test_name_taken(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--boot", "60")])
    with pytest.raises(VtopError, match="exists already"):
        await supervisor.start("one", "baseline", [fake()])


async def test_a_failed_server_may_be_started_again_and_its_log_is_kept(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--fault", "die-loading", "--engine", "")])
    await until(supervisor, "one", S.FAILED)
    await supervisor.start("one", "baseline", [fake()])
    ready = await supervisor.wait_ready("one", 30)
    assert ready.diagnosis is None
    previous = supervisor.log_path("one").with_name("previous.log")
    assert "No available memory" in previous.read_text()
    assert "No available memory" not in supervisor.log_path("one").read_text()


@pytest.mark.parametrize("name", ["", "../up", "a b", ".hidden", "x" * 65])
async def test_names_that_cannot_be_folders(supervisor: Supervisor, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a server's name"):
        await supervisor.start(name, "baseline", [fake()])


async def test_command_that_cannot_be_executed(supervisor: Supervisor) -> None:
    launch = LaunchCommand(argv=("/no/such/vllm", "serve"), served_name="tiny", host="127.0.0.1", port=free_port())
    with pytest.raises(VtopError, match="cannot run /no/such/vllm: No such file"):
        await supervisor.start("one", "baseline", [launch])
    assert supervisor.status("one").state is S.FAILED


BROKEN = {
    "missing": None,
    "interpreter": "#!/no/such/python\n",
    "package": "#!/bin/sh\necho 'importlib.metadata.PackageNotFoundError: No package metadata was found for vllm' >&2\n"
    "exit 1\n",
    "not found": "#!/bin/sh\nexec /no/such/command\n",
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_command_falls_back_once(supervisor: Supervisor, tmp_path: Path, kind: str) -> None:
    """`vllm` is broken in its many ways; `python -m ...` is tried instead, and the log says so."""
    text = BROKEN[kind]
    argv = ("/no/such/vllm",) if text is None else (script(tmp_path / "vllm", text), "serve")
    port = free_port()
    good = (sys.executable, str(FAKE), "--port", str(port))
    await supervisor.start("one", "baseline", [fake(port=port, argv=argv, fallback_argv=good)])
    await supervisor.wait_ready("one", 30)
    assert f"vtop: {argv[0]} is broken" in supervisor.log_path("one").read_text()


async def test_start_returns_after_the_fallback_so_that_a_command_may_leave(root: Path, tmp_path: Path) -> None:
    """`vtop start` without --wait ends at once; nobody would be there to replace a broken command later."""
    port = free_port()
    good = (sys.executable, str(FAKE), "--port", str(port))
    launch = fake(port=port, argv=(script(tmp_path / "vllm", BROKEN["package"] or ""),), fallback_argv=good)
    first = Supervisor(root, patience=QUICK)
    await first.open()
    await first.start("one", "baseline", [launch])
    await first.close()
    second = Supervisor(root, patience=QUICK)
    await second.open()
    await second.wait_ready("one", 30)
    assert (await second.stop("one")).stopped
    await second.close()


async def test_a_server_that_fails_for_its_own_reasons_does_not_fall_back(supervisor: Supervisor) -> None:
    port = free_port()
    launch = fake("--fault", "die-loading", "--engine", "", port=port, fallback_argv=(sys.executable, str(FAKE)))
    await supervisor.start("one", "baseline", [launch])
    await until(supervisor, "one", S.FAILED)
    assert "is broken" not in supervisor.log_path("one").read_text()


async def test_another_server_on_the_port_is_never_ready(supervisor: Supervisor) -> None:
    """An older server answers /health and /v1/models while ours loads and then cannot bind."""
    port = free_port()
    ours = fake("--boot", "3", "--engine", "", port=port)
    await supervisor.start("one", "baseline", [ours])
    with running(str(FAKE), "--port", str(port), "--model", "old-model", "--engine", "") as other:
        seen: list[ServerState] = []
        supervisor.on_change(lambda status: seen.append(status.state))
        conflict = await until(supervisor, "one", S.STARTING, message="another server")
        assert "old-model" in conflict.message
        assert str(other.pid) in conflict.message
        failed = await until(supervisor, "one", S.FAILED)
        assert f"port {port} is answered by another server (old-model" in failed.message
        assert S.READY not in seen


async def test_the_same_name_with_another_context_length_is_another_server(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody can see who listens (a process of another user), the served name alone proves nothing."""
    monkeypatch.setattr(readiness, "listeners", lambda port, tree: Listeners(ours=False, stranger=None))
    port = free_port()
    await supervisor.start("one", "baseline", [fake("--fault", "silent-port", port=port)])
    with running(str(FAKE), "--port", str(port), "--max-model-len", "8192", "--engine", ""):
        conflict = await until(supervisor, "one", S.STARTING, message="another server")
    assert "tiny with max_model_len 8192, not 2048" in conflict.message


async def test_the_wrong_model_is_not_ready(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--model", "other")])
    await until(supervisor, "one", S.STARTING, message="serves other, not tiny")


async def test_a_start_that_takes_too_long_is_ended(supervisor: Supervisor) -> None:
    launch = fake("--fault", "silent-port", "--worker", ready_timeout_s=1.0)
    await supervisor.start("one", "baseline", [launch])
    failed = await until(supervisor, "one", S.FAILED)
    assert failed.diagnosis is not None
    assert failed.diagnosis.code == "ready-timeout"
    assert failed.diagnosis.headline == "not ready within 1 s; it was loading weights"
    assert failed.pids == ()


async def test_a_headless_server_is_neither_waited_for_nor_given_up(supervisor: Supervisor) -> None:
    """It works for a server on another machine: silent for ever, and READY there, not here."""
    launch = fake("--fault", "silent-port", "--engine", "", headless=True, ready_timeout_s=0.5)
    await supervisor.start("two", "baseline", [launch])
    started = await until(supervisor, "two", S.STARTING, message="headless: it answers no requests itself")
    assert started.headless
    await asyncio.sleep(1.5)
    assert supervisor.status("two").state is S.STARTING
    assert started.pid is not None
    os.kill(started.pid, signal.SIGKILL)
    assert (await until(supervisor, "two", S.FAILED)).pid is None


async def test_a_slow_start_that_still_moves_is_not_given_up(supervisor: Supervisor) -> None:
    """Twenty minutes of weight loading are no failure while lines appear."""
    launch = fake("--boot", "4", "--chatty", ready_timeout_s=1.0)
    await supervisor.start("one", "baseline", [launch])
    assert (await supervisor.wait_ready("one", 30)).state is S.READY


async def test_waiting_has_a_deadline_and_the_start_goes_on(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--boot", "60")])
    with pytest.raises(VtopError, match="not ready after 0 s"):
        await supervisor.wait_ready("one", 0.2)
    assert supervisor.status("one").state is S.STARTING


async def test_the_next_start_knows_how_long_the_last_one_took(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake(version="0.32.0")])
    first = await supervisor.wait_ready("one", 30)
    await supervisor.stop("one")
    await supervisor.start("one", "baseline", [fake("--boot", "60", version="0.32.0")])
    progress = supervisor.status("one").progress
    assert progress is not None
    assert first.progress is not None
    assert progress.expected_s == pytest.approx(first.progress.elapsed_s, abs=0.01)


async def test_a_key_goes_to_the_child_and_nowhere_else(
    supervisor: Supervisor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret-4711")
    await supervisor.start("one", "baseline", [fake(api_key="env:MY_KEY")])
    ready = await supervisor.wait_ready("one", 30)
    assert supervisor.api_key_reference("one") == "env:MY_KEY"
    everything = all_files(root)
    assert b"env:MY_KEY" in everything
    assert b"sk-very-secret" not in everything
    assert "sk-very-secret" not in repr(ready)
    assert "sk-very-secret" not in " ".join(psutil.Process(ready.pid).cmdline())


async def test_an_exported_key_protects_the_server_too(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-exported")
    await supervisor.start("one", "baseline", [fake()])
    await supervisor.wait_ready("one", 30)
    assert supervisor.api_key_reference("one") == "env:VLLM_API_KEY"


async def test_a_key_that_is_not_here_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next vtop may lack the variable: it cannot prove READY and says why."""
    monkeypatch.setenv("MY_KEY", "sk-1")
    first = Supervisor(root, patience=QUICK)
    await first.open()
    await first.start("one", "baseline", [fake("--boot", "0.5", api_key="env:MY_KEY")])
    await first.close()
    monkeypatch.delenv("MY_KEY")
    second = Supervisor(root, patience=QUICK)
    await second.open()
    status = await until(second, "one", S.DEGRADED)
    assert "no key for it here" in status.message
    assert (await second.stop("one")).stopped
    await second.close()


async def test_a_full_disk_leaves_no_unrecorded_server(
    root: Path, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record cannot be written: before the spawn nothing is started, after it the process is ended again."""
    write = StateFolder.write

    def no_leader(self: StateFolder, record: ServerRecord) -> None:
        if record.leader is not None:
            raise OSError(28, "No space left on device")
        write(self, record)

    monkeypatch.setattr(StateFolder, "write", no_leader)
    with pytest.raises(VtopError, match="No space left on device"):
        await supervisor.start("one", "baseline", [fake()])
    monkeypatch.setattr(StateFolder, "write", write)
    await eventually(lambda: supervisor.status("one").pids == ())


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("192.0.2.1", "this machine has no such address"),  # reserved for documentation: nobody has it
        ("a" * 70, "no address is known by that name"),
    ],
)
async def test_an_address_that_this_machine_has_not_is_no_taken_port(
    supervisor: Supervisor, root: Path, host: str, said: str
) -> None:
    with pytest.raises(VtopError, match="nothing can listen on") as refused:
        await supervisor.start("one", "baseline", [fake(host=host)])
    assert refused.value.what.endswith(said)
    assert "--set host=127.0.0.1" in refused.value.remedy
    assert os.listdir(root) == []
    assert port_is_free(host, 8000), "a stop must not wait for such a port either"


async def test_one_name_asked_for_twice_at_once_starts_once(supervisor: Supervisor) -> None:
    """As `enter` pressed twice: nothing may come between the look whether the name is free and the start."""
    told = await asyncio.gather(
        *(supervisor.start("one", "baseline", [fake("--engine", "")]) for _ in range(3)), return_exceptions=True
    )
    refused = [error.what for error in told if isinstance(error, VtopError)]
    assert refused == ["server one exists already (starting)"] * 2
    assert (await supervisor.stop("one")).stopped
