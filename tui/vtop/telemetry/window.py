"""Scrapes over time to differences over the stated window: restarts, gaps, and several servers behind one address.

A counter is compared only with itself: within one run of the server, and only if the same server answered. Whatever
cannot be compared is unknown (NaN), never negative and never a count since the server started.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from vtop.vllm.metric_names import PROCESS_START
from vtop.vllm.samples import Differences, Layout, Series

_KEEP_AT_LEAST_S = 60.0
_MOST_SCRAPES = 1200
_TURNS_REMEMBERED_S = 60.0
_ROUNDING = 1e-9
"""Sums merged from several files are added up in changing order."""

TAKING_TURNS = "several servers answer in turn at this address, so rates cannot be told; use the address of one of them"


@dataclass(slots=True, eq=False)
class _Scrape:
    at_s: float
    layout: Layout
    values: array[float]
    run: int
    """Counts the runs of the server; counters of two runs cannot be compared."""


class ScrapeWindow:
    """Keeps the scrapes of one server and compares the newest with the one nearest to the window's beginning.

    Args:
        window_s: the window asked for, in seconds.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._scrapes: deque[_Scrape] = deque()
        self._run = 0
        self._run_began_s = -math.inf
        self._drops: deque[float] = deque()
        self._turns_until_s = -math.inf

    def add(self, at_s: float, layout: Layout, values: array[float]) -> None:
        """Takes a page in.

        Args:
            at_s: when it was read, monotonic seconds; pages that are not newer than the last one are dropped.
            layout: its series.
            values: their values, in the layout's order.
        """
        before = self._scrapes[-1] if self._scrapes else None
        if before is not None and at_s <= before.at_s:
            return
        if before is not None:
            self._watch_runs(before, at_s, layout, values)
        self._scrapes.append(_Scrape(at_s, layout, values, self._run))
        oldest = at_s - max(_KEEP_AT_LEAST_S, 2 * self.window_s)
        while len(self._scrapes) > 1 and (self._scrapes[0].at_s < oldest or len(self._scrapes) > _MOST_SCRAPES):
            self._scrapes.popleft()

    def outage(self) -> None:
        """Notes that a scrape failed: what follows may be a new run, and a drop then is no sign of taking turns."""
        self._drops.clear()

    def differences(self) -> Differences | None:
        """The newest page and its growth over the window; None before the first page."""
        if not self._scrapes:
            return None
        newest = self._scrapes[-1]
        wanted = newest.at_s - self.window_s
        restarted = self._run > 0 and self._run_began_s > wanted
        if newest.at_s < self._turns_until_s:
            return Differences(newest.layout, newest.values, unavailable=TAKING_TURNS)
        start: _Scrape | None = None
        for scrape in reversed(self._scrapes):
            if scrape is newest:
                continue
            if scrape.run != newest.run:
                break
            if start is not None and abs(scrape.at_s - wanted) >= abs(start.at_s - wanted):
                break
            start = scrape
        if start is None:
            reason = "the server began again: rates need a second look" if restarted else ""
            return Differences(newest.layout, newest.values, restarted=restarted, unavailable=reason)
        return Differences(
            newest.layout, newest.values, self._growth(start, newest), newest.at_s - start.at_s, restarted
        )

    def _growth(self, start: _Scrape, end: _Scrape) -> Sequence[float]:
        if start.layout is end.layout:
            return [_grown(new, old) for new, old in zip(end.values, start.values, strict=True)]
        index, before = start.layout.index, start.values
        owners = start.layout.owners
        result = []
        for series, value in zip(end.layout.series, end.values, strict=True):
            position = index.get(series)
            if position is not None:
                result.append(_grown(value, before[position]))
            elif self._came_up_since(start, series) and _counts_from_zero(series, owners):
                result.append(_grown(value, 0.0))
            else:
                result.append(math.nan)
        return result

    def _came_up_since(self, start: _Scrape, series: Series) -> bool:
        """Whether no page of this run, up to the window's start, had the series: a page cut short may lack it too."""
        return all(
            series not in scrape.layout.index
            for scrape in self._scrapes
            if scrape.run == start.run and scrape.at_s <= start.at_s
        )

    def _watch_runs(self, before: _Scrape, at_s: float, layout: Layout, values: array[float]) -> None:
        while self._drops and self._drops[0] < at_s - _TURNS_REMEMBERED_S:
            self._drops.popleft()
        started = _process_start(layout, values)
        was = _process_start(before.layout, before.values)
        if started is not None and was is not None and started != was:
            # Whoever comes after a process is younger; an older one was there all along and takes turns with it.
            if started < was:
                self._turns_until_s = at_s + _TURNS_REMEMBERED_S
            self._begin_run(at_s)
            return
        if _dropped(before, layout, values):
            self._drops.append(at_s)
            if len(self._drops) >= 2:
                self._turns_until_s = at_s + _TURNS_REMEMBERED_S
            self._begin_run(at_s)

    def _begin_run(self, at_s: float) -> None:
        self._run += 1
        self._run_began_s = at_s


def _grown(new: float, old: float) -> float:
    growth = new - old
    if growth >= 0:
        return growth
    if growth >= -_ROUNDING * abs(old):
        return 0.0
    return math.nan


def _dropped(before: _Scrape, layout: Layout, values: array[float]) -> bool:
    """Whether a counter went back."""
    old = before.values
    if layout is before.layout:
        return any(values[at] < old[at] - _ROUNDING * abs(old[at]) for at in layout.cumulative)
    index = before.layout.index
    for at in layout.cumulative:
        position = index.get(layout.series[at])
        if position is not None and values[at] < old[position] - _ROUNDING * abs(old[position]):
            return True
    return False


def _counts_from_zero(series: Series, owners_at_start: frozenset[tuple[tuple[str, str], ...]]) -> bool:
    """Whether a series that came up inside the window began at zero in it.

    It did if its engine was there before (engine V0 shows a series only after its first observation). A new engine or
    server may bring its whole past along; only the first figures of all, from a server without an engine label, are
    certainly young.
    """
    owner = series.owner
    if owner in owners_at_start:
        return True
    nobody = all(not any(name == "model_name" for name, _ in met) for met in owners_at_start)
    return nobody and [name for name, _ in owner] == ["model_name"]


def _process_start(layout: Layout, values: array[float]) -> float | None:
    position = layout.index.get(_PROCESS)
    if position is None or not math.isfinite(values[position]):
        return None
    return values[position]


_PROCESS = Series(PROCESS_START, ())
