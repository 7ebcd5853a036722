"""Which configuration runs when, and how long it will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vtop.errors import UsageError
from vtop.results.comparison import CompareRequest, CompareStep

SLOW_START_S = 120.0
"""Starts below this are affordable before each run."""
SLOW_START_SHARE = 3.0
"""So are starts below this many times the run itself."""
STOP_S = 5.0
"""Allowed for a stop in estimates."""


def configurations(presets: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(label, preset) in the order of the table; a preset against itself is `baseline` and `baseline (2)`.

    Raises:
        UsageError: fewer than two.
    """
    if len(presets) < 2:
        raise UsageError("a comparison needs at least two presets", "For example: vtop compare baseline prefix-caching")
    seen: Counter[str] = Counter()
    labelled = []
    for preset in presets:
        seen[preset] += 1
        labelled.append((preset if seen[preset] == 1 else f"{preset} ({seen[preset]})", preset))
    return tuple(labelled)


def settled_order(request: CompareRequest, started_s: Mapping[str, float], loaded_s: Mapping[str, float]) -> str:
    """`interleaved`, or `blocks` where starts are known to take much longer than the runs.

    Args:
        request: what was asked; its own choice wins.
        started_s: preset -> seconds of its last start.
        loaded_s: preset -> seconds of its last load.

    Raises:
        UsageError: an order that does not exist, or that would measure its own cache.
    """
    if request.order not in ("interleaved", "blocks", "auto"):
        raise UsageError(f"unknown order {request.order!r}", "Use interleaved, blocks or auto.")
    if request.load is not None and request.load.file is not None:
        if request.order == "blocks":
            raise UsageError(
                "blocks keep one server up for all its runs, and a file has the same prompts for each",
                "Leave --order out: with a server of its own for each run no prompt is in the cache.",
            )
        return "interleaved"
    if request.order != "auto":
        return request.order
    slowest = max((started_s.get(preset, 0.0) for preset in request.presets), default=0.0)
    longest = max((loaded_s.get(preset, 0.0) for preset in request.presets), default=0.0)
    slow = request.repeats > 1 and slowest > SLOW_START_S and longest > 0 and slowest > SLOW_START_SHARE * longest
    return "blocks" if slow else "interleaved"


def plan_steps(labels: Sequence[str], repeats: int, order: str) -> tuple[CompareStep, ...]:
    """All runs in the order in which they are made.

    Interleaved, every other round backwards (A B C, C B A, ...), so that a drift falls on all alike. In blocks each
    configuration starts once, and the first one runs again at the end, to see whether conditions drifted.

    Raises:
        UsageError: no round.
    """
    if repeats < 1:
        raise UsageError("a comparison needs at least one run of each preset", "Use --repeats 3 or more for a verdict.")
    if order == "interleaved":
        return tuple(
            CompareStep(round=number, preset=label, state="waiting")
            for number in range(1, repeats + 1)
            for label in (labels if number % 2 else reversed(labels))
        )
    blocks = [
        CompareStep(round=number, preset=label, state="waiting") for label in labels for number in range(1, repeats + 1)
    ]
    check = CompareStep(round=repeats + 1, preset=labels[0], state="waiting", detail="drift check", drift_check=True)
    return (*blocks, check)


def remaining_s(
    steps: Sequence[CompareStep], order: str, started_s: Mapping[str, float], loaded_s: Mapping[str, float]
) -> float | None:
    """Seconds that the steps which are not behind us will take, from the last times; None where one is unknown.

    Args:
        steps: all steps, or those that are left.
        order: as planned.
        started_s: label -> seconds of its last start.
        loaded_s: label -> seconds of its last load.
    """
    total, up = 0.0, None
    for step in steps:
        if step.state in ("done", "failed"):
            continue
        if order == "interleaved" or step.preset != up:
            start = started_s.get(step.preset)
            if start is None:
                return None
            total += start + STOP_S
            up = step.preset
        load = loaded_s.get(step.preset)
        if load is None:
            return None
        total += load
    return total
