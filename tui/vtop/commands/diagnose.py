"""`vtop diagnose LOGFILE`: cause and remedy from a vLLM log, whoever started the server."""

from __future__ import annotations

import argparse
from pathlib import Path

from vtop.commands.console import say, say_json
from vtop.errors import UsageError
from vtop.vllm.diagnosis import diagnose

MAX_BYTES = 64 * 2**20
"""A cause stands near the end; more than this is not read."""


def read_log(path: Path) -> list[str]:
    """The end of a log as lines.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_BYTES))
            return file.read().decode("utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the path.") from error


def run_diagnose(arguments: argparse.Namespace) -> int:
    """Prints the cause, the line that says it, and what to change."""
    lines = read_log(Path(arguments.logfile))
    found = diagnose(lines, exit_code=arguments.exit_code)
    if arguments.json:
        say_json(
            {
                "code": found.code,
                "headline": found.headline,
                "detail": found.detail,
                "line_number": found.line_number,
                "remedies": [{"text": r.text, "overrides": dict(r.overrides)} for r in found.remedies],
            }
        )
        return 0
    say(found.headline)
    if found.detail:
        say(f"  {found.detail}")
    if found.line_number is not None:
        say(f"  line {found.line_number} of {arguments.logfile}")
    for remedy in found.remedies:
        say(f"  Try: {remedy.text}")
        if remedy.overrides:
            say("       " + " ".join(f"--set {key}={value}" for key, value in remedy.overrides))
    return 0
