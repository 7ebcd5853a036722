"""How long short commands take, beside a bare Python and beside the import of the screen's library, in one run."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.as_installed import environment_of

REPEATS = 5
STATUS_WINDOW_S = 0.2
Row = tuple[str, str, str, str]


def _seconds(words: Sequence[str], environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(words, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def run() -> list[Row]:
    """Rows of what, vtop, against, note; the programs take turns, so that the machine's mood is shared."""
    python = sys.executable
    programs = {
        "version": (python, "-m", "vtop", "--version"),
        "status": (python, "-m", "vtop", "status", "--window", str(STATUS_WINDOW_S)),
        "bare": (python, "-c", "pass"),
        "textual": (python, "-c", "import textual.app"),
    }
    with tempfile.TemporaryDirectory() as home:
        private = {f"VTOP_{n}_DIR": f"{home}/{n}" for n in ("CONFIG", "STATE", "RUNS", "CACHE")}
        environment = environment_of({**os.environ, **private}, Path(home))
        for words in programs.values():
            _seconds(words, environment)  # leaves bytecode
        taken: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(REPEATS):
            for name, words in programs.items():
                taken[name].append(_seconds(words, environment))
    median = {name: statistics.median(values) for name, values in taken.items()}
    against = f"python {median['bare']:.2f} s, import textual {median['textual']:.2f} s"
    note = f"median of {REPEATS}"
    return [
        ("vtop --version", f"{median['version']:.2f} s", against, note),
        ("vtop status", f"{median['status']:.2f} s", against, f"{note}; {STATUS_WINDOW_S} s of it are the window"),
    ]
