"""The highest rate that holds TTFT and TPOT limits, in few runs."""

from __future__ import annotations

from vtop import units
from vtop.load.progress import LoadStep

CLOSE_ENOUGH = 1.1
"""The search ends when the lowest rate that breaks is within 10 % of the highest that holds."""
MOST_RUNS = 8
ACHIEVED_SHARE = 0.95
"""A run whose requests left more slowly than this share of the asked rate did not test that rate."""


class RateSearch:
    """Doubling until a limit breaks, then halving the interval on a logarithmic scale."""

    def __init__(self, first_rate: float) -> None:
        self._first = first_rate
        self.steps: list[LoadStep] = []
        self.holds: float | None = None
        """The highest rate seen to hold."""
        self.breaks: float | None = None
        """The lowest rate seen to break."""

    def next(self) -> float | None:
        """The rate to try, or None when the search is over."""
        if len(self.steps) >= MOST_RUNS:
            return None
        if self.holds is None and self.breaks is None:
            return self._first
        if self.holds is None:
            assert self.breaks is not None
            return self.breaks / 2
        if self.breaks is None:
            return self.holds * 1.5
        if self.breaks / self.holds <= CLOSE_ENOUGH:
            return None
        return float((self.holds * self.breaks) ** 0.5)

    def add(self, step: LoadStep) -> None:
        """Takes a finished run in."""
        assert step.rate is not None
        self.steps.append(step)
        if step.holds:
            self.holds = step.rate if self.holds is None else max(self.holds, step.rate)
            if self.breaks is not None and self.breaks <= step.rate:
                # Noise: what broke before holds at a higher rate. Trust the later run.
                self.breaks = None
        else:
            self.breaks = step.rate if self.breaks is None else min(self.breaks, step.rate)

    def verdict(self) -> str:
        """The finding in one line."""
        held, broke = units.significant(self.holds), units.significant(self.breaks)
        if self.holds is None:
            return f"no rate down to {broke}/s held the limits" if self.breaks else "nothing was tried"
        if self.breaks is None:
            return f"{held} requests/s held the limits; no rate was found that breaks them"
        return f"{held} requests/s held the limits, {broke}/s broke them"
