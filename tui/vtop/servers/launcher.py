"""When the `vllm` command itself is broken, and not the server that it should start."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BROKEN = re.compile(
    r"PackageNotFoundError|DistributionNotFound|command not found|bad interpreter"
    r"|ImportError: cannot import name 'main' from 'vllm|No module named 'vllm\.(?:scripts|entrypoints\.cli)"
    r"|(?:exec|env|python[\d.]*): .*No such file or directory"
)
_CANNOT_EXECUTE = (126, 127)
"""A shell's exit codes for a command that cannot be run or found."""


def broken_launcher(lines: Sequence[str], exit_code: int | None) -> str:
    """The line that shows a broken launcher, or "" where the server failed for reasons of its own.

    Args:
        lines: the whole log so far; a broken launcher has not said much.
        exit_code: of the process, where it is known.
    """
    if len(lines) > 60:
        return ""
    for line in reversed(lines):
        if _BROKEN.search(line):
            return line.strip()
    return f"exit code {exit_code}" if exit_code in _CANNOT_EXECUTE else ""
