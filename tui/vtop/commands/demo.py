"""`vtop demo`: everything on a simulated card; without a terminal the same story as text."""

from __future__ import annotations

import argparse

from vtop import units
from vtop.commands.compare import comparison_table, watch_compare
from vtop.commands.console import note, say
from vtop.commands.dashboard import can_show, show
from vtop.commands.load import watch_load
from vtop.commands.replay import SHIPPED, recording
from vtop.commands.servers import wait_until_ready
from vtop.commands.session import options_from, with_service
from vtop.commands.status import describe
from vtop.load.progress import LoadRequest
from vtop.load.summary import summary_text
from vtop.results.comparison import CompareRequest
from vtop.servers.status import ServerState
from vtop.service import ServiceOptions, VtopService
from vtop.service.replaying import ReplayService
from vtop.telemetry.snapshot import ServerView

PRESET = "baseline"
START_WITHIN_S = 60.0
LOOK_EVERY_S = 1.0
"""Distance of the moments of the recording that are looked at for its account."""


def _options(arguments: argparse.Namespace) -> ServiceOptions:
    return options_from(arguments, simulated=True, gpu=arguments.gpu, discover=False)


async def _story(service: VtopService) -> int:
    """Start, load test, table, stop."""
    name = await service.start_server(PRESET)
    try:
        status = await wait_until_ready(service, name, START_WITHIN_S)
        say(f"{name} is READY at {status.url} on a simulated {service.options.gpu}: SIMULATED")
        await service.start_load(LoadRequest(workload="demo", server=name))
        result = await watch_load(service)
        say(summary_text(result))
        say(describe(service.snapshot()))
    finally:
        report = await service.stop_server(name)
        note(f"{name} stopped: {'nothing left' if report.stopped else ', '.join(report.left)}")
    request = CompareRequest(
        presets=("sequential", "baseline"), workload="demo", repeats=2, requests=16, max_tokens=64, simulated=True
    )
    await service.start_compare(request)
    progress = await watch_compare(service)
    say("SIMULATED: a model of the card, not a measurement.")
    say(comparison_table(progress.rows))
    say(recorded_account(ReplayService(recording(SHIPPED))))
    return 0 if report.stopped and result.completed > 0 and progress.state == "finished" else 1


def recorded_account(service: ReplayService) -> str:
    """What happens in a recording, in a few lines: how long the start took, and the numbers under the most load."""
    replay = service.replay
    ready_s: float | None = None
    busiest: ServerView | None = None
    position_s = 0.0
    while position_s <= replay.duration_s:
        replay.seek(position_s)
        for view in replay.snapshot().servers:
            if ready_s is None and view.status.state is ServerState.READY:
                ready_s = position_s
            if _output(view) > (_output(busiest) if busiest is not None else 0.0):
                busiest = view
        position_s += LOOK_EVERY_S
    lines = ["RECORDING of a real vLLM, not simulated; `vtop replay demo` plays it on the screen:"]
    if ready_s is not None:
        lines.append(f"  ready {units.elapsed(ready_s)} after the recording began")
    if busiest is not None and busiest.engine is not None:
        engine = busiest.engine
        lines.append(
            f"  vLLM {busiest.status.version} with {busiest.status.model}: up to "
            f"{units.rate(engine.generation_tokens_per_s, 'tok/s')}, TTFT mean "
            f"{units.duration(engine.ttft.mean_s if engine.ttft else None)}, TPOT mean "
            f"{units.duration(engine.tpot.mean_s if engine.tpot else None)}, by the server's own counters"
        )
    return "\n".join(lines)


def _output(view: ServerView) -> float:
    return (view.engine.generation_tokens_per_s if view.engine is not None else None) or 0.0


def run_demo(arguments: argparse.Namespace) -> int:
    """The simulated dashboard, or the same without a terminal."""
    options = _options(arguments)
    if can_show():
        return show(options, arguments, demo=not arguments.no_tour, recording=lambda: ReplayService(recording(SHIPPED)))
    return with_service(options, _story)
