"""Series and their differences over a window: the plain shapes in which a /metrics page reaches vLLM's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]

KIND_LABELS = frozenset(
    {"le", "finished_reason", "reason", "source", "position", "sleep_state", "stage", "operation", "status", "quantile"}
)
"""Labels that split one engine's figure; every other label says whose figure it is (model, engine, server)."""

_CUMULATIVE_ENDS = ("_total", "_bucket", "_count", "_sum")


class Series(NamedTuple):
    """One line's identity: exact name and labels, sorted by label name, unescaped."""

    name: str
    labels: Labels

    @property
    def cumulative(self) -> bool:
        """Counters and the parts of histograms: they only grow while the process lives."""
        return self.name.endswith(_CUMULATIVE_ENDS)

    @property
    def owner(self) -> Labels:
        """The labels that say whose figure this is."""
        return tuple(pair for pair in self.labels if pair[0] not in KIND_LABELS)


@dataclass(frozen=True, eq=False)
class Layout:
    """The series of a page in page order; pages with equal series share one layout."""

    series: tuple[Series, ...]

    @cached_property
    def index(self) -> dict[Series, int]:
        """Where each series is."""
        return {series: position for position, series in enumerate(self.series)}

    @cached_property
    def cumulative(self) -> tuple[int, ...]:
        """Positions of the series that only grow."""
        return tuple(position for position, series in enumerate(self.series) if series.cumulative)

    @cached_property
    def owners(self) -> frozenset[Labels]:
        """Everyone who has a figure on this page."""
        return frozenset(series.owner for series in self.series)


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """A page and what changed over the window that ends with it. NaN stands for unknown."""

    layout: Layout
    last: Sequence[float]
    """The newest value of each series."""
    increase: Sequence[float] | None = None
    """Growth of each series over the window; never negative. None: there is no window yet, or no telling."""
    span_s: float = 0.0
    """The window really covered."""
    restarted: bool = False
    """The counters began again inside the window that was asked for."""
    unavailable: str = ""
    """Why there are no increases, in one line."""
