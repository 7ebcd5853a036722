"""`vtop runs`, `vtop report`, `vtop import`."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from vtop.commands.console import say, say_json, table
from vtop.results import store
from vtop.results.importing import import_file
from vtop.service.exporting import write_report


def run_runs(arguments: argparse.Namespace) -> int:
    """Lists saved runs, newest first."""
    runs = store.list_runs()
    if arguments.json:
        say_json([asdict(run) for run in runs])
        return 0
    if not runs:
        say("no saved runs; `vtop load` makes one")
        return 0
    rows = [
        (
            run.run_id,
            run.kind,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.at_wall_s)),
            run.headline + (" SIMULATED" if run.simulated else "") + ("" if run.complete else " (cut)"),
        )
        for run in runs
    ]
    say(table(rows, ("RUN", "KIND", "AT", "RESULT")))
    return 0


def run_report(arguments: argparse.Namespace) -> int:
    """Writes a report to a file, or prints it."""
    text = write_report(arguments.runs, arguments.format, arguments.output)
    say(f"written: {arguments.output}" if arguments.output else text)
    return 0


def run_import(arguments: argparse.Namespace) -> int:
    """Takes in somebody else's result file."""
    for run_id in import_file(Path(arguments.file)):
        result = store.load_result(run_id)
        say(f"imported as {run_id}: {store.headline(result)}{' SIMULATED' if result.simulated else ''}")
        if result.definitions:
            say(f"  {result.definitions}")
    return 0
