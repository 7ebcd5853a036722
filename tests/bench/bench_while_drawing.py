"""What the screen does to a measured TTFT: the load client alone, and beside a screen that draws live load charts."""

from __future__ import annotations

import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from bench.bench_load import measure  # noqa: E402
from ui.pseudo_terminal import live_app  # noqa: E402

Row = tuple[str, str, str, str]
STREAMS = 16
PAIRS = 3
BUDGET_MS = 1.0


@contextmanager
def drawing() -> Iterator[None]:
    """A screen of 120x40 with a load test drawn live; a thread takes what it writes, as a terminal does."""
    terminal = live_app(["live-load"], (120, 40))
    done = threading.Event()

    def take() -> None:
        while not done.is_set():
            terminal.read(0.2)

    try:
        terminal.wait_for("baseline")
        terminal.press("l")
        terminal.wait_for("Load test")
        reader = threading.Thread(target=take)
        reader.start()
        yield
        done.set()
        reader.join()
    finally:
        done.set()
        terminal.close()


def _error_ms(found: dict[str, Any] | None) -> float:
    if found is None:
        raise RuntimeError("the load client did not finish")
    return float(found["ttft_error_ms"])


def run() -> list[Row]:
    """The rows: what, beside the screen, alone, verdict."""
    alone, beside = [], []
    for _ in range(PAIRS):
        alone.append(_error_ms(measure("vtop", STREAMS)))
        with drawing():
            beside.append(_error_ms(measure("vtop", STREAMS)))
    worse = statistics.median(two - one for one, two in zip(alone, beside, strict=True))
    verdict = "kept" if worse <= BUDGET_MS else "MISSED"
    return [
        (
            f"TTFT added while the screen draws, {STREAMS} streams, median of {PAIRS} pairs",
            f"{statistics.median(beside):.2f} ms",
            f"without a screen {statistics.median(alone):.2f} ms",
            f"{worse:+.2f} ms, budget {BUDGET_MS:g} ms: {verdict}",
        )
    ]
