"""`python -m tests.bench [NAME]...`: every benchmark of this folder, one table each; NAME picks some (cli, load)."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
Row = tuple[str, str, str, str]
HEADING: Row = ("WHAT", "VTOP", "AGAINST", "NOTE")


def names() -> list[str]:
    """The benchmarks of this folder, by name."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def printed(rows: Sequence[Row]) -> str:
    """The rows in columns."""
    every = [HEADING, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every
    )


def main(wanted: Sequence[str]) -> int:
    """Runs them one after the other; exit 1 when one failed, 2 for a name that is none."""
    known = names()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"no benchmark is called {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]
    failed = False
    for name in wanted or known:
        began = time.monotonic()
        print(f"== {name}", flush=True)
        try:
            rows = importlib.import_module(f"bench.bench_{name}").run()
        except Exception as error:  # One benchmark that breaks must not hide the others.
            failed = True
            print(f"FAILED: {type(error).__name__}: {error}\n", flush=True)
            continue
        print(f"{printed(rows)}\n({time.monotonic() - began:.0f} s)\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
