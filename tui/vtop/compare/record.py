"""A comparison on disk: `compare.json` after every step, so that it outlives a crash, and `summary.json` for lists."""

from __future__ import annotations

import os
import secrets
import shlex
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil

from vtop.compare.asked_load import asked_load, kept_for_later, load_of
from vtop.compare.plan import configurations, plan_steps
from vtop.errors import VtopError
from vtop.load.command import options_of
from vtop.results import store
from vtop.results.comparability import Configuration
from vtop.results.compare import compare_rows, drift_between
from vtop.results.comparison import CompareRequest, CompareRow, ComparisonRecord, ConfigurationFacts
from vtop.units import significant

SCHEMA = 1
_FILE = "compare.json"
MOST_LOOKED_AT = 60
"""Earlier comparisons that are searched for the time a load takes."""


class _Document(msgspec.Struct):
    vtop_schema: int
    comparison: ComparisonRecord


def new_record(request: CompareRequest, order: str, wall_s: float, base: Path | None = None) -> ComparisonRecord:
    """A comparison that has not begun, with a directory and a seed of its own."""
    labels = [label for label, _ in configurations(request.presets)]
    request = replace(kept_for_later(request), order=order)
    run_id = store.new_run_id("compare", wall_s, base)
    return ComparisonRecord(
        run_id=run_id,
        directory=str(store.run_directory(run_id, base)),
        request=request,
        at_wall_s=wall_s,
        seed=request.seed if request.seed is not None else secrets.randbelow(2**31 - 10_000),
        steps=plan_steps(labels, request.repeats, order),
        repeat_command=repeat_command(request),
        warnings=_not_in_real_time(request),
    )


def _not_in_real_time(request: CompareRequest) -> tuple[str, ...]:
    speed = request.overrides.get("args.speed") if request.simulated else None
    if speed is None:
        return ()
    return (f"simulated time ran {speed} times as fast: rates and latencies are not those of the card",)


def save_record(record: ComparisonRecord) -> None:
    """Writes it in one step, for its owner only.

    Raises:
        VtopError: the directory cannot be written.
    """
    directory = Path(record.directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        store.write_atomically(directory / _FILE, store.json_bytes(_Document(SCHEMA, record)))
        store.write_atomically(directory / "summary.json", store.json_bytes(summary_of(record)))
    except OSError as error:
        raise VtopError(
            f"cannot save the comparison in {directory}: {error.strerror}", "Free space, or set VTOP_RUNS_DIR."
        ) from error


def load_record(directory: Path) -> ComparisonRecord:
    """A saved comparison.

    Raises:
        VtopError: there is none, it is damaged, or a newer vtop wrote it.
    """
    path = directory / _FILE
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except FileNotFoundError:
        raise VtopError(f"there is no comparison in {directory}", "List them: vtop runs.") from None
    except OSError as error:
        raise VtopError(f"cannot read {path}: {error.strerror}", "Check its permissions.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise VtopError(f"{path} is damaged: {error}", f"Delete the run: {directory.name}.") from error
    if document.vtop_schema > SCHEMA:
        raise VtopError(f"{path} was written by a newer vtop", "Update vtop.")
    return replace(document.comparison, directory=str(directory))


def last_times_s(request: CompareRequest, base: Path | None = None) -> tuple[dict[str, float], dict[str, float]]:
    """How long starts and loads took last, from the newest comparisons: (preset -> seconds, preset -> seconds).

    Args:
        request: what is to be compared: starts are those of the same kind of server, loads those of the same load.
        base: where runs are kept; None: the usual place.
    """
    starts: dict[str, float] = {}
    loads: dict[str, float] = {}
    newest = [entry for entry in store.list_runs(base) if entry.kind == "compare"][:MOST_LOOKED_AT]
    for entry in newest:
        try:
            record = load_record(store.run_directory(entry.run_id, base))
        except VtopError:
            continue  # damaged, or of a newer vtop: it says nothing about time
        if record.request.simulated != request.simulated:
            continue
        same = _same_load(record.request, request)
        for label, preset in configurations(record.request.presets):
            if label in record.started_s:
                starts.setdefault(preset, record.started_s[label])
            if same and label in record.loaded_s:
                loads.setdefault(preset, record.loaded_s[label])
    return starts, loads


def _same_load(one: CompareRequest, two: CompareRequest) -> bool:
    # A file is recorded with its whole path, and may be asked for with a part of it.
    return load_of(kept_for_later(one)) == load_of(kept_for_later(two)) and one.gpu == two.gpu


def claim(record: ComparisonRecord) -> ComparisonRecord:
    """Marks this process as the one that runs it.

    Raises:
        VtopError: another living process does.
    """
    pid, created_s = record.owner_pid, record.owner_created_s
    if pid is not None and pid != os.getpid() and created_s is not None and _alive(pid, created_s):
        raise VtopError(
            f"the comparison {record.run_id} is running in another vtop (pid {pid})",
            "Stop it there, or wait for its end.",
        )
    return replace(record, owner_pid=os.getpid(), owner_created_s=psutil.Process().create_time())


def _alive(pid: int, created_s: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - created_s) < 1.0
    except psutil.Error:
        return False


def with_rows(record: ComparisonRecord) -> ComparisonRecord:
    """The record with its table made again from what was measured."""
    table = []
    for label, _ in configurations(record.request.presets):
        runs = {run.round: run.result for run in record.measured if run.preset == label and not run.drift_check}
        failure = record.failures.get(label, "") if not runs else ""
        table.append(Configuration(label, runs, record.facts.get(label, ConfigurationFacts()), failure))
    drift = ""
    check = next((run.result for run in record.measured if run.drift_check), None)
    if check is not None:
        drift = drift_between(list(table[0].runs.values()), check)
    return replace(record, rows=compare_rows(table, drift))


def summary_of(record: ComparisonRecord) -> store.RunEntry:
    """The comparison in a list of runs."""
    done = sum(step.state == "done" for step in record.steps)
    headline = f"{done} of {len(record.steps)} runs"
    if record.state in ("finished", "cancelled", "failed") and (best := _best(record.rows)):
        headline = f"{best.preset} {significant(best.ratio)}x {best.verdict}"
        if record.state != "finished":
            headline += f" ({record.state}: {done} of {len(record.steps)} runs)"
    return store.RunEntry(
        run_id=record.run_id,
        kind="compare",
        title=" · ".join(record.request.presets),
        at_wall_s=record.at_wall_s,
        simulated=record.simulated,
        complete=record.state == "finished",
        headline=headline,
    )


def _best(rows: tuple[CompareRow, ...]) -> CompareRow | None:
    measured = [row for row in rows[1:] if row.ratio is not None and not row.verdict.startswith("not comparable")]
    return max(measured, key=lambda row: row.ratio or 0.0, default=None)


def repeat_command(request: CompareRequest) -> str:
    """The exact command line; the seed only where it was asked for, since fresh prompts are the point of a repeat."""
    words = ["vtop", "compare", *request.presets]
    plain = request.load is None
    if not plain:
        # The comparison's values took the place of others (`-n` that of a time), so the load is said whole.
        load = asked_load(request)
        words += ["--workload", load.workload, *options_of(load)]
    for flag, value in (
        ("--workload", request.workload if plain else None),
        ("--repeats", request.repeats),
        ("-n", request.requests if plain else None),
        ("-c", request.concurrency if plain else None),
        ("--max-tokens", request.max_tokens if plain else None),
        ("--seed", request.seed),
        ("--order", request.order if request.order != "auto" else None),
        ("--warmup", request.warmup if plain else None),
    ):
        if value is not None:
            words += [flag, str(value)]
    for name, text in request.overrides.items():
        words += ["--set", f"{name}={text}"]
    if request.simulated:
        words.append("--sim")
    if request.gpu:
        words += ["--gpu", request.gpu]
    return shlex.join(words)
