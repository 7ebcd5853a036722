"""`vtop compare`: the before/after table with intervals and verdicts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from vtop import units
from vtop.commands.console import note, say, say_json, table
from vtop.commands.load import request_from
from vtop.commands.session import options_from, with_service
from vtop.compare.asked_load import load_of
from vtop.errors import UsageError
from vtop.experiments import SIMULATED_WARMUP
from vtop.preset_files import parse_set
from vtop.results.columns import SECOND_HALF, second_half
from vtop.results.comparison import CompareProgress, CompareRequest, CompareRow, CompareStep
from vtop.results.intervals import smallest_difference
from vtop.service import VtopService

_LOOK_EVERY_S = 0.25
DEFAULT_REPEATS = 3
SIMULATED_REPEATS = 3
SIMULATED_REQUESTS = 32
SIMULATED_TOKENS = 32
_HEADING = (
    "CONFIGURATION",
    "TOK/S",
    "X FIRST",
    "95 %",
    "TTFT P50",
    "TPOT P50",
    "DRAM",
    "HITS",
    "ACCEPTED",
    "FAILED",
    "VERDICT",
)


def _interval(row: CompareRow) -> str:
    if row.ratio_low is None or row.ratio_high is None:
        return units.DASH
    return f"{row.ratio_low:.2f}–{row.ratio_high:.2f}"


def _cells(row: CompareRow) -> tuple[str, ...]:
    dram = units.percent_of_100(row.bandwidth_percent)
    if row.bandwidth_percent is not None and row.bandwidth_source:
        dram += f" {row.bandwidth_source}"
    return (
        row.preset,
        units.significant(row.output_tokens_per_s),
        units.DASH if row.ratio is None else f"{row.ratio:.2f}x",
        _interval(row),
        units.duration(row.ttft_p50_s),
        units.duration(row.tpot_p50_s),
        dram,
        units.percent(row.prefix_hit_rate),
        units.percent(row.acceptance),
        str(row.failed),
        row.verdict,
    )


def _latency(name: str, before_s: float | None, after_s: float | None, verdict: str) -> str:
    if verdict.startswith("not comparable") or before_s is None or after_s is None:
        return f"{name} {verdict}"
    return f"{name} p50 {units.duration(before_s)} to {units.duration(after_s)}: {verdict}"


def _against(row: CompareRow, other: CompareRow, ttft_verdict: str, tpot_verdict: str) -> str:
    """Latencies of a row beside those of another."""
    parts = (
        _latency("TTFT", other.ttft_p50_s, row.ttft_p50_s, ttft_verdict),
        _latency("TPOT", other.tpot_p50_s, row.tpot_p50_s, tpot_verdict),
    )
    return "; ".join(parts)


def _said_of(row: CompareRow, rows: Sequence[CompareRow]) -> list[str]:
    """What stands under the table for one row."""
    first = rows[0]
    if row is first or not row.runs or not first.runs:
        return list(row.notes)
    said = [f"against {first.preset}: {_against(row, first, row.ttft_verdict, row.tpot_verdict)}"]
    beside = next((other for other in rows if other.preset == row.beside), None)
    if beside is not None and row.beside_ratio is not None:
        latencies = _against(row, beside, row.beside_ttft_verdict, row.beside_tpot_verdict)
        said.append(f"against {beside.preset}: {row.beside_ratio:.2f}x, {row.beside_verdict}; {latencies}")
    if row.beside_predicted_ratio is not None:
        said.append(f"predicted by bytes and FLOPs: {row.beside_predicted_ratio:.2f}x of {row.beside}")
    return [*said, *row.notes]


def comparison_table(rows: Sequence[CompareRow]) -> str:
    """The table for a terminal in two halves, with each row's notes under it."""
    lines = [
        table([_cells(row) for row in rows], _HEADING, right=range(1, 10)),
        "",
        table([second_half(row) for row in rows], [name.upper() for name in SECOND_HALF], right=range(1, 11)),
    ]
    for row in rows:
        if said := _said_of(row, rows):
            lines.append(row.preset)
            lines += [line for text in said for line in _wrapped(text)]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, width=116, initial_indent="  - ", subsequent_indent="    ")


def describe_plan(progress: CompareProgress) -> str:
    """The steps and how long they will take."""
    rounds: dict[int, list[str]] = {}
    for step in progress.steps:
        rounds.setdefault(step.round, []).append(step.preset)
    lines = [f"round {number}: {' · '.join(presets)}" for number, presets in sorted(rounds.items())]
    lines.append(
        f"about {units.elapsed(progress.expected_s)}, by the last times"
        if progress.expected_s
        else "how long it takes is not known: not all of it was started and loaded here before"
    )
    return "\n".join([*lines, _reach(progress.request.repeats), *progress.warnings])


def _reach(rounds: int) -> str:
    smallest = smallest_difference(rounds)
    if smallest is None:
        return "one run of each: numbers, but no verdict"
    return f"{rounds} rounds can tell a difference of about {units.percent(smallest)} from the usual noise of 2 %"


class _Log:
    """Says each step once."""

    def __init__(self) -> None:
        self._said: set[tuple[int, str, str]] = set()

    def show(self, progress: CompareProgress) -> None:
        for step in progress.steps:
            key = (step.round, step.preset, step.state)
            if step.state in {"waiting"} or key in self._said:
                continue
            self._said.add(key)
            where = f"{units.elapsed(progress.elapsed_s):>7}  round {step.round}  {step.preset}"
            note(f"{where}: {step.state}{_outcome(step)}")


def _outcome(step: CompareStep) -> str:
    """What came out of a run that is over; of one that has just begun there is nothing to say."""
    if step.state not in {"done", "failed"}:
        return ""
    speed = "" if step.output_tokens_per_s is None else f"  {units.rate(step.output_tokens_per_s, 'tok/s')}"
    return f"{speed}  {step.detail}".rstrip()


async def watch_compare(service: VtopService) -> CompareProgress:
    """Waits for the end. Ctrl-C, SIGTERM or a closed terminal stop it, with its server; what was measured is kept."""
    waiting = asyncio.ensure_future(service.wait_compare())
    log = _Log()
    with _stopped_by_signals(service):
        while not waiting.done():
            progress = service.compare_progress()
            if progress is not None:
                log.show(progress)
            await asyncio.wait([waiting], timeout=_LOOK_EVERY_S)
        return waiting.result()


@contextlib.contextmanager
def _stopped_by_signals(service: VtopService) -> Iterator[None]:
    """Signals that end a program stop the comparison instead, until it is over; `nohup` is respected."""
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    def stop(number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            # The terminal is gone: another word to it would be an error and end the stop half way.
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        stops.append(loop.create_task(service.stop_compare()))

    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    with contextlib.suppress(NotImplementedError, RuntimeError):
        for number in numbers:
            loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError, RuntimeError):
            for number in numbers:
                loop.remove_signal_handler(number)


def print_outcome(progress: CompareProgress) -> None:
    """The table, what speaks against it, and where it is saved."""
    if progress.simulated:
        say("SIMULATED: from a simulated server and GPU (bytes and FLOPs over the card's peaks), not from hardware.")
    say(comparison_table(progress.rows))
    for text in progress.warnings:
        say(f"note: {text}")
    say(f"saved in {progress.directory}; `vtop report {progress.run_id} --format html -o report.html`")
    if progress.state != "finished":
        say(f"not finished ({progress.state}); `vtop compare --resume {progress.run_id}` goes on")


def _request_from(arguments: argparse.Namespace) -> CompareRequest:
    """What the command line asks for."""
    request = CompareRequest(
        presets=tuple(arguments.presets),
        repeats=arguments.repeats or (SIMULATED_REPEATS if arguments.sim else DEFAULT_REPEATS),
        overrides=parse_set(arguments.set),
        simulated=bool(arguments.sim),
        gpu=arguments.gpu,
        order=arguments.order,
        seed=arguments.seed,
    )
    # `--url` before the verb is for the dashboard, and a seed belongs to the comparison: each round adds to it.
    asked = replace(request_from(arguments, usual="chat"), url="", seed=None)
    plain = replace(
        request,
        workload=asked.workload,
        requests=asked.requests,
        concurrency=asked.concurrency,
        max_tokens=asked.max_tokens,
        warmup=asked.warmup,
    )
    own = replace(request, workload=asked.shape or asked.workload, load=asked)
    if load_of(own) != load_of(plain):
        return own
    if not arguments.sim or arguments.workload:
        return plain
    # Simulated time passes as slowly as real time: without a wish of one's own, a table in two minutes.
    return replace(
        plain,
        workload="demo",
        requests=SIMULATED_REQUESTS if plain.requests is None else plain.requests,
        max_tokens=SIMULATED_TOKENS if plain.max_tokens is None else plain.max_tokens,
        warmup=SIMULATED_WARMUP if plain.warmup is None else plain.warmup,
    )


def run_compare(arguments: argparse.Namespace) -> int:
    """Plans, runs, prints; exit 1 when it failed, 130 when it was cut."""
    if arguments.resume is None and len(arguments.presets) < 1:
        raise UsageError("nothing to compare", "`vtop compare baseline prefix-caching --workload prefix`, for example.")
    if arguments.repeats is not None and arguments.repeats < 1:
        raise UsageError(f"--repeats {arguments.repeats}: at least one run is needed", "Three give an interval.")
    request = _request_from(arguments)

    async def use(service: VtopService) -> int:
        if arguments.resume is not None:
            await service.resume_compare(arguments.resume)
        else:
            plan = await service.plan_compare(request)
            note(describe_plan(plan))
            if arguments.dry_run:
                return 0
            await service.start_compare(request)
        progress = await watch_compare(service)
        if arguments.json:
            say_json(msgspec.to_builtins(progress))
        else:
            print_outcome(progress)
        return {"finished": 0, "cancelled": 130}.get(progress.state, 1)

    # A comparison opens servers itself; those of others are of no concern.
    fixed = {"discover": False, "simulated": bool(arguments.sim), **({"gpu": arguments.gpu} if arguments.gpu else {})}
    return with_service(options_from(arguments, **fixed), use)
