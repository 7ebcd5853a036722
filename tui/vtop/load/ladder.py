"""Which concurrency comes next, and when the ladder has reached the plateau."""

from __future__ import annotations

from vtop.load.progress import LoadStep

LEAST_GAIN = 0.03
"""A step that adds less output throughput than this ends the ladder."""


class Ladder:
    """1, 2, 4 ... up to a limit; ends at the plateau, at failures, or where an SLO is broken."""

    def __init__(self, highest: int) -> None:
        self._highest = highest
        self.steps: list[LoadStep] = []
        self.ended_because = ""

    def next(self) -> int | None:
        """The next concurrency, or None at the end."""
        if not self.steps:
            return 1
        if self.ended_because:
            return None
        last = self.steps[-1].concurrency or 1
        if last >= self._highest:
            self.ended_because = f"{self._highest} at once is the limit of this ladder"
            return None
        return min(last * 2, self._highest)

    def add(self, step: LoadStep) -> None:
        """Takes a finished step in and decides whether to go on."""
        before = self.steps[-1] if self.steps else None
        self.steps.append(step)
        if step.requests == 0:
            self.ended_because = "no request ended within the step"
        elif step.failed > 0.01 * step.requests:
            self.ended_because = f"{step.failed} of {step.requests} requests failed"
        elif step.holds is False:
            self.ended_because = step.why or "an SLO was broken"
        elif before is not None and before.output_tokens_per_s and step.output_tokens_per_s is not None:
            gain = step.output_tokens_per_s / before.output_tokens_per_s - 1
            if gain < LEAST_GAIN:
                self.ended_because = f"plateau: {gain:+.1%} output throughput over {before.concurrency} at once"

    def best(self) -> int | None:
        """Index of the step with the highest throughput among those that hold."""
        good = [
            i
            for i, step in enumerate(self.steps)
            if step.holds is not False
            and step.failed <= 0.01 * max(1, step.requests)
            and step.output_tokens_per_s is not None
        ]
        return max(good, key=lambda i: self.steps[i].output_tokens_per_s or 0.0, default=None)
