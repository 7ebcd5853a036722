"""What the numbers of a report mean, and the published table that comparisons are held against."""

from __future__ import annotations

from vtop.hardware import find_card
from vtop.results.comparison import CompareRow
from vtop.roofline import decode_cost, step_time
from vtop.setups import setup_for
from vtop.units import percent, significant

LOAD_DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("TTFT", "first chunk with generated content minus the write of the request on an open connection"),
    ("TPOT", "(last content chunk - first) / (n - 1), n = usage.completion_tokens; undefined for n = 1"),
    ("ITL", "time between chunks; where a chunk carries several tokens it is a chunk gap: read TPOT"),
    ("E2E, latency", "last content chunk minus the write of the request"),
    ("output tok/s", "tokens of good requests / (first write .. last content chunk)"),
    ("steady tok/s", "the same over the longest span with at least 90 % of the wanted concurrency"),
    ("failed", "anything but status 200 with a finish reason and no error; failures are in no latency"),
    ("percentiles", "linear between order statistics; P95 below 72 and P99 below 368 requests are marked ?"),
)
"""(name, formula), the client's view, as in docs/numbers.md."""

COMPARE_DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("the run is the unit", "values are geometric means over runs; prompts are fresh each round, the same within it"),
    ("x, interval", "mean and 95 % t interval of the paired differences of logarithms, round by round"),
    ("verdict", "on output tok/s alone; TTFT and TPOT (p50) have their own. Below 1 % nothing is called a difference"),
    ("could be up to x %", "the far end of the interval: larger differences are ruled out, with 95 % confidence"),
    ("predicted", "the ratio of (prefills + decode steps) at the card's peaks, with the prefix hits and the accepted "
     "guesses that were counted; no constant is fitted to a measurement"),
    ("DRAM %", "of peak bandwidth, with its source; two sources are never compared"),
)  # fmt: skip

REFERENCE_LOAD = (
    "vLLM 0.6, Qwen2.5-7B, one RTX 4090; 16 at once, 64 requests, max_tokens 150, temperature 0.7, short chat prompts"
)
_REFERENCE_MODEL, _REFERENCE_CARD = "Qwen/Qwen2.5-7B-Instruct", "RTX 4090"
_REFERENCE = (
    ("sequential", "one request at a time", 120.0, 1.0),
    ("baseline", "continuous batching", 610.0, 5.1),
    ("prefix-caching", "+ prefix caching", 780.0, 6.5),
    ("spec", "+ speculative decoding", 890.0, 7.4),
)


def reference_rows(rows: tuple[CompareRow, ...]) -> tuple[tuple[str, ...], ...]:
    """Published gains beside this comparison's: (configuration, published, here, why they differ).

    Args:
        rows: of a comparison whose first row is `sequential`; otherwise there is nothing to hold against each other.
    """
    if not rows or rows[0].preset != "sequential":
        return ()
    found = []
    for row in rows:
        match = next((entry for entry in _REFERENCE if row.preset.startswith(entry[0])), None)
        if match is None:
            continue
        _, words, tokens_per_s, ratio = match
        here = f"{significant(row.output_tokens_per_s)} tok/s, {significant(row.ratio)}x"
        found.append((f"{row.preset} ({words})", f"{tokens_per_s:.0f} tok/s, {ratio:g}x", here, _why(row, ratio)))
    return tuple(found)


REFERENCE_BATCH, REFERENCE_CONTEXT = 16, 100
"""Of the published load: requests at once, and tokens of a short chat in the middle of its answer."""


def step_at_the_floor_s(batch: int) -> float | None:
    """The least time of a decode step with the reference's model in 16 bits on its card."""
    setup, card = setup_for(_REFERENCE_MODEL), find_card(_REFERENCE_CARD)
    if setup is None or card is None:
        return None
    step = step_time(setup, card, decode_cost(setup, batch, REFERENCE_CONTEXT))
    return step.total_s if step is not None and step.total_s > 0 else None


def _first_row_words(published: float) -> str:
    step_s = step_at_the_floor_s(1)
    said = "the speed of one sequence: weight bytes over bandwidth"
    if step_s is None or 1 / step_s >= published:
        return said + ", so it goes with the model, its bytes and the card"
    return (
        f"{said}, which on that card with that model in 16 bits is at most {1 / step_s:.0f} tok/s: the published loop "
        "did not decode one 16 bit sequence at a time. A first row that is slower makes every gain below it larger"
    )


def _batching_words(row: CompareRow) -> str:
    """Batching against one at a time is at most the batch; what the published figure leaves below that."""
    _, _, published, _ = _REFERENCE[1]
    said = (
        "against one sequence at a time the gain is at most the number decoded together, less KV reads and host work. "
        f"The published {published:.0f} tok/s with {REFERENCE_BATCH} at once are {_ms(REFERENCE_BATCH / published)} a "
        "step"
    )
    floor_s = step_at_the_floor_s(REFERENCE_BATCH)
    if floor_s is not None:
        said += f", of which the weights and the cache need {_ms(floor_s)} on that card: the rest was host work then"
    if row.tpot_p50_s:
        said += f". Here a step takes {_ms(row.tpot_p50_s)}"
    return said


def _ms(seconds: float) -> str:
    return f"{significant(seconds * 1000)} ms"


def _gain_on_baseline(row: CompareRow, published: float) -> str:
    """What an addition to continuous batching gave there and here."""
    if row.beside != "baseline" or row.beside_ratio is None:
        return ""
    return f"against baseline {published / _REFERENCE[1][3]:.2f}x there, {row.beside_ratio:.2f}x here: "


def _why(row: CompareRow, published: float) -> str:
    if row.preset == "sequential":
        return _first_row_words(_REFERENCE[0][2])
    if row.ratio is None:
        return row.verdict
    return _gain_on_baseline(row, published) + _reason(row, published)


def _reason(row: CompareRow, published: float) -> str:
    if row.ratio is not None and abs(row.ratio / published - 1) <= 0.1:
        return "agrees within 10 %"
    if row.preset.startswith("prefix-caching") and row.prefix_hit_rate is not None and row.prefix_hit_rate < 0.05:
        return f"hits {percent(row.prefix_hit_rate)}: this load shares no prefix, so caching has nothing to reuse"
    if row.preset.startswith("spec") and row.acceptance is not None:
        often = "" if row.guessed_share is None else f"a guess in {percent(row.guessed_share)} of the steps, "
        said = often + f"{percent(row.acceptance)} of the guessed tokens accepted: it stands and falls with the text"
        return said + _other_drafter(row)
    if row.preset.startswith("baseline"):
        return _batching_words(row)
    return "another load, card, model or version"


def _other_drafter(row: CompareRow) -> str:
    """The published figure was made with a small draft model, which guesses in every step."""
    return (
        ". The published setup names a small draft model, which guesses in every step" if "ngram" in row.preset else ""
    )
