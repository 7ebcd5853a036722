"""Why a row came out as it did: its own counters in a sentence, and where it parts from the prediction."""

from __future__ import annotations

from vtop.results.comparison import CompareRow, ConfigurationFacts
from vtop.units import percent, percent_of_100, significant

FEW_HITS = 0.05
LOW_ACCEPTANCE = 0.3
BUSY_PERCENT = 60.0
"""Of peak bandwidth: below it something else than memory sets the pace."""
PREDICTION_TOLERANCE = 0.05
PREDICTION_WORDS = "bytes and FLOPs alone predict"


def explain(row: CompareRow, facts: ConfigurationFacts, workload: str) -> list[str]:
    """Sentences for a row's notes.

    Args:
        row: the row, with its numbers and verdict.
        facts: what the configuration is.
        workload: the load that it ran.
    """
    return [*_own_counters(row, facts, workload), *_prediction(row, facts)]


def _own_counters(row: CompareRow, facts: ConfigurationFacts, workload: str) -> list[str]:
    said = []
    if facts.prefix_caching and row.prefix_hit_rate is not None:
        if row.prefix_hit_rate < FEW_HITS:
            said.append(
                f"prefix cache hits {percent(row.prefix_hit_rate)}: the prompts of this load share nothing, so caching "
                "has nothing to reuse" + ("" if workload == "prefix" else " (the workload `prefix` does)")
            )
        else:
            said.append(f"{percent(row.prefix_hit_rate)} of the prompt tokens came from the prefix cache")
    if facts.speculative:
        if row.acceptance is None:
            said.append("speculation: the server does not say how many guesses were accepted")
        elif row.acceptance < LOW_ACCEPTANCE:
            said.append(
                f"only {percent(row.acceptance)} of the guessed tokens were accepted: this text is hard to guess, and "
                "each wrong guess costs work"
            )
        else:
            said.append(f"{percent(row.acceptance)} of the guessed tokens were accepted")
        said += _guesses(row, facts)
    return said


def _guesses(row: CompareRow, facts: ConfigurationFacts) -> list[str]:
    """How often there was a guess, and whether it paid by the arithmetic."""
    if row.guessed_share is None or row.tokens_per_step is None:
        return []
    said = (
        f"{percent(row.guessed_share)} of the steps had a guess to check; a step gave {row.tokens_per_step:.2f} tokens"
    )
    if facts.step_cost is None:
        return [said]
    needed = 1 + row.guessed_share * (facts.step_cost - 1)
    pays = "above" if row.tokens_per_step > needed else "not above"
    return [f"{said}, {pays} the {needed:.2f} from which the longer steps pay, by bytes and FLOPs"]


def _prediction(row: CompareRow, facts: ConfigurationFacts) -> list[str]:
    predicted, measured = row.predicted_ratio, row.ratio
    if not predicted or not measured or row.verdict == "first row" or row.verdict.startswith("not comparable"):
        return []
    low, high = row.ratio_low or measured, row.ratio_high or measured
    near = abs(measured / predicted - 1) <= PREDICTION_TOLERANCE
    if near or low <= predicted <= high:
        return []
    words = f"{PREDICTION_WORDS} {significant(predicted)}x, measured {significant(measured)}x: "
    if measured > predicted:
        return [
            words + "the first row is held back by more than memory and arithmetic (scheduling, host work per step)"
        ]
    if facts.speculative:
        return [
            words
            + "guessing takes host time in every step, also in those without a guess (n-gram look-up runs between "
            "two steps and switches asynchronous scheduling off)"
        ]
    if row.bandwidth_percent is not None and row.bandwidth_source != "busy" and row.bandwidth_percent < BUSY_PERCENT:
        return [
            words + f"DRAM is at {percent_of_100(row.bandwidth_percent)} of its peak, so host work, kernel launches or "
            "too few requests set the pace, not memory"
        ]
    return [words + "kernels, queueing or the client take the rest"]
