"""From two pages of /metrics to what a comparison says of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from results.making_runs import a_run
from telemetry.metric_pages import only, over_window
from vtop.load.progress import LoadResult
from vtop.results.comparability import Configuration, server_changes
from vtop.results.compare import compare_rows
from vtop.results.comparison import ConfigurationFacts
from vtop.service.windows import server_numbers

BOUNDS = ("0.01", "0.025", "0.05", "0.1", "+Inf")
CACHING = ConfigurationFacts(prefix_caching=True)


def cache_page(*engines: tuple[int, int]) -> bytes:
    """Counters of the prefix cache, (queries, hits) by engine, in tokens."""
    lines = []
    for name, index in (("queries", 0), ("hits", 1)):
        lines.append(f"# TYPE vllm:prefix_cache_{name}_total counter")
        lines += [
            f'vllm:prefix_cache_{name}_total{{engine="{number}",model_name="m"}} {counts[index]}.0'
            for number, counts in enumerate(engines)
        ]
    return ("\n".join(lines) + "\n").encode()


def histogram_page(name: str, count: int, total_s: float) -> bytes:
    lines = [f"# TYPE vllm:{name} histogram"]
    lines += [
        f'vllm:{name}_bucket{{le="{bound}",model_name="m",engine="0"}} {0 if bound == "0.01" else count}'
        for bound in BOUNDS
    ]
    lines += [f'vllm:{name}_count{{model_name="m",engine="0"}} {count}',
              f'vllm:{name}_sum{{model_name="m",engine="0"}} {total_s}']  # fmt: skip
    return ("\n".join(lines) + "\n").encode()


def read(*pages: bytes) -> dict[str, float | None]:
    return server_numbers(only(over_window(pages)))


def configuration(name: str, run: LoadResult) -> Configuration:
    return Configuration(name, {1: run}, CACHING)


START, AFTER_A, AFTER_B = (
    cache_page((60_000, 600), (40_000, 400)),
    cache_page((125_536, 856), (105_536, 656)),
    cache_page((191_072, 62_296), (171_072, 62_096)),
)
"""Two engines, the same prompts twice: 131,072 tokens asked for in each run, 512 and 122,880 of them found."""


def test_hits_of_a_run_are_the_growth_of_all_engines_and_make_a_warm_run_not_comparable() -> None:
    cold, warm = read(START, AFTER_A), read(AFTER_A, AFTER_B)
    assert cold["prefix_hit_rate"] == pytest.approx(512 / 131_072)
    assert warm["prefix_hit_rate"] == pytest.approx(0.9375), "since the start it would be 34 %"
    first = configuration("a", a_run(410, ttft_s=1.961, server=cold))
    second = configuration("b", a_run(951, ttft_s=0.040, server=warm))
    row = compare_rows([first, second])[1]
    assert row.verdict.startswith("not comparable: warm prefix cache: 94 %")


def test_a_page_without_the_counters_and_a_restart_say_unknown_and_never_zero() -> None:
    bare = histogram_page("time_to_first_token_seconds", 5, 1.0)
    unknown = read(bare, histogram_page("time_to_first_token_seconds", 9, 1.8))
    assert unknown["prefix_hit_rate"] is None
    row = compare_rows([configuration("a", a_run(600, server=unknown)), configuration("b", a_run(600, server=unknown))])
    assert any("hits unknown" in note for note in row[1].notes)


def test_across_the_renamed_metric_gaps_are_compared_with_gaps() -> None:
    """0.10 calls the gap between steps time per output token, 15 ms; 0.12 has that gap, and 22 ms a request as well."""
    old = "time_per_output_token_seconds"
    before = read(histogram_page(old, 1000, 15.0), histogram_page(old, 3000, 45.0))
    gaps, requests = "inter_token_latency_seconds", "request_time_per_output_token_seconds"
    after = read(
        histogram_page(gaps, 1000, 15.0) + histogram_page(requests, 10, 0.22),
        histogram_page(gaps, 3000, 45.0) + histogram_page(requests, 30, 0.66),
    )
    assert before["itl_mean_s"] == pytest.approx(0.015)
    assert before["tpot_mean_s"] is None
    assert after["tpot_mean_s"] == pytest.approx(0.022)
    changes = server_changes(before, after)
    assert changes["itl_mean_s"] == pytest.approx(0.0)
    assert "tpot_mean_s" not in changes
    rows = compare_rows([_run_of("0.10.2", before), _run_of("0.12.0", after)])
    assert [row.version for row in rows] == ["0.10.2", "0.12.0"]
    assert any("vLLM 0.12.0 against 0.10.2" in note for note in rows[1].notes)


def _run_of(version: str, server: dict[str, Any]) -> Configuration:
    return Configuration(version, {n: replace(a_run(600, round=n, version=version), server=server) for n in (1, 2, 3)})
