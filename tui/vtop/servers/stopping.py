"""Ending a server for certain: ask, wait, insist, then look whether it is true."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vtop.clock import Clock
from vtop.servers.ports import port_is_free, port_owner
from vtop.servers.process import ProcessIdentity, alive, describe, exit_code, process_table, row, send_signal
from vtop.servers.tree import ServerTree

_LOOK_EVERY_S = 0.05
_AFTERBIRTH_S = 0.15


@dataclass(frozen=True, slots=True)
class StopPatience:
    """How long each step may take."""

    starting_s: float = 5.0
    """A SIGTERM during start-up is lost by vLLM, so there is no point in waiting longer."""
    running_s: float = 15.0
    """On top of the time that the server itself gives to running requests."""
    engine_gone_s: float = 3.0
    """With a client still streaming, the API process stays for ever after its engines are gone."""
    orphans_s: float = 2.0
    """After the API process is gone, its engines get so long to follow on their own."""
    descendants_s: float = 5.0
    kill_s: float = 5.0
    port_s: float = 3.0


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """What was done and what is left."""

    steps: tuple[str, ...]
    left: tuple[str, ...]
    processes_left: tuple[ProcessIdentity, ...]


class TreeStopper:
    """Ends the processes of one server, in the order that real servers need."""

    def __init__(
        self,
        tree: ServerTree,
        clock: Clock,
        *,
        starting: bool = False,
        shutdown_timeout_s: float = 0.0,
        stop_argv: Sequence[str] | None = None,
        patience: StopPatience | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._starting = starting
        self._shutdown_timeout_s = shutdown_timeout_s
        self._stop_argv = stop_argv
        self._patience = patience or StopPatience()
        self._on_step = on_step
        self._steps: list[str] = []
        self._refusals: list[str] = []

    async def run(self, host: str, port: int | None) -> StopOutcome:
        """Stops the tree and verifies that processes and port are gone."""
        await self._look()
        if self._tree.leader_alive():
            await self._ask_leader()
        await self._end(signal.SIGTERM, self._tree.others_alive, self._patience.descendants_s)
        survivors: list[ProcessIdentity] | None = None
        while survivors is None or (self._tree.alive() and self._tree.alive() != survivors):
            await self._end(signal.SIGKILL, self._tree.alive, self._patience.kill_s)
            survivors = self._tree.alive()
            # A process that was being forked when its parent died shows itself only after its exec.
            await asyncio.sleep(_AFTERBIRTH_S)
            await self._look()
        return await self._verify(host, port)

    def _note(self, step: str) -> None:
        self._steps.append(step)
        self._on_step(step)

    async def _look(self) -> None:
        """Takes in what was spawned since the last look, wherever it has gone."""

        def look() -> None:
            table = process_table()
            self._tree.refresh(table)
            self._tree.find_marked(table)

        await asyncio.to_thread(look)

    async def _ask_leader(self) -> None:
        leader = self._tree.leader
        assert leader is not None
        engines = [m for m in self._tree.others_alive() if m.title != "resource_tracker"]
        patience_s = self._patience.starting_s if self._starting else self._patience.running_s
        patience_s += self._shutdown_timeout_s
        if self._stop_argv is not None:
            await self._run_stop_command(self._stop_argv, patience_s)
        else:
            self._signal(leader, signal.SIGTERM)
            self._note(f"SIGTERM to the API process {describe(leader)}")
        deadline = self._clock.monotonic() + patience_s
        engine_deadline: float | None = None
        while self._clock.monotonic() < deadline:
            exit_code(leader)
            if not alive(leader):
                break
            if engines and not any(map(alive, engines)):
                engine_deadline = engine_deadline or self._clock.monotonic() + self._patience.engine_gone_s
                if self._clock.monotonic() >= engine_deadline:
                    self._signal(leader, signal.SIGKILL)
                    self._note("the engines are gone, but the API process waits for a client: SIGKILL to it")
                    break
            await asyncio.sleep(_LOOK_EVERY_S)
        await self._gone(self._tree.others_alive, self._patience.orphans_s if not alive(leader) else 0.0)

    async def _run_stop_command(self, argv: Sequence[str], patience_s: float) -> None:
        self._note(f"ran {argv[0]} to stop it")
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            self._note(f"{argv[0]} could not be run: {error.strerror}")
            return
        try:
            code = await asyncio.wait_for(process.wait(), patience_s + 30.0)
        except asyncio.TimeoutError:  # noqa: UP041 - the same class from 3.11 on; the name says what it is
            self._note(f"{argv[0]} did not return")
        else:
            if code:
                self._note(f"{argv[0]} ended with code {code}")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    async def _end(
        self, signal_number: signal.Signals, members: Callable[[], list[ProcessIdentity]], patience_s: float
    ) -> None:
        await self._look()
        targets = members()
        if not targets:
            return
        # Workers first, then engines, the API process last: each was created after the one that started it.
        for member in reversed(targets):
            self._signal(member, signal_number)
        self._note(f"{signal_number.name} to {', '.join(describe(member) for member in reversed(targets))}")
        await self._gone(members, patience_s)

    def _signal(self, member: ProcessIdentity, signal_number: signal.Signals) -> None:
        if refusal := send_signal(member, signal_number):
            self._refusals.append(refusal)

    async def _gone(self, members: Callable[[], list[ProcessIdentity]], patience_s: float) -> None:
        deadline = self._clock.monotonic() + patience_s
        while True:
            if self._tree.leader is not None:
                exit_code(self._tree.leader)
            if not members() or self._clock.monotonic() >= deadline:
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _verify(self, host: str, port: int | None) -> StopOutcome:
        await self._look()
        remaining = self._tree.alive()
        left = [*dict.fromkeys(self._refusals)]
        left += [f"process {describe(member)} {_why_alive(member)}" for member in remaining]
        if port is not None and not await self._port_comes_free(host, port):
            owner = await asyncio.to_thread(port_owner, port)
            left.append(f"port {port} is held by {owner}" if owner else f"port {port} is not free yet")
        self._note("verified: " + ("nothing left" if not left else "not everything is gone"))
        return StopOutcome(tuple(self._steps), tuple(left), tuple(remaining))

    async def _port_comes_free(self, host: str, port: int) -> bool:
        deadline = self._clock.monotonic() + self._patience.port_s
        while not port_is_free(host, port):
            if self._clock.monotonic() >= deadline:
                return False
            await asyncio.sleep(_LOOK_EVERY_S)
        return True


def _why_alive(member: ProcessIdentity) -> str:
    line = row(member.pid)
    if line is not None and line.uninterruptible:
        return "cannot be killed: it hangs in the kernel (a driver or file system call); a restart may be needed"
    return "still runs"
