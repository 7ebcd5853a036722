"""One folder a server: what the next vtop needs to know of it, its log, and a lock. Nothing secret is in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from vtop.errors import UsageError, VtopError
from vtop.servers.process import Place, ProcessIdentity
from vtop.servers.status import Diagnosis, ServerState, StartProgress

FORMAT = 1
"""Rises only when an older vtop would misread the file; added fields are kept by older versions as they are."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ServerRecord(msgspec.Struct, kw_only=True):
    """All that is remembered of one server."""

    format: int = FORMAT
    name: str
    preset: str | None
    mark: str
    """The random part of the mark in its processes' environment."""
    place: Place
    state: ServerState = ServerState.STARTING
    message: str = ""
    leader: ProcessIdentity | None = None
    """None between the decision to start and the spawn."""
    processes: list[ProcessIdentity] = []
    stopper: ProcessIdentity | None = None
    """The vtop that is stopping it."""
    served_name: str
    host: str
    port: int
    scheme: str = "http"
    api_key: str | None = None
    """A reference, never the key."""
    role: str = ""
    deployment: str | None = None
    version: str | None = None
    simulated: bool = False
    stop_argv: list[str] | None = None
    shutdown_timeout_s: float = 0.0
    ready_timeout_s: float = 1800.0
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpus: list[str] | None = None
    headless: bool = False
    started_wall_s: float
    ready_wall_s: float | None = None
    exit_code: int | None = None
    progress: StartProgress | None = None
    diagnosis: Diagnosis | None = None


@dataclass(frozen=True, slots=True)
class StateProblem:
    """A folder whose record cannot be used; it blocks only itself."""

    name: str
    what: str
    remedy: str


@dataclass(slots=True)
class StateFolder:
    """The folder of one server below the servers directory."""

    path: Path
    _unknown: dict[str, Any] = field(default_factory=dict)
    """Fields that a later vtop wrote and we do not know."""

    @property
    def name(self) -> str:
        """The server's name."""
        return self.path.name

    @property
    def state_path(self) -> Path:
        """The record."""
        return self.path / "state.json"

    @property
    def log_path(self) -> Path:
        """The server's output."""
        return self.path / "server.log"

    def create(self) -> None:
        """Makes the folder, for this user only.

        Raises:
            VtopError: it cannot be made.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise VtopError(
                f"cannot make {self.path}: {error.strerror}", "Free space or set VTOP_STATE_DIR."
            ) from error

    def read(self) -> ServerRecord | StateProblem | None:
        """The record, what is wrong with it, or None where there is none."""
        try:
            content = self.state_path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            return self._problem(f"cannot be read: {error.strerror}", "Check the permissions.")
        try:
            raw = msgspec.json.decode(content)
        except msgspec.DecodeError:
            return self._problem("is half written or damaged", f"vtop stop {self.name}, then start it again.")
        if not isinstance(raw, dict) or not isinstance(raw.get("format"), int):
            return self._problem("was not written by vtop", f"Move {self.path} away.")
        if raw["format"] > FORMAT:
            return self._problem("was written by a newer vtop and is left alone", "Use that version of vtop.")
        try:
            record = msgspec.convert(raw, ServerRecord)
        except msgspec.ValidationError as error:
            return self._problem(f"is damaged: {error}", f"vtop stop {self.name}, then start it again.")
        self._unknown = {key: value for key, value in raw.items() if key not in ServerRecord.__struct_fields__}
        return record

    def write(self, record: ServerRecord) -> None:
        """Replaces the record in one step.

        Raises:
            OSError: it could not be written; the old one is still there.
        """
        content = msgspec.json.format(msgspec.json.encode({**self._unknown, **msgspec.to_builtins(record)}), indent=1)
        draft = self.path / f".state.{os.getpid()}"
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            os.replace(draft, self.state_path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def changed(self) -> tuple[int, int] | None:
        """Something that differs after each write; None without a record."""
        try:
            status = self.state_path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Holds the folder against other vtops; yields False where another one holds it, or has removed it."""
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            yield False
            return
        except OSError:
            yield True  # a disk that can only be read must not keep a server from being stopped
            return
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                # A file system without locks must not make vtop unusable.
                yield error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
            else:
                yield True
        finally:
            os.close(handle)

    def remove(self) -> None:
        """Deletes the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _problem(self, what: str, remedy: str) -> StateProblem:
        return StateProblem(self.name, f"{self.state_path} {what}", remedy)


def folders(root: Path) -> list[StateFolder]:
    """Every server's folder, by name."""
    try:
        found = [Path(entry.path) for entry in os.scandir(root) if _NAME.fullmatch(entry.name) and _is_folder(entry)]
    except OSError:
        return []
    return [StateFolder(path) for path in sorted(found)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads nowhere or in a circle must not hide the folders beside it."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def check_name(name: str) -> str:
    """Returns a name that can be a folder.

    Raises:
        UsageError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a server's name", "Use letters, digits, dots, dashes and underscores, up to 64."
        )
    return name
