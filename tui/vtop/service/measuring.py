"""Who measures what now, on disk: two measurements on one server or GPU would be part of each other's result."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vtop import paths
from vtop.clock import Clock, SystemClock
from vtop.errors import VtopError
from vtop.servers.adoption import Whereabouts, whereabouts
from vtop.servers.process import Place, ProcessIdentity, alive, here, identify

LOAD_TEST = "load test"
COMPARISON = "comparison"
_A_DAY_S = 86400.0


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One load test or comparison that is running, as other vtops read it."""

    kind: str
    title: str
    servers: tuple[str, ...] = ()
    """`host:port` of what is loaded; a comparison does not know the addresses of its servers beforehand."""
    gpus: tuple[str, ...] | None = None
    """UUIDs; None: not known beforehand, or the CPU."""
    local: bool = True
    """It keeps this machine busy with more than the client."""
    owner: ProcessIdentity
    place: Place
    since_wall_s: float

    def disturbs(self, other: Measurement) -> bool:
        """Whether the two would measure each other.

        Load tests of two servers of one machine are left to the person who starts them, unless both are known to use
        the same GPU; a comparison must be alone with what it compares.
        """
        if set(self.servers) & set(other.servers):
            return True
        if not (self.local and other.local):
            return False
        if self.gpus is not None and other.gpus is not None:
            return bool(set(self.gpus) & set(other.gpus))
        return COMPARISON in (self.kind, other.kind)

    def words(self) -> str:
        """Who it is, for the one who has to wait."""
        recent = time.time() - self.since_wall_s < _A_DAY_S
        since = time.strftime("%H:%M:%S" if recent else "%Y-%m-%d %H:%M", time.localtime(self.since_wall_s))
        return f"a {self.kind} ({self.title}) is running in another vtop (pid {self.owner.pid}, since {since})"


@dataclass(frozen=True, slots=True)
class Claim:
    """What this vtop measures; nobody else may measure there until it is released, or until this process is gone."""

    path: Path

    def release(self) -> None:
        """Lets others measure; harmless when repeated."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


class Measurements:
    """The measurements of all vtops of this user, one small file each. A file whose process is gone counts nothing."""

    def __init__(self, directory: Path | None = None, clock: Clock | None = None) -> None:
        self._directory = directory
        self._clock = clock or SystemClock()
        self._count = 0

    def claim(
        self,
        kind: str,
        title: str,
        *,
        servers: Sequence[str] = (),
        gpus: Sequence[str] | None = None,
        local: bool = True,
    ) -> Claim:
        """Takes what is going to be measured, or says who has it.

        What this very process measures does not stand against it: it knows its own load tests and comparisons.

        Raises:
            VtopError: another process measures there, or nothing can be written.
        """
        owner = identify(os.getpid())
        assert owner is not None, "this process lives"
        mine = Measurement(
            kind=kind,
            title=title,
            servers=tuple(servers),
            gpus=None if gpus is None else tuple(gpus),
            local=local,
            owner=owner,
            place=here(),
            since_wall_s=self._clock.wall(),
        )
        directory = self._place()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _alone_in(directory):
                for other in self.running():
                    if not other.owner.same_as(owner) and mine.disturbs(other):
                        raise VtopError(
                            other.words(), "Wait for its end, or stop it there: the two would measure each other."
                        )
                self._count += 1
                path = directory / f"{owner.pid}-{self._count}-{id(self):x}.json"
                path.write_bytes(msgspec.json.encode(mine))
        except OSError as error:
            raise VtopError(
                f"cannot write {directory}: {error.strerror}", "Free space or set VTOP_STATE_DIR."
            ) from error
        return Claim(path)

    def _place(self) -> Path:
        return self._directory or paths.state_dir() / "measuring"

    def running(self) -> list[Measurement]:
        """Measurements whose process lives; the files of those that are gone are removed."""
        found = []
        for path in sorted(self._place().glob("*.json")):
            try:
                measurement = msgspec.json.decode(path.read_bytes(), type=Measurement)
            except (OSError, msgspec.DecodeError):
                continue  # removed just now, or written by a vtop of another kind
            where = whereabouts(measurement.place)
            if where is Whereabouts.ELSEWHERE:
                continue
            if where is Whereabouts.HERE and alive(measurement.owner):
                found.append(measurement)
            else:
                Claim(path).release()
        return found


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Keeps two vtops from deciding at once; held for milliseconds."""
    handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # A file system without locks must not make vtop unusable.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
