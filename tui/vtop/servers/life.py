"""What one server goes through while vtop looks: the way to READY, being watched, its death."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from vtop import secrets
from vtop.clock import Clock
from vtop.errors import VtopError
from vtop.late_httpx import httpx
from vtop.servers import deployment
from vtop.servers.durations import remember_start
from vtop.servers.launcher import broken_launcher
from vtop.servers.logs import DIAGNOSED_LINES, last_raw_lines
from vtop.servers.managed import ENDED, ManagedServer
from vtop.servers.ports import answered_by_another, listeners, port_is_free, port_owner
from vtop.servers.process import LaunchError, child_environment, exit_code, process_table, spawn_detached
from vtop.servers.readiness import HEALTH_TIMEOUT_S, ProbeResult, Readiness, probe, read_health
from vtop.servers.state_files import ServerRecord
from vtop.servers.status import Diagnosis, ServerState, ServerStatus
from vtop.servers.stopping import StopPatience, TreeStopper
from vtop.servers.watching import HealthKind, HealthSample, HealthVerdict, HealthWatch
from vtop.vllm.lifecycle import DeathContext, Remedy

HEALTH_EVERY_S = 1.0
OWNER_EVERY_S = 10.0
_FIRST_PAUSE_S = 0.25
_SILENT_TOO_S = 60.0
"""A start that is overdue but still says something is not given up."""
_HEADLESS = "headless: it answers no requests itself; the server on the first machine is READY when all of them are"
_NOT_A_CRASH = ("stopped", "no-failure")


@dataclass(frozen=True, slots=True)
class LifeTools:
    """What every server's life needs."""

    client: httpx.AsyncClient
    clock: Clock
    diagnose: Callable[..., Diagnosis]
    patience: StopPatience
    halves: Callable[[ManagedServer], Sequence[ServerStatus]]
    """The servers behind a router."""
    gpu_users: Callable[[Collection[str] | None, Collection[int]], str] = lambda uuids, without: ""
    """(GPUs that a server may use, its own pids) -> who else holds their memory, in words."""


class ServerLife:
    """Runs as one task per server until the server has ended."""

    def __init__(self, server: ManagedServer, tools: LifeTools) -> None:
        self._server = server
        self._tools = tools
        self._conflict = ""
        self._engine_dead = False
        self.looked = asyncio.Event()
        """Set when the first look has come to a result."""

    async def run(self) -> None:
        """Brings the server to READY if it is not, then watches it to its end."""
        try:
            if self._server.record.ready_wall_s is None and not await self._bring_up():
                return
            await self._watch()
        finally:
            self.looked.set()

    @property
    def _record(self) -> ServerRecord:
        return self._server.record

    async def _bring_up(self) -> bool:
        pause_s = _FIRST_PAUSE_S
        while True:
            self._server.read_log()
            result = await self._probe_while_alive()
            if result is None:
                if await self._ended():
                    return False
                continue
            if result.readiness is Readiness.READY:
                await self._became_ready()
                return True
            self._explain(result)
            self.looked.set()
            if self._overdue():
                await self._give_up(result)
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(HEALTH_EVERY_S, pause_s * 1.3)

    async def _probe_while_alive(self) -> ProbeResult | None:
        """One look; None when the process died, which ends even a request that waits for its answer."""
        look = asyncio.create_task(self._look())
        try:
            while True:
                if not self._server.tree.leader_alive():
                    return None
                done, _ = await asyncio.wait({look}, timeout=0.5)
                if done:
                    return look.result() if self._server.tree.leader_alive() else None
                self._server.read_log()
        finally:
            look.cancel()

    async def _look(self) -> ProbeResult:
        record = self._record
        if record.headless:
            return ProbeResult(Readiness.SILENT, _HEADLESS)
        try:
            key = secrets.resolve(record.api_key)
        except VtopError:
            key = None
        members = self._server.tree.alive()
        if record.role != deployment.ROUTER:
            return await probe(self._tools.client, record, members, key)
        halves = self._tools.halves(self._server)
        if waiting := deployment.waits_for(halves):
            return ProbeResult(Readiness.SILENT, waiting)
        before = await deployment.read_work(self._tools.client, halves)
        result = await probe(self._tools.client, record, members, key)
        if result.readiness is Readiness.READY:
            idle = await deployment.served_by_both(self._tools.client, halves, before)
            return ProbeResult(Readiness.NO_ANSWER, idle) if idle else result
        return result

    async def _became_ready(self) -> None:
        await asyncio.to_thread(self._find_members)
        self._server.read_log()
        self._server.change_state(ServerState.READY)
        progress = self._record.progress
        if progress is not None and self._record.preset:
            record = self._record
            remember_start(record.preset or "", record.version, record.simulated, progress.elapsed_s, progress.done)

    def _explain(self, result: ProbeResult) -> None:
        self._conflict = result.message if result.readiness is Readiness.CONFLICT else ""
        if result.readiness is Readiness.NEEDS_KEY and self._server.state is ServerState.STARTING:
            self._server.change_state(ServerState.DEGRADED, result.message)
        else:
            self._server.say(result.message)

    def _overdue(self) -> bool:
        if self._record.headless:
            return False  # it is silent while it works, for weeks
        # By the clock that no step of the wall clock moves: a time server may set that right in the middle of a start.
        progress, limit_s = self._server.progress(), self._record.ready_timeout_s
        return progress.elapsed_s > limit_s and progress.silent_s > min(_SILENT_TOO_S, limit_s)

    async def _give_up(self, result: ProbeResult) -> None:
        """Ends a start that took too long, so that it does not hold its GPUs for ever."""
        progress = self._server.progress()
        limit = f"{self._record.ready_timeout_s:.0f} s"
        stopper = TreeStopper(self._server.tree, self._tools.clock, starting=True, patience=self._tools.patience)
        outcome = await stopper.run(self._record.host, None)
        self._record.progress = progress
        self._record.diagnosis = Diagnosis(
            "ready-timeout",
            f"not ready within {limit}; it was {progress.text}" + (f" ({result.message})" if result.message else ""),
            "\n".join(outcome.steps),
            (Remedy("Look at the end of its log; a slow disk or download may need more time"),),
        )
        left = f"; not ended: {', '.join(outcome.left)}" if outcome.left else ""
        self._server.change_state(ServerState.FAILED, self._record.diagnosis.headline + left)

    async def _watch(self) -> None:
        degraded = self._server.state is ServerState.DEGRADED
        watch = HealthWatch(self._tools.clock, HealthVerdict(degraded, self._record.message))
        owner_due_s = self._tools.clock.monotonic()
        stolen = ""
        while True:
            if not self._server.tree.leader_alive():
                await self._ended()
                return
            verdict = watch.feed(await self._health())
            self._engine_dead = verdict.engine_dead
            if self._tools.clock.monotonic() >= owner_due_s:
                owner_due_s = self._tools.clock.monotonic() + OWNER_EVERY_S
                stolen = await self._stolen_port()
            if stolen:
                verdict = HealthVerdict(True, stolen)
            if self._server.tree.leader_alive():
                await self._judge(verdict)
                self.looked.set()
                await asyncio.sleep(HEALTH_EVERY_S)

    async def _health(self) -> HealthSample:
        began_s = self._tools.clock.monotonic()
        try:
            status = await read_health(self._tools.client, self._server.url, HEALTH_TIMEOUT_S)
        except httpx.ConnectError:
            return HealthSample(HealthKind.REFUSED, took_s=self._tools.clock.monotonic() - began_s)
        except httpx.HTTPError:
            return HealthSample(HealthKind.TIMED_OUT, took_s=self._tools.clock.monotonic() - began_s)
        return HealthSample(HealthKind.ANSWERED, status, self._tools.clock.monotonic() - began_s)

    async def _stolen_port(self) -> str:
        if self._record.stop_argv is not None:
            return ""  # a container's listener is not a child of ours
        found = await asyncio.to_thread(listeners, self._record.port, self._server.tree.alive())
        if found.ours or found.stranger is None:
            return ""
        return answered_by_another(self._record.port, str(found.stranger))

    async def _judge(self, verdict: HealthVerdict) -> None:
        state = ServerState.DEGRADED if verdict.degraded else ServerState.READY
        if state is self._server.state:
            self._server.say(verdict.message)
            return
        self._record.diagnosis = await self._diagnose(None) if verdict.engine_dead else None
        self._server.change_state(state, verdict.message)

    async def _diagnose(self, code: int | None) -> Diagnosis:
        lines = await asyncio.to_thread(last_raw_lines, self._server.folder.log_path, DIAGNOSED_LINES)
        record = self._record
        owner = ""
        if record.ready_wall_s is None and not port_is_free(record.host, record.port):
            found = await asyncio.to_thread(port_owner, record.port)
            owner = str(found) if found is not None else ""
        # The driver may list for a moment what has just ended.
        own = {member.pid for member in (*record.processes, *self._server.tree.alive())}
        context = DeathContext(
            settings={"port": record.port},
            was_ready=record.ready_wall_s is not None,
            port_owner=owner,
            gpu_users=self._tools.gpu_users(record.gpus, own),
        )
        return await asyncio.to_thread(self._tools.diagnose, lines, exit_code=code, context=context)

    async def _ended(self) -> bool:
        """Deals with the death of the process that vtop spawned; False when it was started again by other means."""
        server, record = self._server, self._record
        if server.changed_by_another():
            return True  # another vtop ended it or started it again: its record says more than this death
        code = exit_code(server.tree.leader) if server.tree.leader is not None else None
        server.read_log()
        if record.ready_wall_s is None and (await self._fall_back(code) or await self._again_behind_halves()):
            return False
        await asyncio.to_thread(self._find_members)
        diagnosis = await self._diagnose(code)
        record.exit_code, record.diagnosis = code, diagnosis
        if record.ready_wall_s is None:
            record.progress = server.progress()
        server.change_state(*await self._last_words(diagnosis, code))
        return True

    def _find_members(self) -> None:
        table = process_table()
        self._server.tree.refresh(table)
        self._server.tree.find_marked(table)

    async def _last_words(self, diagnosis: Diagnosis, code: int | None) -> tuple[ServerState, str]:
        if self._record.ready_wall_s is None:
            return ServerState.FAILED, self._conflict or diagnosis.headline
        vague = diagnosis.code == "unknown" and code in (None, 0)
        if not self._engine_dead and (diagnosis.code in _NOT_A_CRASH or vague):
            how = "exit code unknown" if code is None else f"exit code {code}"
            message = f"its process is gone ({how}): {diagnosis.headline}"
            owner = await asyncio.to_thread(port_owner, self._record.port)
            if owner is not None:
                message += f"; port {self._record.port} is now answered by another server ({owner})"
            return ServerState.LOST, message
        crashed = "; it ended with exit code 0 in spite of that" if code == 0 else ""
        return ServerState.FAILED, diagnosis.headline + crashed

    async def _fall_back(self, code: int | None) -> bool:
        server = self._server
        command = server.command
        if command is None or command.fallback_argv is None or server.fell_back:
            return False
        lines = await asyncio.to_thread(last_raw_lines, server.folder.log_path, 100)
        reason = broken_launcher(lines, code)
        return bool(reason) and start_fallback(server, reason)

    async def _again_behind_halves(self) -> bool:
        """Starts a router again that gave up before its halves were there; one that dies behind ready ones failed."""
        server, command = self._server, self._server.command
        if self._record.role != deployment.ROUTER or command is None:
            return False
        waited = False
        while waiting := deployment.waits_for(self._tools.halves(server)):
            waited = True
            if any(half.state in ENDED for half in self._tools.halves(server)):
                return False
            server.say(waiting)
            await asyncio.sleep(HEALTH_EVERY_S)
        if not waited:
            return False
        with contextlib.suppress(VtopError):
            env = child_environment(command, server.mark)
            server.take_leader(spawn_detached(command.argv, server.folder.log_path, env))
            return True
        return False


def start_fallback(server: ManagedServer, reason: str) -> bool:
    """Starts a server by its second command, once; the log says why. False where that cannot be run either."""
    command = server.command
    if command is None or command.fallback_argv is None or server.fell_back:
        return False
    server.fell_back = True
    note = f"vtop: {command.argv[0]} is broken ({reason}); starting {' '.join(command.fallback_argv[:3])} instead\n"
    try:
        with open(server.folder.log_path, "a", encoding="utf-8") as log:
            log.write(note)
        env = child_environment(command, server.mark)
        leader = spawn_detached(command.fallback_argv, server.folder.log_path, env)
    except (OSError, LaunchError):
        return False
    server.take_leader(leader)
    return True
