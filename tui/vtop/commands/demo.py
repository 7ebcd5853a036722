"""`vtop demo`: everything on a simulated card; without a terminal the same story as text."""

from __future__ import annotations

import argparse

from vtop.commands.compare import comparison_table, watch_compare
from vtop.commands.console import note, say
from vtop.commands.dashboard import can_show, show
from vtop.commands.load import watch_load
from vtop.commands.servers import wait_until_ready
from vtop.commands.session import options_from, with_service
from vtop.commands.status import describe
from vtop.contract import CompareRequest
from vtop.load.progress import LoadRequest
from vtop.load.summary import summary_text
from vtop.service import ServiceOptions, VtopService

PRESET = "baseline"
START_WITHIN_S = 60.0


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
    return 0 if report.stopped and result.completed > 0 and progress.state == "finished" else 1


def run_demo(arguments: argparse.Namespace) -> int:
    """The simulated dashboard, or the same without a terminal."""
    options = _options(arguments)
    if can_show():
        return show(options, arguments, demo=not arguments.no_tour)
    return with_service(options, _story)
