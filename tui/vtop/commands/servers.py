"""`vtop start`, `vtop logs`, `vtop stop`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from vtop import units
from vtop.commands.console import confirmed, note, say
from vtop.commands.session import options_from, with_service
from vtop.contract import LaunchPlan
from vtop.errors import UsageError, VtopError
from vtop.preset_files import parse_set
from vtop.servers.logs import follow, last_lines
from vtop.servers.status import ServerState, ServerStatus
from vtop.service import VtopService

_LOOK_EVERY_S = 0.2
_ENDED = {ServerState.FAILED, ServerState.STOPPED, ServerState.LOST}


def _print_plan(plan: LaunchPlan, shown: tuple[str, ...]) -> int:
    if plan.refusal:
        raise VtopError(plan.refusal)
    say(f"# {plan.preset} as {plan.name}: {plan.installation}, vLLM {plan.version or units.DASH}")
    for line in shown:
        say(line)
    for label, text in plan.fit:
        say(f"# {label}: {text}")
    for text in plan.notes:
        say(f"# note: {text}")
    for text in plan.warnings:
        say(f"# warning: {text}")
    return 0


def failure_of(status: ServerStatus) -> VtopError:
    """A failed server as an error: cause, then remedy."""
    if status.diagnosis is None:
        return VtopError(
            f"{status.name} {status.state.value}: {status.message}", f"`vtop logs {status.name}` has more."
        )
    remedies = [remedy.text for remedy in status.diagnosis.remedies]
    more = f"`vtop logs {status.name}` has the log."
    return VtopError(f"{status.name} failed: {status.diagnosis.headline}", "\n  ".join([*remedies, more]))


async def wait_until_ready(service: VtopService, name: str, timeout_s: float | None) -> ServerStatus:
    """Waits, saying each phase as it comes.

    Raises:
        VtopError: it failed, or is not ready in time (then it is stopped).
    """
    loop = asyncio.get_running_loop()
    end = None if timeout_s is None else loop.time() + timeout_s
    said = ""
    while True:
        status = service.known(name)
        if status.state is ServerState.READY:
            return status
        if status.state in _ENDED:
            raise failure_of(status)
        text = status.progress.text if status.progress else status.message
        phase = status.progress.phase if status.progress else ""
        if text and phase != said:
            said = phase
            elapsed = status.progress.elapsed_s if status.progress else None
            note(f"{units.elapsed(elapsed):>7}  {text}")
        if end is not None and loop.time() > end:
            report = await service.stop_server(name)
            left = f"; left: {', '.join(report.left)}" if report.left else ""
            raise VtopError(f"{name} was not ready within {timeout_s:g} s and was stopped{left}", f"`vtop logs {name}`")
        await asyncio.sleep(_LOOK_EVERY_S)


def run_start(arguments: argparse.Namespace) -> int:
    """Starts a server; returns at once unless --wait."""
    overrides = parse_set(arguments.set)
    choices = {"simulated": bool(arguments.sim), "gpu": arguments.gpu, "vllm": arguments.vllm}

    async def use(service: VtopService) -> int:
        if arguments.dry_run:
            plan = await service.plan_start(arguments.preset, overrides, arguments.name, **choices)
            return _print_plan(plan, service.command_lines(arguments.preset, overrides, arguments.name, **choices))
        plan = await service.plan_start(arguments.preset, overrides, arguments.name, **choices)
        # What prevents the start is its error alone; what merely speaks against it is said beside the server.
        name = await service.start_server(arguments.preset, overrides, arguments.name, **choices)
        for text in plan.warnings:
            note(f"warning: {text}")
        status = service.known(name)
        if status.headless and arguments.wait:
            note(f"{name} is headless: it answers no requests itself, so nothing is waited for")
        if status.headless or not arguments.wait:
            mark = " SIMULATED" if status.simulated else ""
            say(f"{name} is starting at {status.url}{mark}. `vtop status` shows it, `vtop stop {name}` stops it.")
            return 0
        status = await wait_until_ready(service, name, arguments.timeout)
        mark = " SIMULATED" if status.simulated else ""
        say(f"{name} is READY at {status.url} ({status.model}){mark}")
        return 0

    return with_service(options_from(arguments, discover=False), use)


def run_logs(arguments: argparse.Namespace) -> int:
    """Prints the end of a log, and follows it if asked."""

    async def use(service: VtopService) -> int:
        if not service.known(arguments.name).owned:
            raise UsageError(f"{arguments.name} was not started by vtop: its log is not known here")
        path = service.supervisor.log_path(arguments.name)
        if not arguments.follow:
            for line in last_lines(path, arguments.lines):
                say(line)
            return 0
        # In one go: what is written while the last lines are printed belongs to what follows.
        async for line in follow(path, arguments.lines):
            say(line)
            sys.stdout.flush()  # a pipe (`| grep`) would else get it in blocks, minutes late
        return 0

    return with_service(options_from(arguments, discover=False), use)


def run_stop(arguments: argparse.Namespace) -> int:
    """Stops servers and says what is left, if anything is."""

    async def use(service: VtopService) -> int:
        owned = [status for status in service.statuses() if status.owned]
        names = list(dict.fromkeys(arguments.names))
        if arguments.all:
            # A deployment is stopped as one: its router first, so that nothing arrives any more.
            there = {s.name for s in owned}
            running = [s for s in owned if s.state is not ServerState.STOPPED]
            whole = [s.deployment if s.deployment in there else s.name for s in running]
            names = [name for name in dict.fromkeys(whole) if name is not None]
        elif not names:
            known = ", ".join(s.name for s in owned if s.state is not ServerState.STOPPED) or "none"
            raise UsageError("which server?", f"`vtop stop NAME` or `vtop stop --all`. Running: {known}.")
        if not names:
            say("nothing to stop")
            return 0
        for name in names:
            service.known(name)
        if not confirmed(f"Stop {', '.join(names)}?", arguments.yes):
            return 1
        reports = await asyncio.gather(*(service.stop_server(name) for name in names))
        for report in reports:
            if report.stopped:
                port = ", port free" if report.port_checked else ""
                say(f"{report.name} stopped in {report.seconds:.1f} s; no process left{port}")
            else:
                note(f"{report.name} is not gone: {'; '.join(report.left)}")
        return 0 if all(report.stopped for report in reports) else 1

    return with_service(options_from(arguments, discover=False), use)
