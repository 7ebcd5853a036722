"""Whether two configurations' runs may be compared at all, and what to mark beside a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vtop.load.progress import LoadRequest, LoadResult
from vtop.load.stats import FAILURE_LIMIT
from vtop.results.comparison import ConfigurationFacts
from vtop.units import percent, significant

LENGTH_TOLERANCE = 0.05
"""Answers that differ more in length are not the same work."""
WARM_CACHE_SHARE = 0.01
SHARED_HEAD_TOKENS = 64
"""Every prompt begins with the chat template and the workload's own first line: hits up to so many tokens a prompt
say nothing about earlier runs."""
SHARING_WORKLOADS = frozenset({"prefix", "file"})
"""Workloads whose prompts share text within one run."""
UNSTEADY = 0.10
SIMULATION_LATE_S = "simulation_late_s"
"""In `LoadResult.server`: time by which this machine held a simulated server up during the run."""
MOST_SIMULATION_LATE = 0.10
CAPACITY_SHARE = 0.8
"""Of the tokens/s that the load generator was measured to read."""

_LOAD_FIELDS = (
    "workload",
    "concurrency",
    "requests",
    "rate",
    "burstiness",
    "max_tokens",
    "prompt_tokens",
    "prefix_tokens",
    "prefixes",
    "temperature",
    "ignore_eos",
    "duration_s",
    "endpoint",
    "file",
    "ramp_s",
    "choices",
    "arrival",
)


@dataclass(slots=True)
class Findings:
    """Why not to compare (the first is shown), and what to mark."""

    reasons: list[str] = field(default_factory=list)
    ttft_reasons: list[str] = field(default_factory=list)
    """Why not to compare TTFT, although the rest may be."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration of a comparison with its runs by round."""

    preset: str
    runs: Mapping[int, LoadResult]
    facts: ConfigurationFacts = field(default_factory=ConfigurationFacts)
    failure: str = ""
    """Why it was not measured."""

    @property
    def counted(self) -> Mapping[int, LoadResult]:
        """The runs that went to their end."""
        return {number: run for number, run in self.runs.items() if run.complete}


def findings_alone(own: Configuration) -> Findings:
    """What is wrong with a configuration's runs by themselves."""
    found = Findings()
    cut = len(own.runs) - len(own.counted)
    if cut:
        found.notes.append(f"{_runs(cut)} cut short: left out")
    for number, run in sorted(own.counted.items()):
        share = run.failed / run.requests if run.requests else 0.0
        if share > FAILURE_LIMIT:
            found.reasons.append(f"{percent(share)} of the requests failed in round {number}")
        elif not run.comparable:
            found.reasons.append(run.not_comparable_because or f"round {number} is marked as not comparable")
        _judge_client(run, number, found)
        hits = prefix_hits(run)
        shares = run.request.workload in SHARING_WORKLOADS or run.request.file is not None
        if hits is not None and hits > _cold_hits(run) and not shares:
            found.reasons.append(f"warm prefix cache: {percent(hits)} of the prompt tokens were hits in round {number}")
        late_s = run.server.get(SIMULATION_LATE_S)
        if late_s and run.duration_s and late_s > MOST_SIMULATION_LATE * run.duration_s:
            found.reasons.append(
                f"this machine held the simulated server up for {percent(late_s / run.duration_s)} of round {number}"
            )
        if strangers := run.gpu.get("other_processes"):
            found.reasons.append(f"another process was on the GPU in round {number}: {_words(strangers)}")
    if own.facts.prefix_caching and own.counted and all(prefix_hits(run) is None for run in own.counted.values()):
        found.notes.append("prefix cache hits unknown: a warm cache would not be seen")
    values = [run.output_tokens_per_s for run in own.counted.values() if run.output_tokens_per_s]
    if len(values) > 1 and max(values) / min(values) - 1 > UNSTEADY:
        found.notes.append(f"its own runs differ by {percent(max(values) / min(values) - 1)}")
    return found


def _judge_client(run: LoadResult, number: int, found: Findings) -> None:
    """A lagging loop bends the first tokens' times; a client at its limit bends everything."""
    capacity, output = run.client_capacity_tokens_per_s, run.output_tokens_per_s
    if capacity and output and output > CAPACITY_SHARE * capacity:
        found.reasons.append(f"the load generator was the bottleneck in round {number}")
    elif run.client_bound:
        lag = f" by up to {run.loop_lag_p99_s * 1e3:.0f} ms (P99)" if run.loop_lag_p99_s else ""
        found.ttft_reasons.append(f"the load generator was late{lag} in round {number}, which lengthens TTFT")


def findings_between(base: Configuration, other: Configuration) -> Findings:
    """What keeps two configurations from being compared, beside what is wrong with either alone."""
    found = Findings()
    pairs = [
        (number, base.counted[number], run) for number, run in sorted(other.counted.items()) if number in base.counted
    ]
    for number, one, two in pairs:
        if one.simulated != two.simulated:
            found.reasons.append("simulated beside measured")
        if difference := _load_difference(one.request, two.request):
            found.reasons.append(f"different load: {difference}")
        mine, theirs = one.fingerprint.get("file_digest"), two.fingerprint.get("file_digest")
        if mine and theirs and mine != theirs and one.request.file == two.request.file:
            found.reasons.append(f"different prompts in round {number}: {one.request.file} was changed meanwhile")
        if _warmup(one.request) != _warmup(two.request):
            found.reasons.append(f"different warm-up: {_warmup(one.request)} and {_warmup(two.request)} requests")
        if one.seed is not None and two.seed is not None and one.seed != two.seed:
            found.reasons.append(f"different prompts in round {number} (seeds {one.seed} and {two.seed})")
        for name, words in (("gpu", "GPUs"), ("gpu_uuid", "GPUs"), ("driver", "drivers")):
            mine, theirs = one.fingerprint.get(name), two.fingerprint.get(name)
            if not mine or not theirs or mine == theirs:
                continue
            if name == "gpu_uuid" and _one_holds_the_other(mine, theirs):
                # Tensor parallelism and P/D pairs take more cards of the same kind: that is the question, not a fault.
                found.notes.append(f"{len(theirs)} GPUs against {len(mine)}: compare also what a card gives")
                continue
            found.reasons.append(f"different {words}: {_words(mine)} and {_words(theirs)}")
    before, after = _output_length([one for _, one, _ in pairs]), _output_length([two for _, _, two in pairs])
    if before and after and abs(after / before - 1) > LENGTH_TOLERANCE:
        found.reasons.append(
            f"answers of different length: {significant(before)} and {significant(after)} tokens on average"
        )
    _compare_throttling(base, other, found)
    _compare_versions(base, other, found)
    sources = {source for run in (*base.counted.values(), *other.counted.values())
               if (source := run.gpu.get("bandwidth_source"))}  # fmt: skip
    if len(sources) > 1:
        found.notes.append(f"bandwidth from different sources ({', '.join(sorted(sources))}): not to be compared")
    found.reasons, found.notes = list(dict.fromkeys(found.reasons)), list(dict.fromkeys(found.notes))
    return found


def prefix_hits(run: LoadResult) -> float | None:
    """Share of this run's prompt tokens that the prefix cache had; None where the server does not say."""
    hits = run.server.get("prefix_hit_rate")
    return float(hits) if isinstance(hits, int | float) and math.isfinite(hits) else None


def server_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Relative changes of the server's own numbers, only between numbers that mean the same on both sides.

    Names are vtop's (`itl_mean_s`, `tpot_mean_s`, ...), given by meaning for every vLLM version: before 0.11 there is
    no TPOT per request, and what those versions call time per output token is the gap between steps (`itl_mean_s`).
    """
    changes = {}
    for name, value in before.items():
        other = after.get(name)
        if isinstance(value, int | float) and isinstance(other, int | float) and value:
            changes[name] = other / value - 1
    return changes


def _cold_hits(run: LoadResult) -> float:
    """The hit rate that prompts of a first run can have among themselves."""
    mean = run.prompt_tokens / run.completed if run.completed and run.prompt_tokens else None
    return max(WARM_CACHE_SHARE, min(0.5, SHARED_HEAD_TOKENS / mean) if mean else WARM_CACHE_SHARE)


def _load_difference(one: LoadRequest, two: LoadRequest) -> str:
    for name in _LOAD_FIELDS:
        mine, theirs = getattr(one, name), getattr(two, name)
        if mine != theirs:
            return f"{name} {mine} and {theirs}"
    return ""


def _warmup(request: LoadRequest) -> int | None:
    return request.concurrency if request.warmup is None else request.warmup


def _output_length(runs: Sequence[LoadResult]) -> float | None:
    completed = sum(run.completed for run in runs)
    return sum(run.output_tokens for run in runs) / completed if completed else None


def _compare_throttling(base: Configuration, other: Configuration, found: Findings) -> None:
    here, there = _throttled(base.counted.values()), _throttled(other.counted.values())
    if here and there:
        found.notes.append("the GPU was held back by its temperature in runs of both")
    elif here or there:
        whose = "the first row" if here else "this row"
        found.reasons.append(f"the GPU was held back by its temperature in {_runs(here or there)} of {whose}")


def _throttled(runs: Iterable[LoadResult]) -> int:
    return sum(bool(run.gpu.get("thermal_throttled_s")) for run in runs)


def _compare_versions(base: Configuration, other: Configuration, found: Findings) -> None:
    here, there = _version(base.counted.values()), _version(other.counted.values())
    if here and there and here != there:
        found.notes.append(f"vLLM {there} against {here}: the version changed too; all latencies are the client's")


def _version(runs: Iterable[LoadResult]) -> str:
    return ", ".join(
        sorted({str(run.fingerprint["vllm_version"]) for run in runs if run.fingerprint.get("vllm_version")})
    )


def version_of(own: Configuration) -> str | None:
    """The vLLM version(s) that the runs were made with."""
    return _version(own.counted.values()) or None


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _one_holds_the_other(mine: Any, theirs: Any) -> bool:
    if not isinstance(mine, list | tuple) or not isinstance(theirs, list | tuple):
        return False
    return set(mine) < set(theirs) or set(theirs) < set(mine)


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
