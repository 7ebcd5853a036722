"""Who listens on a port."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import psutil

from vtop.servers.process import ProcessIdentity, short_title

_EVERY_ADDRESS = ("", "0.0.0.0", "::", "*")
_BY_ANOTHER = "is answered by another server"


@dataclass(frozen=True, slots=True)
class PortOwner:
    """A listener that is not ours, as far as it can be seen."""

    pid: int | None = None
    command: str = ""

    def __str__(self) -> str:
        if self.pid is None:
            return "a process that cannot be seen from here"
        return f"pid {self.pid} ({self.command})" if self.command else f"pid {self.pid}"


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who listens on a port, seen from one server."""

    ours: bool
    """A process of the server's own tree does."""
    stranger: PortOwner | None
    """A process that can be seen and is not of the tree."""


def answered_by_another(port: int, what: str) -> str:
    """In words: somebody else serves on a server's port; `is_answered_by_another` knows them again."""
    return f"port {port} {_BY_ANOTHER} ({what})"


def is_answered_by_another(message: str) -> bool:
    """Whether a server's message says that what answers at its address is not the server."""
    return _BY_ANOTHER in message


def connect_host(host: str) -> str:
    """The address at which a server that binds to `host` is reached from this machine."""
    if host in ("", "0.0.0.0", "*"):
        return "127.0.0.1"
    return "::1" if host == "::" else host


def base_url(host: str, port: int, scheme: str = "http") -> str:
    """The address of a server as a URL."""
    reached = connect_host(host)
    return f"{scheme}://[{reached}]:{port}" if ":" in reached else f"{scheme}://{reached}:{port}"


def port_is_free(host: str, port: int) -> bool:
    """Whether nobody has that port there now (a connection in TIME_WAIT does not count).

    A privileged port is free: the server itself will say so. So is one at an address that this machine does not have:
    `address_problem` says that.
    """
    error = _bind_error(host, port)
    return not (isinstance(error, OSError) and error.errno == errno.EADDRINUSE)


def address_problem(host: str) -> str:
    """Why no server of this machine can listen at a host, whatever the port; "" where one can."""
    error = _bind_error(host, 0)
    if error is None or isinstance(error, PermissionError):
        return ""
    if isinstance(error, UnicodeError | socket.gaierror):
        return "no address is known by that name"
    return "this machine has no such address" if error.errno == errno.EADDRNOTAVAIL else f"{error.strerror or error}"


def _bind_error(host: str, port: int) -> OSError | UnicodeError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("" if host in _EVERY_ADDRESS and family == socket.AF_INET else host, port))
    except (OSError, UnicodeError) as error:  # a name that is no name at all fails in its encoding
        return error
    return None


def port_owner(port: int, ours: Collection[int] = ()) -> PortOwner | None:
    """The listener on a port outside of `ours`; None where nobody listens."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    hidden = False
    for connection in connections:
        if not _listens(connection, port):
            continue
        if connection.pid is None:
            hidden = True
        elif connection.pid not in ours:
            return PortOwner(connection.pid, short_command(connection.pid))
    return PortOwner() if hidden else None


def listeners(port: int, tree: Iterable[ProcessIdentity]) -> Listeners:
    """Who listens on a port: one of the tree, or a stranger that can be seen."""
    pids = {member.pid for member in tree}
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if _listens(connection, port):
                    return Listeners(ours=True, stranger=None)
    owner = port_owner(port, pids)
    return Listeners(ours=False, stranger=owner if owner is not None and owner.pid is not None else None)


def _listens(connection: Any, port: int) -> bool:
    return connection.status == psutil.CONN_LISTEN and bool(connection.laddr) and connection.laddr.port == port


def short_command(pid: int, width: int = 80) -> str:
    """A command line for messages: secrets that stand in arguments are masked, the rest is cut."""
    try:
        words = psutil.Process(pid).cmdline()
    except (psutil.Error, OSError):
        return ""
    if not words:
        return short_title(pid)
    text = " ".join([os.path.basename(words[0]), *mask_secrets(words[1:])])
    return text if len(text) <= width else text[: width - 1] + "…"


def mask_secrets(words: Iterable[str]) -> list[str]:
    """Arguments with the values of `--api-key`, `--hf-token` and their kind replaced by `***`."""
    masked: list[str] = []
    secret_follows = False
    for word in words:
        if secret_follows and not word.startswith("--"):
            masked.append("***")
            continue
        flag, equals, _ = word.partition("=")
        names_secret = flag.startswith("--") and any(part in flag for part in ("key", "token", "password", "secret"))
        secret_follows = names_secret and not equals
        masked.append(f"{flag}=***" if names_secret and equals else word)
    return masked
