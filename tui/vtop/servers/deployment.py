"""Several processes as one server: prefill, decode and the router in front, or replicas behind one address."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from vtop.errors import VtopError
from vtop.late_httpx import httpx
from vtop.servers.status import ServerState, ServerStatus
from vtop.vllm.launch import LaunchCommand

ROUTER = "router"
_WORK: Mapping[str, str] = {"prefill": "vllm:prompt_tokens_total", "decode": "vllm:generation_tokens_total"}
"""The counter that shows that a half did its work."""
_COUNTED_WITHIN_S = 3.0


def member_names(name: str, commands: Sequence[LaunchCommand]) -> list[str]:
    """Names of the members: the router has the deployment's own name, since that is where clients go.

    Raises:
        VtopError: several processes, but not exactly one router.
    """
    if len(commands) == 1:
        return [name]
    roles = Counter(command.role for command in commands)
    if roles[ROUTER] != 1 or "" in roles:
        raise VtopError(f"{name} has {len(commands)} processes, but not exactly one router among them", "")
    numbers: Counter[str] = Counter()
    names = []
    for command in commands:
        numbers[command.role] += 1
        suffix = command.role if roles[command.role] == 1 else f"{command.role}-{numbers[command.role]}"
        names.append(name if command.role == ROUTER else f"{name}.{suffix}")
    return names


def spawn_order(commands: Sequence[LaunchCommand]) -> list[int]:
    """Prefill, then the rest, the router last; in the order given otherwise."""
    rank = {"prefill": 0, ROUTER: 2}
    return sorted(range(len(commands)), key=lambda index: rank.get(commands[index].role, 1))


def together(statuses: Sequence[ServerStatus]) -> tuple[ServerStatus, ...]:
    """Statuses in which a router that works says which half behind it does not."""
    shown = []
    for status in statuses:
        if status.role == ROUTER and status.state in (ServerState.READY, ServerState.DEGRADED):
            lost = [half for half in halves_of(status, statuses) if half.state is not ServerState.READY]
            if lost:
                words = "; ".join(_loss(half) for half in lost)
                status = replace(status, state=ServerState.DEGRADED, message=words)
        shown.append(status)
    return tuple(shown)


def halves_of(router: ServerStatus, statuses: Sequence[ServerStatus]) -> list[ServerStatus]:
    """The servers behind a router."""
    return [s for s in statuses if s.deployment is not None and s.deployment == router.deployment and s.role != ROUTER]


def waits_for(halves: Sequence[ServerStatus]) -> str:
    """Which halves are not READY, in words; "" when the router can work."""
    behind = [half for half in halves if half.state is not ServerState.READY]
    return f"waits for {', '.join(f'{half.name} ({half.state})' for half in behind)}" if behind else ""


def _loss(half: ServerStatus) -> str:
    why = half.diagnosis.headline if half.diagnosis is not None else half.message
    return f"{half.role} ({half.name}) is {half.state}" + (f": {why}" if why else "")


async def read_work(client: httpx.AsyncClient, halves: Sequence[ServerStatus]) -> dict[str, float]:
    """Tokens that each role has worked on so far; a role without a readable page is missing."""
    totals: dict[str, float] = {}
    for half in halves:
        counter = _WORK.get(half.role)
        if counter is None:
            continue
        try:
            page = (await client.get(f"{half.url}/metrics", timeout=5.0)).text
        except httpx.HTTPError:
            continue
        values = re.findall(rf"^{re.escape(counter)}(?:\{{[^\n]*\}})? (\S+)", page, re.MULTILINE)
        if values:
            totals[half.role] = totals.get(half.role, 0.0) + sum(map(float, values))
    return totals


async def served_by_both(client: httpx.AsyncClient, halves: Sequence[ServerStatus], before: Mapping[str, float]) -> str:
    """Whether a request that was answered since `before` went through every half; else which one served nothing."""
    idle: list[str] = []
    for _ in range(int(_COUNTED_WITHIN_S / 0.25)):
        after = await read_work(client, halves)
        idle = [role for role, value in before.items() if role in after and after[role] <= value]
        if not idle:
            return ""
        await asyncio.sleep(0.25)
    return f"a request was answered, but {' and '.join(idle)} served nothing of it"
