"""`vtop load`: one load test, its progress on stderr, its result on stdout."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import signal
import sys

from vtop import secrets
from vtop.commands.console import note, say, say_json, table
from vtop.commands.session import options_from, with_service
from vtop.errors import UsageError, VtopError
from vtop.late_httpx import httpx
from vtop.load.progress import LoadProgress, LoadRequest, LoadResult, Percentiles
from vtop.load.shapes import changed, load_shapes
from vtop.load.summary import STEP_HEADING, progress_line, step_row, summary_text
from vtop.load.workload import WORKLOADS
from vtop.servers.status import ServerState
from vtop.service import VtopService

_REDRAW_S = 0.25


_WISHES = {
    "duration": "duration_s",
    "ramp": "ramp_s",
    "timeout": "timeout_s",
    "slo_ttft": "slo_ttft_s",
    "slo_tpot": "slo_tpot_s",
    "slo_e2e": "slo_e2e_s",
}
"""Options whose names on the command line have no unit."""


def request_from(arguments: argparse.Namespace, usual: str = "demo") -> LoadRequest:
    """What the command line asks for: the shape's values, where one is named, changed by the other options.

    Args:
        arguments: of a verb that sends a load.
        usual: the workload where none is named.

    Raises:
        UsageError: there is no such shape, or a shape stands where a workload belongs.
    """
    fields = {field.name for field in dataclasses.fields(LoadRequest)}
    options = {_WISHES.get(name, name): value for name, value in vars(arguments).items()}
    wishes = {name: value for name, value in options.items() if name in fields and name not in ("search", "shape")}
    if getattr(arguments, "search", False):
        wishes["search"] = True
    if arguments.shape:
        return changed(load_shapes().find(arguments.shape).request(), wishes)
    named = arguments.workload
    if named and named not in WORKLOADS and named in load_shapes().shapes:
        raise UsageError(f"{named} is a load shape, not a workload", f"Name it so: --shape {named}.")
    return changed(LoadRequest(workload="file" if arguments.file else usual), wishes)


def _choose_server(service: VtopService) -> str:
    """The only ready server.

    Raises:
        UsageError: there is none, or more than one.
    """
    ready = [
        s
        for s in service.statuses()
        if s.state in {ServerState.READY, ServerState.FOREIGN} and s.role in {"", "router"}
    ]
    if len(ready) == 1:
        return ready[0].name
    if not ready:
        raise UsageError("no server is ready", "Start one (`vtop start PRESET --wait`), or give --url.")
    raise UsageError("several servers are ready", f"Name one with --server: {', '.join(s.name for s in ready)}.")


async def first_model(url: str, api_key: str | None, ca_file: str | None) -> str:
    """The first model that a server lists.

    Raises:
        VtopError: no answer, a key is needed, or what answers is no OpenAI-compatible server.
    """
    shown = secrets.without_user(url)
    headers = {"Authorization": f"Bearer {key}"} if (key := secrets.resolve(api_key)) else {}
    try:
        async with httpx.AsyncClient(timeout=10, verify=ca_file or True) as client:
            answer = await client.get(f"{url.rstrip('/')}/v1/models", headers=headers)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise UsageError(f"{shown} is not an address: {error}", "Write it like http://127.0.0.1:8000.") from error
    except (httpx.HTTPError, OSError) as error:
        raise VtopError(
            f"no answer from {shown}: {error or type(error).__name__}", "Is the server up? Is the port right?"
        ) from error
    if answer.status_code in {401, 403}:
        raise VtopError(
            f"{shown} needs an API key (HTTP {answer.status_code})", "Give --api-key env:NAME or file:PATH."
        )
    try:
        return str(answer.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise VtopError(
            f"{shown} is not an OpenAI-compatible server: /v1/models answered HTTP {answer.status_code}",
            "Give the base address, without /v1, or name the model with --model.",
        ) from error


def result_to_json(result: LoadResult) -> dict[str, object]:
    """The result with units in its key names (docs/json.md): `ttft` becomes `ttft_n`, `ttft_mean_s`, ..."""
    flat: dict[str, object] = {}
    for key, value in dataclasses.asdict(result).items():
        if isinstance(getattr(result, key), Percentiles):
            flat |= {f"{key}_{part}" + ("" if part == "n" else "_s"): number for part, number in value.items()}
        else:
            flat[key] = value
    return flat


class _Bar:
    """A line that redraws itself on a terminal, and is silent elsewhere; finished steps stay above it."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._state = ""
        self._steps = 0

    def show(self, progress: LoadProgress) -> None:
        if self._steps < len(progress.steps):
            self.clear()
            if not self._steps:
                note(STEP_HEADING)
            for step in progress.steps[self._steps :]:
                held = "" if step.holds is None else "  holds" if step.holds else f"  {step.why}"
                note(step_row(step) + held)
            self._steps = len(progress.steps)
        if self._live:
            sys.stderr.write("\r\x1b[2K" + progress_line(progress))
            sys.stderr.flush()
        elif progress.state != self._state:
            self._state = progress.state
            note(f"{progress.request.workload}: {progress.state}")

    def clear(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


async def watch_load(service: VtopService) -> LoadResult:
    """Waits for the result, drawing progress; Ctrl-C ends the test and keeps what was measured.

    Raises:
        VtopError: the test could not be run.
    """
    loop = asyncio.get_running_loop()
    waiting = asyncio.ensure_future(service.wait_load())
    stops: list[asyncio.Task[None]] = []
    with contextlib.suppress(NotImplementedError, RuntimeError):
        loop.add_signal_handler(signal.SIGINT, lambda: stops.append(loop.create_task(service.stop_load())))
    bar = _Bar()
    try:
        while not waiting.done():
            progress = service.load_progress()
            if progress is not None:
                bar.show(progress)
            await asyncio.wait([waiting], timeout=_REDRAW_S)
        return waiting.result()
    finally:
        bar.clear()
        with contextlib.suppress(NotImplementedError, RuntimeError):
            loop.remove_signal_handler(signal.SIGINT)


def run_load(arguments: argparse.Namespace) -> int:
    """Runs the test; exit 1 when failures are above the limit, 130 when it was cut."""
    request = request_from(arguments)

    async def use(service: VtopService) -> int:
        if arguments.list:
            say(table([(w.name, w.summary) for w in service.workloads()], ("WORKLOAD", "WHAT IT SENDS")))
            shapes = service.load_shapes()
            say("\n" + table([(s.name, s.summary) for s in shapes], ("SHAPE (--shape)", "WHAT IT SENDS")))
            return 0
        aimed = request
        if not aimed.url and aimed.server is None:
            aimed = dataclasses.replace(aimed, server=_choose_server(service))
        if aimed.url and not aimed.model:
            model = await first_model(aimed.url, aimed.api_key, aimed.ca_file)
            aimed = dataclasses.replace(aimed, model=model)
        await service.start_load(aimed)
        result = await watch_load(service)
        if arguments.json:
            say_json(result_to_json(result))
        else:
            say(summary_text(result))
        if not result.complete:
            return 130
        return 0 if result.comparable and result.completed > 0 else 1

    urls = (request.url,) if request.url else ()
    return with_service(options_from(arguments, urls=urls, discover=False), use)
