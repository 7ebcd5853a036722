"""Identity, signals and the tree of one server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from vtop.errors import UsageError
from vtop.servers import process as processes
from vtop.servers.ports import base_url, mask_secrets, port_is_free, short_command
from vtop.servers.process import (
    MARK,
    LaunchError,
    ProcessIdentity,
    ProcessRow,
    alive,
    boot_id,
    child_environment,
    exit_code,
    identify,
    marked_processes,
    process_table,
    send_signal,
    spawn_detached,
)
from vtop.servers.tree import ServerTree
from vtop.vllm.launch import LaunchCommand

SLEEP = "import time; time.sleep(600)"
Spawn = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    started: list[subprocess.Popen[bytes]] = []

    def make(code: str = SLEEP, **options: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code], **options)  # type: ignore[call-overload]
        started.append(process)
        return process  # type: ignore[no-any-return]

    yield make
    for process in started:
        process.kill()
        process.wait()


def identity_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    identity = identify(process.pid)
    assert identity is not None
    return identity


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_pid_with_another_creation_time_or_boot_is_not_alive(spawn: Spawn) -> None:
    real = identity_of(spawn())
    assert alive(real)
    assert not alive(ProcessIdentity(real.pid, real.started - 1.0, real.boot))
    assert not alive(ProcessIdentity(real.pid, real.started, "another-boot"))


@pytest.mark.parametrize("with_pidfd", [True, False])
def test_only_the_very_process_is_signalled(spawn: Spawn, monkeypatch: pytest.MonkeyPatch, with_pidfd: bool) -> None:
    if not with_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = spawn()
    real = identity_of(child)
    assert send_signal(ProcessIdentity(real.pid, real.started - 1.0, real.boot), signal.SIGKILL) == ""
    assert child.poll() is None
    assert send_signal(real, signal.SIGKILL) == ""
    assert child.wait(20) == -signal.SIGKILL
    assert send_signal(real, signal.SIGKILL) == ""


def test_a_zombie_is_dead(spawn: Spawn) -> None:
    child = spawn("pass")
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    row = processes.row(child.pid)
    assert row is not None
    assert not alive(ProcessIdentity(child.pid, row.started, boot_id()))
    assert identify(child.pid) is None


def test_the_other_way_to_read_the_process_table_agrees(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """What macOS uses, tried here."""
    child = spawn()
    quick = process_table()[child.pid]
    monkeypatch.setattr(processes, "_LINUX", False)
    other = process_table()[child.pid]
    assert (other.pid, other.parent, other.session, other.zombie) == (quick.pid, quick.parent, quick.session, False)
    identity = identity_of(child)
    assert alive(identity)
    assert send_signal(identity, signal.SIGTERM) == ""
    assert child.wait(20) == -signal.SIGTERM


def test_a_command_name_with_parentheses_is_read(spawn: Spawn) -> None:
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'a) S 1 (b', 0, 0, 0); print(flush=True); time.sleep(600)"
    child = spawn(code, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    row = processes.row(child.pid)
    assert row is not None
    assert row.parent == os.getpid()
    child.stdout.close()


def test_a_spawned_process_leads_its_own_session_and_its_exit_code_is_known(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import os, sys; print(os.getsid(0), sys.stdin.read() == ''); print('two', file=sys.stderr); sys.exit(3)"
    identity = spawn_detached([sys.executable, "-c", code], log, dict(os.environ))
    wait_until(lambda: exit_code(identity) is not None)
    assert exit_code(identity) == 3
    assert sorted(log.read_text().split("\n")) == ["", f"{identity.pid} True", "two"]
    assert log.stat().st_mode & 0o077 == 0
    assert exit_code(ProcessIdentity(identity.pid, identity.started, "another-boot")) is None


def test_what_cannot_be_executed_is_an_error_with_a_cause(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="No such file"):
        spawn_detached(["/no/such/command"], tmp_path / "log", {})
    plain = tmp_path / "plain"
    plain.write_text("x")
    with pytest.raises(LaunchError, match="Permission denied"):
        spawn_detached([str(plain)], tmp_path / "log", {})


def test_the_environment_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_PORT", "COLUMNS", "TEXTUAL_DRIVER", "KEEP_ME", MARK):
        monkeypatch.setenv(name, "from vtop")
    monkeypatch.setenv("MY_KEY", "sk-1")
    command = LaunchCommand(
        argv=("x",),
        served_name="m",
        host="h",
        port=1,
        env={"HF_HUB_OFFLINE": "1"},
        unset_env=("VLLM_PORT",),
        api_key="env:MY_KEY",
    )
    env = child_environment(command, "mark")
    assert not {"VLLM_PORT", "COLUMNS", "TEXTUAL_DRIVER"} & set(env)
    assert env["KEEP_ME"] == "from vtop"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["VLLM_API_KEY"] == "sk-1"
    assert env[MARK] == "mark"
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(UsageError, match="MY_KEY is not set"):
        child_environment(command, "mark")


def test_members_are_known_after_they_lost_their_parent(spawn: Spawn) -> None:
    """A descendant in another process group and session: recorded while its parent lived, ours after it died."""
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', '{SLEEP}'], start_new_session=True)\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    leader = spawn(code, stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    leader.stdout.close()
    tree = ServerTree(identity_of(leader))
    assert tree.refresh(process_table())
    leader.kill()
    leader.wait()
    assert not tree.leader_alive()
    assert [member.pid for member in tree.others_alive()] == [child]
    tree.refresh(process_table())
    assert [member.pid for member in tree.alive()] == [child]
    assert send_signal(tree.alive()[0], signal.SIGKILL) == ""
    wait_until(lambda: not tree.alive())


def row(pid: int, parent: int, session: int, started: float) -> ProcessRow:
    return ProcessRow(pid=pid, parent=parent, session=session, started=started, zombie=False, uninterruptible=False)


def test_a_title_or_a_recycled_session_number_makes_nobody_ours() -> None:
    """The published case of orphans after a SIGKILL: three are ours, another user's engine of the same title is not."""
    leader = ProcessIdentity(921950, 10.0, boot_id())
    tree = ServerTree(leader)
    before = {
        921950: row(921950, 921913, 921950, 10.0),
        921960: row(921960, 921950, 921950, 11.0),
        921971: row(921971, 921960, 921950, 12.0),
        921972: row(921972, 921960, 921950, 12.1),
        930111: row(930111, 1, 930000, 5.0),
    }
    tree.refresh(before)
    after = {pid: line for pid, line in before.items() if pid != 921950}
    after[921960] = row(921960, 921913, 921950, 11.0)
    tree.refresh(after)
    assert sorted(tree._members) == [921960, 921971, 921972]
    # All of ours are gone, and a stranger's session has got the old number.
    tree.refresh({921950: row(921950, 1, 921950, 90.0), 921999: row(921999, 921950, 921950, 91.0)})
    assert tree._members == {}


def test_marked_processes_are_found_wherever_they_went(spawn: Spawn, tmp_path: Path) -> None:
    mark = f"{tmp_path}:abc"
    code = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "print(os.getpid(), flush=True); time.sleep(600)"
    )
    daemon = spawn(code, stdout=subprocess.PIPE, env={**os.environ, MARK: mark})
    assert daemon.stdout is not None
    pid = int(daemon.stdout.readline())
    daemon.stdout.close()
    assert [member.pid for member in marked_processes()[mark]] == [pid]
    tree = ServerTree(None, (), mark)
    assert tree.find_marked(process_table())
    assert send_signal(tree.alive()[0], signal.SIGKILL) == ""
    wait_until(lambda: not tree.alive())


def test_secrets_in_foreign_command_lines_are_masked(spawn: Spawn) -> None:
    words = ["serve", "m", "--api-key", "sk-1", "sk-2", "--hf-token=hf_3", "--port", "8000"]
    assert mask_secrets(words) == ["serve", "m", "--api-key", "***", "***", "--hf-token=***", "--port", "8000"]
    code = "import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code, "--api-key", "sk-secret"])
    try:
        # Until it runs what it was told to, a child has no command line of its own.
        deadline = time.monotonic() + 30
        while "time.sleep" not in (shown := short_command(child.pid, 400)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "sk-secret" not in shown
        assert "***" in shown
    finally:
        child.kill()
        child.wait()


def test_addresses() -> None:
    assert base_url("0.0.0.0", 8000) == "http://127.0.0.1:8000"
    assert base_url("::", 8000) == "http://[::1]:8000"
    assert base_url("host.example", 1, "https") == "https://host.example:1"


def test_a_port_in_time_wait_is_free() -> None:
    """After a stop with open connections the port must not read as taken for a minute."""
    import socket

    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not port_is_free("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    assert port_is_free("127.0.0.1", port)
