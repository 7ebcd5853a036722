"""Starts, adopts, watches and stops the servers of this user; they outlive it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from vtop import paths
from vtop.clock import Clock, SystemClock
from vtop.errors import VtopError
from vtop.late_httpx import httpx
from vtop.servers import deployment
from vtop.servers.life import LifeTools, ServerLife, start_fallback
from vtop.servers.logs import ROTATE_ABOVE_BYTES, rotate_if_large, rotated_path
from vtop.servers.managed import ENDED, LIVE, ManagedServer, draft_record
from vtop.servers.ports import address_problem, port_is_free, port_owner
from vtop.servers.process import (
    LaunchError,
    child_environment,
    exit_code,
    identify,
    process_table,
    spawn_detached,
)
from vtop.servers.registry import Registry
from vtop.servers.state_files import StateFolder, StateProblem, check_name
from vtop.servers.status import Diagnosis, ServerState, ServerStatus, StopReport
from vtop.servers.stopping import StopPatience, TreeStopper
from vtop.vllm.launch import LaunchCommand

SYNC_EVERY_S = 1.0
_TREE_EVERY_S = 10.0
_TREE_WHILE_STARTING_S = 2.0
_LAUNCHER_SETTLE_S = 1.0
"""A broken `vllm` command dies within so long; one that lives on is left to the watch."""
_CALLBACK_S = 2.0
_CLOSE_S = 0.25


def diagnose_log(*words: Any, **more: Any) -> Diagnosis:
    """`vllm.diagnosis.diagnose`, imported with the first server that died: most sessions see none."""
    from vtop.vllm.diagnosis import diagnose

    return diagnose(*words, **more)


class Supervisor:
    """All servers below one directory. Everything is asyncio in one loop; nothing here blocks it for long."""

    def __init__(
        self,
        root: Path | None = None,
        clock: Clock | None = None,
        *,
        diagnose: Callable[..., Diagnosis] = diagnose_log,
        gpu_check: Callable[[set[int]], Sequence[str]] | None = None,
        gpu_users: Callable[[Collection[str] | None, Collection[int]], str] = lambda uuids, without: "",
        patience: StopPatience | None = None,
        rotate_above_bytes: int = ROTATE_ABOVE_BYTES,
    ) -> None:
        """Prepares; `open()` looks.

        Args:
            root: one folder a server lies here; None: the user's state directory.
            clock: the source of time.
            diagnose: log of a dead server -> why.
            gpu_check: told the pids that a stop ended; says in words which GPU memory did not come back.
            gpu_users: told GPUs (None: all) and pids that do not count; says in words who holds memory there.
            patience: how long the steps of a stop may take.
            rotate_above_bytes: a log beyond this is cut to its end.
        """
        self.before_stop: list[Callable[[str], Awaitable[None]]] = []
        """Called with a server's name before it is stopped, so that vtop's own streams to it are closed first."""
        self._root = root if root is not None else paths.servers_dir()
        self._clock = clock or SystemClock()
        self._diagnose = diagnose
        self._gpu_check = gpu_check
        self._gpu_users = gpu_users
        self._patience = patience or StopPatience()
        self._rotate_above_bytes = rotate_above_bytes
        self._registry = Registry(
            self._root, self._clock, on_change=self._tell, begin_life=self._begin_life, end_life=self._cancel_life
        )
        self._lives: dict[str, tuple[ServerLife, asyncio.Task[None]]] = {}
        self._stops: dict[str, asyncio.Task[StopReport]] = {}
        self._listeners: list[Callable[[ServerStatus], None]] = []
        self._sync_task: asyncio.Task[None] | None = None
        self._tree_due_s = 0.0
        self._client: httpx.AsyncClient | None = None

    async def open(self) -> None:
        """Adopts what earlier vtops started and begins to watch."""
        # The servers are local and proven by their process; proxies and certificates have no say in it.
        self._client = httpx.AsyncClient(trust_env=False, verify=False, limits=httpx.Limits(max_connections=64))
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._registry.sync(self._busy)
        self._sync_task = asyncio.create_task(self._sync_for_ever())

    async def close(self) -> None:
        """Stops watching, within 0.3 s; the servers live on."""
        tasks = [task for _, task in self._lives.values()] + list(self._stops.values())
        if self._sync_task is not None:
            tasks.append(self._sync_task)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        self._lives.clear()
        self._sync_task = None
        if self._client is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._client.aclose(), 0.05)
            self._client = None

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Every server that vtop started and has not forgotten, by name."""
        return deployment.together([self._registry.servers[name].status() for name in sorted(self._registry.servers)])

    def status(self, name: str) -> ServerStatus:
        """One server.

        Raises:
            VtopError: there is none of that name.
        """
        self._registry.known(name)
        return next(status for status in self.statuses() if status.name == name)

    def problems(self) -> tuple[StateProblem, ...]:
        """Folders whose record cannot be used, and records that cannot be written."""
        return self._registry.problems()

    def on_change(self, callback: Callable[[ServerStatus], None]) -> Callable[[], None]:
        """Calls back with the status of a server whose state or message changed; returns the way to stop it."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def log_path(self, name: str) -> Path:
        """Where a server's output is.

        Raises:
            VtopError: there is none of that name.
        """
        return self._registry.known(name).folder.log_path

    def api_key_reference(self, name: str) -> str | None:
        """Where a server's API key is, as a reference.

        Raises:
            VtopError: there is none of that name.
        """
        return self._registry.known(name).record.api_key

    async def start(self, name: str, preset_name: str, commands: Sequence[LaunchCommand]) -> None:
        """Starts a server, or several processes as one; returns once they are spawned.

        Raises:
            VtopError: the name or a port is taken, a command cannot be run, or its record cannot be written; nothing
                is left running then.
        """
        check_name(name)
        await self._registry.sync(self._busy)
        names = deployment.member_names(name, commands)
        for member, command in zip(names, commands, strict=True):
            check_name(member)
            await _check_address(command)
        # From here to the start nothing waits: another start of that name would come between.
        for member, command in zip(names, commands, strict=True):
            await self._check_free(member, command)
        await self._drop_earlier_members(name, names)
        order = deployment.spawn_order(commands)
        whole = name if len(commands) > 1 else None
        started: list[ManagedServer] = []
        try:
            for index in order:
                started.append(await self._start_one(names[index], preset_name, commands[index], whole))
        except BaseException:
            for server in started:
                await self._stop_one(server)
            raise
        for server in started:
            await self._settle_launcher(server)

    async def stop(self, name: str) -> StopReport:
        """Stops a server, all of a deployment, or what is left of one that died; also cancels a start.

        Raises:
            VtopError: there is none of that name, or another vtop holds it.
        """
        running = self._stops.get(name)
        if running is None:
            targets = self._registry.members(name)
            running = asyncio.create_task(self._stop_together(name, targets))
            self._stops[name] = running
            running.add_done_callback(lambda _: self._stops.pop(name, None))
        return await asyncio.shield(running)

    async def stop_all(self) -> tuple[StopReport, ...]:
        """Stops every server that runs or has left processes."""
        wanted = {
            status.deployment or status.name
            for status in self.statuses()
            if status.state not in (ServerState.STOPPED,) or status.pids
        }
        return tuple(await asyncio.gather(*(self.stop(name) for name in sorted(wanted))))

    async def forget(self, name: str) -> None:
        """Drops an ended server from the list, with its log.

        Raises:
            VtopError: it still runs, has left processes, or there is none of that name.
        """
        await self._forget_together(self._registry.members(name), name)

    async def wait_ready(self, name: str, deadline_s: float) -> ServerStatus:
        """Waits until a server (with its halves) is READY.

        Raises:
            VtopError: it failed, or the time is over (it goes on starting then).
        """
        end = self._clock.monotonic() + deadline_s
        while True:
            status = self.status(name)
            members = [s for s in self.statuses() if status.deployment and s.deployment == status.deployment]
            for member in members or [status]:
                if member.state in ENDED or member.state is ServerState.STOPPING:
                    raise _not_ready(member)
            if status.state is ServerState.READY:
                return status
            if self._clock.monotonic() >= end:
                where = status.progress.text if status.progress is not None else status.state.value
                why = f" ({status.message})" if status.message else ""
                raise VtopError(
                    f"server {name} is not ready after {deadline_s:.0f} s: {where}{why}",
                    f"It goes on starting: vtop status, vtop logs {name} -f; or vtop stop {name}",
                )
            await asyncio.sleep(0.05)

    async def settle(self, timeout_s: float = 3.0) -> None:
        """Waits until each living server has been looked at once, for commands that look and leave."""
        looks = [asyncio.ensure_future(life.looked.wait()) for life, _ in self._lives.values()]
        if looks:
            await asyncio.wait(looks, timeout=timeout_s)
        for look in looks:
            look.cancel()

    async def _forget_together(self, targets: Sequence[ManagedServer], name: str) -> None:
        """Removes all or nothing, with what other vtops did meanwhile in view: one may have started it again."""
        for server in targets:
            _check_ended(server, name)  # before its lock, which a stop of our own may hold for long
        async with contextlib.AsyncExitStack() as held:
            for server in targets:
                await held.enter_async_context(self._locked(server.folder, 2.0))
                self._registry.take_over(server)
                _check_ended(server, name)
            for server in targets:
                self._registry.drop(server.name)
                server.folder.remove()

    # Starting

    async def _drop_earlier_members(self, name: str, names: Sequence[str]) -> None:
        """What an earlier start of that name was made of, and this one is not, would pass for a part of it."""
        earlier = [server for server in self._registry.servers.values() if server.record.deployment == name]
        await self._forget_together([server for server in earlier if server.name not in names], name)

    async def _check_free(self, name: str, command: LaunchCommand) -> None:
        known = self._registry.servers.get(name)
        if known is not None and (known.state not in ENDED or known.tree.alive()):
            state = known.state.value if known.state not in ENDED else "ended, but has left processes"
            raise VtopError(f"server {name} exists already ({state})", f"vtop stop {name}, or choose another --name")
        if (unusable := self._registry.problem_of(name)) is not None:
            raise VtopError(unusable.what, unusable.remedy)
        remedy = "Stop it, or choose another port: --set port=auto"
        for server in self._registry.servers.values():
            if server.record.port == command.port and server.state in LIVE:
                raise VtopError(f"port {command.port} is taken by vtop's server {server.name}", remedy)
        if not port_is_free(command.host, command.port):
            owner = await asyncio.to_thread(port_owner, command.port)
            who = f"taken by {owner}" if owner is not None else f"not free on {command.host}"
            raise VtopError(f"port {command.port} is {who}", remedy)

    async def _start_one(self, name: str, preset_name: str, command: LaunchCommand, whole: str | None) -> ManagedServer:
        folder = StateFolder(self._root / name)
        record = draft_record(folder, preset_name, command, whole, self._clock.wall())
        env = child_environment(command, f"{folder.path}:{record.mark}")
        folder.create()
        async with self._locked(folder, 2.0):
            known = self._registry.servers.get(name)
            if folder.changed() != (known.seen_change if known is not None else None):
                raise VtopError(f"another vtop has just started {name}", "vtop status shows it.")
            try:
                _keep_previous_log(folder)
                folder.write(record)
            except OSError as error:
                raise VtopError(
                    f"cannot write {folder.path}: {error.strerror}", "Free space or set VTOP_STATE_DIR."
                ) from error
            server = ManagedServer(folder, record, self._clock, self._tell, command)
            self._registry.add(server)
            try:
                server.take_leader(spawn_detached(command.argv, folder.log_path, env))
            except LaunchError as error:
                if not start_fallback(server, error.what):
                    server.change_state(ServerState.FAILED, error.what)
                    raise
        if server.problem:
            # A server that no later vtop could find must not exist.
            await TreeStopper(server.tree, self._clock, starting=True, patience=self._patience).run(record.host, None)
            server.change_state(ServerState.FAILED, server.problem)
            raise VtopError(server.problem, "Free space or set VTOP_STATE_DIR; nothing was left running.")
        self._tell(server)
        self._begin_life(server)
        self._tree_due_s = 0.0
        return server

    async def _settle_launcher(self, server: ManagedServer) -> None:
        """Stays until a broken `vllm` command has had time to die, so that whoever leaves next has replaced it."""
        if server.command is None or server.command.fallback_argv is None or server.fell_back:
            return
        await self._until(lambda: not server.tree.leader_alive(), _LAUNCHER_SETTLE_S)
        await self._until(lambda: server.tree.leader_alive() or server.state is not ServerState.STARTING, 2.0)

    async def _until(self, condition: Callable[[], bool], patience_s: float) -> None:
        end = self._clock.monotonic() + patience_s
        while not condition() and self._clock.monotonic() < end:  # noqa: ASYNC110 - processes send no events
            await asyncio.sleep(0.05)

    # Stopping

    async def _stop_together(self, name: str, targets: Sequence[ManagedServer]) -> StopReport:
        """The router first, so that nothing arrives any more; then the halves at once."""
        began_s = self._clock.monotonic()
        first = [server for server in targets if server.record.role == deployment.ROUTER and len(targets) > 1]
        rest = [server for server in targets if server not in first]
        reports = [await self._stop_one(server) for server in first]
        reports += await asyncio.gather(*(self._stop_one(server) for server in rest))
        several = len(reports) > 1
        return StopReport(
            name=name,
            stopped=all(report.stopped for report in reports),
            seconds=self._clock.monotonic() - began_s,
            steps=tuple(f"{r.name}: {step}" if several else step for r in reports for step in r.steps),
            left=tuple(f"{r.name}: {left}" if several else left for r in reports for left in r.left),
            port_checked=all(report.port_checked for report in reports),
        )

    async def _stop_one(self, server: ManagedServer) -> StopReport:
        began_s = self._clock.monotonic()
        await self._tell_streams(server.name)
        patience = self._patience
        wait_s = patience.running_s + server.record.shutdown_timeout_s + patience.descendants_s + patience.kill_s + 5.0
        async with self._locked(server.folder, wait_s):
            self._registry.take_over(server)
            if server.state in ENDED and not server.tree.alive() and not await self._marked_left(server):
                was = f"it was {server.state} already"
                return StopReport(server.name, True, 0.0, (was,), port_checked=False)
            await self._end_life(server.name)
            record = server.record
            starting, had_ended = record.ready_wall_s is None, server.state in ENDED
            server.change_state(ServerState.STOPPING)
            record.stopper = identify(os.getpid())
            server.save()
            pids = {member.pid for member in server.tree.alive()}
            stopper = TreeStopper(
                server.tree,
                self._clock,
                starting=starting,
                shutdown_timeout_s=0.0 if starting else record.shutdown_timeout_s,
                stop_argv=record.stop_argv,
                patience=patience,
                on_step=server.say,
            )
            outcome = await stopper.run(record.host, None if had_ended else record.port)
            left = outcome.left
            if self._gpu_check is not None:
                left += tuple(await asyncio.to_thread(self._gpu_check, pids))
            if server.tree.leader is not None:
                record.exit_code = exit_code(server.tree.leader)
            if outcome.processes_left:
                server.change_state(ServerState.FAILED, "the stop did not end everything: " + "; ".join(left))
            else:
                server.change_state(ServerState.STOPPED, "; ".join(left))
        seconds = self._clock.monotonic() - began_s
        return StopReport(server.name, not left, seconds, outcome.steps, left, port_checked=not had_ended)

    async def _marked_left(self, server: ManagedServer) -> bool:
        def look() -> bool:
            table = process_table()
            server.tree.refresh(table)
            return server.tree.find_marked(table)

        return await asyncio.to_thread(look)

    async def _tell_streams(self, name: str) -> None:
        if self.before_stop:
            calls = [asyncio.ensure_future(callback(name)) for callback in self.before_stop]
            await asyncio.wait(calls, timeout=_CALLBACK_S)
            for call in calls:
                if not call.done():
                    call.cancel()
                elif not call.cancelled():
                    call.exception()  # a stream that could not be closed does not keep the server from being stopped

    # Watching

    def _begin_life(self, server: ManagedServer) -> None:
        assert self._client is not None, "open() comes first"
        tools = LifeTools(self._client, self._clock, self._diagnose, self._patience, self._halves, self._gpu_users)
        life = ServerLife(server, tools)
        task = asyncio.create_task(life.run(), name=f"life of {server.name}")
        task.add_done_callback(lambda done: _report_broken_watch(server, done))
        self._lives[server.name] = (life, task)

    def _cancel_life(self, name: str) -> None:
        _, task = self._lives.pop(name, (None, None))
        if task is not None:
            task.cancel()

    def _busy(self, server: ManagedServer) -> bool:
        return server.name in self._stops or server.record.deployment in self._stops

    async def _end_life(self, name: str) -> None:
        _, task = self._lives.pop(name, (None, None))
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=2.0)

    def _halves(self, router: ManagedServer) -> Sequence[ServerStatus]:
        return deployment.halves_of(router.status(), [server.status() for server in self._registry.servers.values()])

    async def _sync_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SYNC_EVERY_S)
            await self._registry.sync(self._busy)
            await self._keep_house()

    async def _keep_house(self) -> None:
        servers = list(self._registry.servers.values())
        for server in servers:
            if server.tree.leader is not None:
                exit_code(server.tree.leader)
        now = self._clock.monotonic()
        if now >= self._tree_due_s:
            starting = any(server.state is ServerState.STARTING for server in servers)
            self._tree_due_s = now + (_TREE_WHILE_STARTING_S if starting else _TREE_EVERY_S)
            if any(server.state not in ENDED or server.tree.alive() for server in servers):
                table = await asyncio.to_thread(process_table)
                for server in servers:
                    if server.state in LIVE and server.tree.refresh(table):
                        server.save()
        for server in servers:
            with contextlib.suppress(OSError):
                if server.folder.log_path.stat().st_size > self._rotate_above_bytes:
                    await asyncio.to_thread(self._rotate, server.folder)

    def _rotate(self, folder: StateFolder) -> None:
        rotate_if_large(folder.log_path, self._rotate_above_bytes, self._rotate_above_bytes // 8)

    # Small things

    @contextlib.asynccontextmanager
    async def _locked(self, folder: StateFolder, wait_s: float) -> AsyncIterator[None]:
        """Holds a server against other vtops.

        Raises:
            VtopError: another one holds it for longer than `wait_s`.
        """
        end = time.monotonic() + wait_s
        while True:
            with folder.lock() as held:
                if held:
                    yield
                    return
            if not folder.path.is_dir():
                raise VtopError(f"another vtop has just forgotten {folder.name}", "vtop status shows what is there.")
            if time.monotonic() >= end:
                raise VtopError(f"another vtop is working on server {folder.name}", "Try again when it is done.")
            await asyncio.sleep(0.1)

    def _tell(self, server: ManagedServer) -> None:
        if self._listeners:
            status = server.status()
            for callback in list(self._listeners):
                callback(status)


async def _check_address(command: LaunchCommand) -> None:
    if problem := await asyncio.to_thread(address_problem, command.host):
        raise VtopError(
            f"nothing can listen on {command.host}: {problem}",
            "Name an address of this machine (--set host=127.0.0.1), or all of them (0.0.0.0).",
        )


def _check_ended(server: ManagedServer, name: str) -> None:
    if server.state not in ENDED or server.tree.alive():
        raise VtopError(f"server {server.name} still has processes", f"Stop it first: vtop stop {name}")


def _keep_previous_log(folder: StateFolder) -> None:
    """The log of the last start stays readable beside the one that begins."""
    if folder.log_path.exists():
        os.replace(folder.log_path, folder.path / "previous.log")
    rotated_path(folder.log_path).unlink(missing_ok=True)


def _not_ready(status: ServerStatus) -> VtopError:
    diagnosis = status.diagnosis
    why = diagnosis.headline if diagnosis is not None else status.message or "no reason is known"
    remedy = diagnosis.remedies[0].text if diagnosis is not None and diagnosis.remedies else ""
    return VtopError(f"server {status.name} is {status.state}: {why}", remedy or f"vtop logs {status.name}")


def _report_broken_watch(server: ManagedServer, task: asyncio.Task[None]) -> None:
    """A bug in the watch must not look like a quiet server."""
    if not task.cancelled() and (error := task.exception()) is not None:
        server.problem = f"watching {server.name} ended with {type(error).__name__}: {error}"
        if server.state in LIVE:
            server.say(server.problem)
