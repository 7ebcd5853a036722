"""`vtop diagnose LOGFILE`: cause and remedy from a vLLM log, whoever started the server."""

from __future__ import annotations

import argparse
from pathlib import Path

from vtop.commands.console import say, say_json
from vtop.errors import UsageError
from vtop.vllm.diagnosis import diagnose

MAX_BYTES = 64 * 2**20
"""A cause stands near the end; more than this is not read."""


def read_log(path: Path, most_bytes: int = MAX_BYTES) -> tuple[list[str], int]:
    """The end of a log as lines, and how many lines stand before; a pipe (`<(docker logs NAME)`) is read to its end.

    Only a line feed ends a line, as for an editor: a progress bar redraws itself within one.

    Raises:
        UsageError: the file cannot be read.
    """
    end, before = b"", 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(most_bytes):
                end += chunk
                before += end.count(b"\n", 0, max(0, len(end) - most_bytes))
                end = end[-most_bytes:]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the path.") from error
    return end.decode("utf-8", errors="replace").split("\n"), before


def run_diagnose(arguments: argparse.Namespace) -> int:
    """Prints the cause, the line that says it, and what to change."""
    lines, before = read_log(Path(arguments.logfile))
    found = diagnose(lines, exit_code=arguments.exit_code)
    line_number = None if found.line_number is None else before + found.line_number
    if arguments.json:
        say_json(
            {
                "code": found.code,
                "headline": found.headline,
                "detail": found.detail,
                "line_number": line_number,
                "remedies": [{"text": r.text, "overrides": dict(r.overrides)} for r in found.remedies],
            }
        )
        return 0
    say(found.headline)
    if found.detail:
        say(f"  {found.detail}")
    if line_number is not None:
        say(f"  line {line_number} of {arguments.logfile}")
    for remedy in found.remedies:
        say(f"  Try: {remedy.text}")
        if remedy.overrides:
            say("       " + " ".join(f"--set {key}={value}" for key, value in remedy.overrides))
    return 0
