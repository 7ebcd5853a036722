"""What the numbers of a report mean, and the published table that comparisons are held against."""

from __future__ import annotations

from vtop.results.comparison import CompareRow
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
    ("the run is the unit", "each value is a mean over runs; prompts are fresh each round and the same within it"),
    ("x, interval", "mean and 95 % t interval of the paired differences of logarithms, round by round"),
    ("verdict", "on output tok/s alone; TTFT and TPOT (p50) have their own. Below 1 % nothing is called a difference"),
    ("could be up to x %", "the far end of the interval: larger differences are ruled out, with 95 % confidence"),
    ("predicted", "the ratio from bytes, FLOPs and the card's peak alone; no constant is fitted to a measurement"),
    ("DRAM %", "of peak bandwidth, with its source; two sources are never compared"),
)  # fmt: skip

REFERENCE_LOAD = (
    "vLLM 0.6, Qwen2.5-7B, one RTX 4090; 16 at once, 64 requests, max_tokens 150, temperature 0.7, short chat prompts"
)
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


def _why(row: CompareRow, published: float) -> str:
    if row.preset == "sequential":
        return (
            "the speed of one sequence: weight bytes over bandwidth, so it goes with the model, its bytes and the card"
        )
    if row.ratio is None:
        return row.verdict
    if abs(row.ratio / published - 1) <= 0.1:
        return "agrees within 10 %"
    if row.preset.startswith("prefix-caching") and row.prefix_hit_rate is not None and row.prefix_hit_rate < 0.05:
        return f"hits {percent(row.prefix_hit_rate)}: this load shares no prefix, so caching has nothing to reuse"
    if row.preset.startswith("spec") and row.acceptance is not None:
        return f"{percent(row.acceptance)} of the guesses were accepted here; the gain stands and falls with the text"
    if row.preset.startswith("baseline"):
        return (
            "the gain of batching is the batch that fits, less what KV reads and host work cost: load, card and version"
        )
    return "another load, card, model or version"
