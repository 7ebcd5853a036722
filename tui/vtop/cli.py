"""The `vtop` command: finds the verb and imports only what that verb needs."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    return 0
