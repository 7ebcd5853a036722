"""The series of a page, ordered by model: whose figures they are, and which lines make up one histogram."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vtop.vllm.histogram import latency
from vtop.vllm.reading import Latency
from vtop.vllm.samples import Differences, Labels, Layout

UNKNOWN = math.nan
"""What a sum is when one of its terms, or all of them, cannot be known."""


@dataclass(slots=True)
class Histogram:
    """Positions of the lines of one histogram, all engines together."""

    counts: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    edges: dict[Labels, dict[float, int]] = field(default_factory=dict)
    bounds: list[float] = field(default_factory=list)
    buckets: list[list[int]] = field(default_factory=list)
    """For each bound, the positions to add up."""

    def close(self) -> None:
        """Keeps the edges that every engine has: only those can be added up."""
        shared = set.intersection(*(set(edges) for edges in self.edges.values())) if self.edges else set()
        self.bounds = sorted(shared)
        self.buckets = [[edges[bound] for edges in self.edges.values()] for bound in self.bounds]


@dataclass(slots=True)
class Family:
    """The lines of one model (or those that name no model), by exact name."""

    model: str | None
    plain: dict[str, list[tuple[Mapping[str, str], int]]] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    engines: int = 1


def families(layout: Layout, model_label: str = "model_name") -> list[Family]:
    """Orders a layout by model, in page order; the family of lines without a model comes first if there is one."""
    found: dict[str | None, Family] = {}
    for position, series in enumerate(layout.series):
        labels = dict(series.labels)
        model = labels.get(model_label)
        family = found.get(model) or found.setdefault(model, Family(model))
        base, _, part = series.name.rpartition("_")
        if part == "bucket" and "le" in labels:
            try:
                edge = float(labels["le"])
            except ValueError:
                continue
            if not math.isnan(edge):
                histogram = family.histograms.setdefault(base, Histogram())
                histogram.edges.setdefault(series.owner, {})[edge] = position
        elif part == "count":
            family.histograms.setdefault(base, Histogram()).counts.append(position)
        elif part == "sum":
            family.histograms.setdefault(base, Histogram()).sums.append(position)
        else:
            family.plain.setdefault(series.name, []).append((labels, position))
    for family in found.values():
        owners = {
            tuple(sorted((name, value) for name, value in labels.items() if name != model_label))
            for labels, _ in family.plain.get("vllm:num_requests_running", ())
        }
        family.engines = max(1, len(owners))
        for histogram in family.histograms.values():
            histogram.close()
    return sorted(found.values(), key=lambda family: family.model is not None)


@dataclass(frozen=True, slots=True)
class View:
    """One family's values at one moment. What cannot be known is NaN."""

    family: Family
    differences: Differences

    def has(self, *names: str) -> bool:
        """Whether the page has any of the names (a histogram by its base name)."""
        return any(name in self.family.plain or name in self.family.histograms for name in names)

    def first(self, *names: str) -> str | None:
        """The first of the names that the page has."""
        return next((name for name in names if self.has(name)), None)

    def lines(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        """Labels and newest value of each line of a name."""
        last = self.differences.last
        return [(labels, last[position]) for labels, position in self.family.plain.get(name, ())]

    def last(self, name: str) -> float:
        """The newest values of a name, added up over engines."""
        return _total(self.differences.last, [position for _, position in self.family.plain.get(name, ())])

    def grown(self, name: str, where: Callable[[Mapping[str, str]], bool] | None = None) -> float:
        """How much a counter grew in the window, added up over engines (and over what `where` lets through)."""
        lines = self.family.plain.get(name, ())
        chosen = [at for labels, at in lines if where is None or where(labels)]
        if lines and not chosen and self.differences.increase is not None:
            return 0.0
        return _total(self.differences.increase, chosen)

    def grown_by(self, name: str, label: str) -> dict[str, float]:
        """How much a counter grew, for each value of a label; only what can be known."""
        increase = self.differences.increase
        result: dict[str, float] = {}
        if increase is not None:
            for labels, position in self.family.plain.get(name, ()):
                value = labels.get(label, "")
                result[value] = result.get(value, 0.0) + increase[position]
        return {value: growth for value, growth in result.items() if math.isfinite(growth)}

    def count_total(self, base: str) -> float:
        """All observations of a histogram since its process began."""
        return _total(self.differences.last, self.family.histograms[base].counts)

    def count_grown(self, base: str) -> float:
        """Observations of a histogram in the window."""
        histogram = self.family.histograms.get(base)
        return UNKNOWN if histogram is None else _total(self.differences.increase, histogram.counts)

    def sum_grown(self, base: str) -> float:
        """Growth of a histogram's sum in the window."""
        histogram = self.family.histograms.get(base)
        return UNKNOWN if histogram is None else _total(self.differences.increase, histogram.sums)

    def latency(self, base: str) -> Latency | None:
        """A histogram over the window; buckets are added up over engines before a quantile is taken."""
        increase = self.differences.increase
        histogram = self.family.histograms.get(base)
        if increase is None or histogram is None:
            return None
        grown = [_total(increase, positions) for positions in histogram.buckets]
        return latency(self.count_grown(base), self.sum_grown(base), histogram.bounds, grown)


def _total(values: Sequence[float] | None, positions: Sequence[int]) -> float:
    if values is None or not positions:
        return UNKNOWN
    return sum([values[position] for position in positions])


def known(value: float) -> float | None:
    """The value, or None where it is NaN or infinite."""
    return value if math.isfinite(value) else None


def over(part: float, whole: float) -> float | None:
    """A quotient; None where a term is unknown or there is nothing to divide by."""
    if not (math.isfinite(part) and math.isfinite(whole)) or whole <= 0:
        return None
    return part / whole
