"""Processes by identity: a pid alone proves nothing, since the kernel gives it to somebody else later."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import psutil

from vtop import secrets
from vtop.errors import VtopError
from vtop.vllm.launch import LaunchCommand

MARK = "VTOP_SERVER_MARK"
"""Environment variable that every process of a server inherits: `<folder of the server>:<random>`."""

_LINUX = sys.platform.startswith("linux")
_DROPPED = ("COLUMNS", "LINES", "FORCE_COLOR", "VLLM_API_KEY", MARK)
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes that this very process spawned: only their exit codes can be known, and only we can reap them."""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process, for ever: the pid, when it was created, and during which boot."""

    pid: int
    started: float
    """Creation time; on Linux in seconds after boot (a step of the wall clock does not move it), elsewhere since the
    epoch."""
    boot: str
    title: str = ""
    """What it is, in a word or two, for messages; no part of the identity."""

    def same_as(self, other: ProcessIdentity) -> bool:
        """Whether both are one process, whatever its title was."""
        return (self.pid, self.started, self.boot) == (other.pid, other.started, other.boot)


class Place(msgspec.Struct, frozen=True):
    """Where pids mean something: machine, boot, and the container's own numbering."""

    machine: str
    boot: str
    namespace: str = ""


class ProcessRow(msgspec.Struct, frozen=True):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    started: float
    zombie: bool
    uninterruptible: bool


class LaunchError(VtopError):
    """The command could not even be executed."""


@functools.cache
def boot_id() -> str:
    """Names this boot of the machine."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    # The wall clock's steps move this figure by seconds, so it is kept in steps of ten minutes.
    return f"booted-{round(psutil.boot_time() / 600)}"


@functools.cache
def here() -> Place:
    """The place of this process."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return Place(machine=platform.node(), boot=boot_id(), namespace=namespace)


def _linux_row(pid: int) -> ProcessRow | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command in parentheses may itself hold spaces and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state = fields[0]
    return ProcessRow(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]) / _ticks_per_second(),
        zombie=state in (b"Z", b"X"),
        uninterruptible=state == b"D",
    )


@functools.cache
def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")


def _psutil_row(pid: int) -> ProcessRow | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status = process.status()
            return ProcessRow(
                pid=pid,
                parent=process.ppid(),
                session=os.getsid(pid),
                started=process.create_time(),
                zombie=status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD),
                uninterruptible=status == psutil.STATUS_DISK_SLEEP,
            )
    except (psutil.Error, OSError):
        return None


def row(pid: int) -> ProcessRow | None:
    """The process table's line for a pid, or None where there is none (or it may not be seen)."""
    return _linux_row(pid) if _LINUX else _psutil_row(pid)


def process_table() -> dict[int, ProcessRow]:
    """Every process that can be seen; about 15 microseconds each on Linux."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit()) if _LINUX else psutil.pids()
    return {pid: found for pid in pids if (found := row(pid)) is not None}


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a living process."""
    found = row(pid)
    return None if found is None or found.zombie else identity_of(found)


def identity_of(found: ProcessRow) -> ProcessIdentity:
    """The identity of a row of the table, with its title."""
    return ProcessIdentity(found.pid, found.started, boot_id(), short_title(found.pid))


def short_title(pid: int) -> str:
    """What a process is, without its arguments, which may hold secrets: `VLLM::EngineCore`, `python`, ..."""
    try:
        words = psutil.Process(pid).cmdline()
    except (psutil.Error, OSError):
        return ""
    if not words:
        return ""
    if words[0].startswith("VLLM::"):
        return words[0].strip()
    if any("multiprocessing.resource_tracker" in word for word in words):
        return "resource_tracker"
    return Path(words[0]).name[:40]


def alive(identity: ProcessIdentity) -> bool:
    """Whether that very process still runs; a zombie does not, nor does a stranger with the same pid."""
    if identity.boot != boot_id():
        return False
    found = row(identity.pid)
    return found is not None and found.started == identity.started and not found.zombie


def describe(identity: ProcessIdentity) -> str:
    """A process in words."""
    return f"{identity.pid} ({identity.title})" if identity.title else str(identity.pid)


def send_signal(identity: ProcessIdentity, signal_number: signal.Signals) -> str:
    """Signals that very process, or nobody.

    Where the kernel has pidfds the identity is verified on a handle that cannot change hands any more; elsewhere right
    before the signal.

    Returns:
        "" when the signal was sent or the process was gone already, else why it could not be sent.
    """
    handle: int | None = None
    if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
        try:
            handle = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return ""
        except OSError:
            handle = None
    try:
        if not alive(identity):
            return ""
        if handle is not None:
            signal.pidfd_send_signal(handle, signal_number)
        else:
            os.kill(identity.pid, signal_number)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return f"no permission to signal process {describe(identity)}"
    finally:
        if handle is not None:
            os.close(handle)
    return ""


def child_environment(command: LaunchCommand, mark: str) -> dict[str, str]:
    """The environment of a server: a clean copy of ours, what the command adds and removes, and its secret.

    A key that the user exported as VLLM_API_KEY protects the server just as if the preset had named it.

    Raises:
        UsageError: the API key's reference leads nowhere.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and name not in command.unset_env and not name.startswith("TEXTUAL")
    }
    env |= {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    # setproctitle would otherwise overwrite the mark in /proc/PID/environ with the title.
    env |= {"SPT_NOENV": "1", MARK: mark}
    env |= command.env
    if key := secrets.resolve(key_reference(command)):
        env |= dict.fromkeys(command.api_key_variables, key)
    return env


def key_reference(command: LaunchCommand) -> str | None:
    """Where this server's API key is: the preset's reference, else the variable that vLLM itself reads."""
    if command.api_key is not None:
        return command.api_key
    inherited = os.environ.get("VLLM_API_KEY") and "VLLM_API_KEY" not in command.unset_env
    return "env:VLLM_API_KEY" if inherited else None


def spawn_detached(argv: Iterable[str], log_path: Path, env: Mapping[str, str]) -> ProcessIdentity:
    """Starts a process that outlives vtop and its terminal, writing to a log file.

    Raises:
        LaunchError: it cannot be executed.
    """
    words = list(argv)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(env), start_new_session=True
        )
    except OSError as error:
        raise LaunchError(
            f"cannot run {words[0]}: {error.strerror or error}", "Check the path and that its interpreter exists."
        ) from error
    finally:
        os.close(log)
    _children[child.pid] = child
    found = row(child.pid)  # there even if it died already: a zombie keeps its line until it is reaped
    if found is None:
        raise LaunchError(f"{words[0]} vanished while it was started", "Try again.")
    return ProcessIdentity(child.pid, found.started, boot_id(), short_title(child.pid) or Path(words[0]).name)


def exit_code(identity: ProcessIdentity) -> int | None:
    """Reaps a child of this process and returns its exit code (negative: the signal that ended it).

    None while it runs, and for ever where another process spawned it: nobody but the parent ever learns it.
    """
    child = _children.get(identity.pid)
    return child.poll() if child is not None and identity.boot == boot_id() else None


def marked_processes(table: Mapping[int, ProcessRow] | None = None) -> dict[str, list[ProcessIdentity]]:
    """Every visible process that carries a server's mark in its environment, oldest first, by mark."""
    found: dict[str, list[ProcessIdentity]] = {}
    rows = process_table() if table is None else table
    for line in sorted(rows.values(), key=lambda line: line.started):
        if line.pid == os.getpid() or line.zombie:
            continue
        if mark := _mark_of(line.pid):
            found.setdefault(mark, []).append(identity_of(line))
    return found


def _mark_of(pid: int) -> str:
    if _LINUX:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                content = file.read()
        except OSError:
            return ""
        wanted = f"{MARK}=".encode()
        for entry in content.split(b"\0"):
            if entry.startswith(wanted):
                return os.fsdecode(entry[len(wanted) :])
        return ""
    try:
        return psutil.Process(pid).environ().get(MARK, "")
    except (psutil.Error, OSError):
        return ""
