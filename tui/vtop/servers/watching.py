"""What the answers of a running server mean over time: healthy, slow, hung, dead behind a living front."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vtop.clock import Clock

HUNG_AFTER_S = 10.0
"""Without any answer for so long, a server that accepts connections counts as hung."""
CLOSED_AFTER_S = 5.0
"""A port that refuses connections for so long counts as closed for good."""
SLOW_ABOVE_S = 1.0


class HealthKind(StrEnum):
    """What came of one GET /health."""

    ANSWERED = "answered"
    TIMED_OUT = "timed-out"
    """Accepted (or not even that), but no answer."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class HealthSample:
    """One look at /health."""

    kind: HealthKind
    status: int | None = None
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """What to think of it."""

    degraded: bool
    message: str = ""
    engine_dead: bool = False
    """It answers, and says that it cannot serve any more."""


class HealthWatch:
    """Turns single looks into a verdict; one missed answer is nothing, a dead engine is said at once."""

    def __init__(self, clock: Clock, before: HealthVerdict | None = None) -> None:
        """Begins to watch.

        Args:
            clock: the source of time.
            before: the verdict that stands until a look contradicts it; None: healthy.
        """
        self._clock = clock
        self._failing_since_s: float | None = None
        self._failing: HealthKind | None = None
        self._verdict = before or HealthVerdict(degraded=False)

    def feed(self, sample: HealthSample) -> HealthVerdict:
        """Takes one look and says how the server stands."""
        self._verdict = self._judge(sample)
        return self._verdict

    def _judge(self, sample: HealthSample) -> HealthVerdict:
        now = self._clock.monotonic()
        if sample.kind is HealthKind.ANSWERED:
            self._failing = self._failing_since_s = None
            return _judge_answer(sample)
        if sample.kind is not self._failing:
            self._failing, self._failing_since_s = sample.kind, now - sample.took_s
        assert self._failing_since_s is not None
        lasting_s = now - self._failing_since_s
        if sample.kind is HealthKind.REFUSED:
            if lasting_s >= CLOSED_AFTER_S:
                return HealthVerdict(True, f"its port has been closed for {lasting_s:.0f} s although the process lives")
        elif lasting_s >= HUNG_AFTER_S:
            return HealthVerdict(True, f"hung: accepts connections but has not answered for {lasting_s:.0f} s")
        # Until then the old verdict stands, so that one lost answer neither alarms nor clears.
        return self._verdict


def _judge_answer(sample: HealthSample) -> HealthVerdict:
    status = sample.status
    if status == 503:
        return HealthVerdict(True, "the engine is dead behind a running API process (/health answers 503)", True)
    if status is not None and status >= 500:
        return HealthVerdict(True, f"the engine is dead or broken (/health answers {status})", True)
    if status != 200:
        return HealthVerdict(True, f"/health answers {status}")
    if sample.took_s > SLOW_ABOVE_S:
        return HealthVerdict(False, f"/health answers slowly ({sample.took_s:.1f} s)")
    return HealthVerdict(False)
