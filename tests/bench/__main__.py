"""`make bench`: every benchmark of this folder, one table. Ratios in one run count, not milliseconds.

python -m tests.bench [NAME ...]        NAME: metrics, gpu, load, peers, cli
"""

from __future__ import annotations

import importlib
import platform
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
Row = tuple[str, str, str, str]
HEADING: Row = ("what", "vtop", "against", "note")


def names() -> list[str]:
    """The benchmarks that are here."""
    return sorted(file.stem.removeprefix("bench_") for file in HERE.glob("bench_*.py"))


def print_rows(title: str, rows: list[Row]) -> None:
    """One benchmark's rows as a Markdown table, ready for docs/performance.md."""
    print(f"\n### {title}\n")
    for row in (HEADING, ("---",) * 4, *rows):
        print("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |")
    sys.stdout.flush()


def main() -> int:
    """Runs what was named, or all; a benchmark that cannot run says so and the others go on."""
    sys.path[:0] = [str(HERE.parent), str(HERE)]
    wanted = sys.argv[1:] or names()
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    print(f"{platform.platform()}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d %H:%M')}")
    failed = 0
    for name in wanted:
        try:
            print_rows(name, importlib.import_module(f"bench_{name}").run())
        except Exception as error:
            failed += 1
            print_rows(name, [("could not run", f"{type(error).__name__}: {error}", "", "")])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
