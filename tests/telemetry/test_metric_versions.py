"""Each vLLM version's own page gives a complete reading: which quantities it has, and why it lacks the others."""

from __future__ import annotations

import math
import re
from dataclasses import fields

import pytest
from metric_pages import Watcher, only, over_window, parse, version_page, versions

from vtop.vllm.reading import EngineReading

ALWAYS = [
    "running",
    "waiting",
    "kv_usage",
    "kv_usage_max",
    "kv_capacity_tokens",
    "kv_cache_dtype",
    "prompt_tokens_per_s",
    "generation_tokens_per_s",
    "requests_per_s",
    "preemptions",
    "ttft",
    "itl",
    "e2e",
    "generation_tokens_total",
    "prompt_tokens_total",
]
V0 = ["swapped", "prefix_hit_rate_since_start", "speculation"]
PHASES = ["queue", "prefill", "decode", "tokens_per_step", "tpot"]
V1 = [*PHASES, "prefix_hit_rate"]
SPECULATION = ["speculation"]
EXTERNAL = ["external_hit_rate", "sleep_state"]
SOURCES = ["prompt_computed_share", "prompt_cached_share", "prompt_transferred_share"]
BYTES = ["read_bytes_per_s", "write_bytes_per_s", "flops_per_s"]
WAITING = ["waiting_by_reason"]
ADMISSION = ["rejected"]

HAS = {
    "0.6.0": V0,
    "0.6.3.post1": V0,
    "0.6.6.post1": [*V0, *PHASES],
    "0.7.3": [*V0, *PHASES],
    "0.8.0": V1,
    "0.8.5.post1": [*V1, *SPECULATION],
    "0.9.2": [*V1, *SPECULATION],
    "0.10.2": [*V1, *SPECULATION],
    "0.11.2": [*V1, *SPECULATION, *EXTERNAL],
    "0.13.0": [*V1, *SPECULATION, *EXTERNAL],
    "0.16.0": [*V1, *SPECULATION, *EXTERNAL, *SOURCES],
    "0.20.2": [*V1, *SPECULATION, *EXTERNAL, *SOURCES, *BYTES, *WAITING],
    "0.24.0": [*V1, *SPECULATION, *EXTERNAL, *SOURCES, *BYTES, *WAITING],
    "0.28.0": [*V1, *SPECULATION, *EXTERNAL, *SOURCES, *BYTES, *WAITING],
    "0.32.0": [*V1, *SPECULATION, *EXTERNAL, *SOURCES, *BYTES, *WAITING, *ADMISSION],
    "0.33.0": [*V1, *SPECULATION, *EXTERNAL, *SOURCES, *BYTES, *WAITING, *ADMISSION],
}
"""What each page says beside what all of them say (speculation and byte counters were switched on)."""

NOT_QUANTITIES = {"model_name", "window_s", "engines", "server_kind", "missing", "notes", "restarted"}
ALL = {field.name for field in fields(EngineReading)} - NOT_QUANTITIES
SIDES = {"kv_transfer", "lora_running", "lora_waiting", "lora_max", "finished_by_reason"}


def doubled(body: bytes) -> bytes:
    """The page after as much again has happened: every counter and histogram at twice its value.

    The external prefix cache of all pages is unused; here it hits 75 of 100.
    """
    lines = []
    for line in body.decode().splitlines():
        match = re.fullmatch(r"(vllm:\w+(?:_total|_bucket|_count|_sum)(?:\{.*\})?) (\S+)", line)
        more = {"queries": 100, "hits": 75}.get(line.partition("external_prefix_cache_")[2].partition("_")[0], 0)
        lines.append(f"{match[1]} {float(match[2]) * 2 + more}" if match else line)
    return ("\n".join(lines) + "\n").encode()


def reading(version: str) -> EngineReading:
    body = version_page(version)
    return only(over_window([body, doubled(body)]))


def test_the_table_covers_every_page() -> None:
    assert sorted(HAS) == versions()


@pytest.mark.parametrize("version", HAS)
def test_each_version_has_what_the_table_says_and_a_reason_for_the_rest(version: str) -> None:
    engine = reading(version)
    present = {name for name in ALL - SIDES if getattr(engine, name) not in (None, {}, ())}
    assert present == {*ALWAYS, *HAS[version]}
    silent = ALL - SIDES - present - {"prefix_hit_rate_since_start"}
    assert {name for name in silent if not engine.missing.get(name)} == set(), "each unknown has its reason"
    assert not present & set(engine.missing), "and nothing known has one"


@pytest.mark.parametrize("version", HAS)
def test_the_page_parses_whole_and_without_created_gauges(version: str) -> None:
    page = parse(version_page(version))
    assert page.complete
    assert page.bad_lines == 0
    assert not [series for series in page.layout.series if "_created" in series.name]


@pytest.mark.parametrize("version", HAS)
def test_means_and_rates_are_those_of_the_page_itself(version: str) -> None:
    """Twice the page less the page is the page: so sum over count must be what its lines say."""
    body = version_page(version)
    values = {f"{series.name}{dict(series.labels).get('le', '')}": value for series, value in _values(body)}
    engine = reading(version)
    assert engine.ttft is not None
    assert engine.ttft.mean_s == pytest.approx(
        values["vllm:time_to_first_token_seconds_sum"] / values["vllm:time_to_first_token_seconds_count"]
    )
    assert engine.generation_tokens_per_s == pytest.approx(values["vllm:generation_tokens_total"] / 10)
    for quantile in (engine.ttft.p50, engine.ttft.p95, engine.ttft.p99):
        assert quantile is not None
        assert quantile.high_s is None or quantile.low_s <= (quantile.value_s or 0) <= quantile.high_s


def _values(body: bytes) -> list[tuple]:  # type: ignore[type-arg]
    page = parse(body)
    return list(zip(page.layout.series, page.values, strict=True))


def test_tpot_before_0_11_is_worked_out_and_says_so() -> None:
    engine = reading("0.10.2")
    assert engine.tpot is not None
    assert engine.tpot.mean_s == pytest.approx(_share(version_page("0.10.2")))
    assert engine.tpot.p95 is None
    assert "worked out" in engine.notes["tpot"]
    assert "tpot" not in reading("0.11.2").notes


def _share(body: bytes) -> float:
    values = {series.name: value for series, value in _values(body) if not dict(series.labels).get("le")}
    size = "vllm:request_generation_tokens"
    return float(values["vllm:request_decode_time_seconds_sum"] / (values[f"{size}_sum"] - values[f"{size}_count"]))


def test_the_worked_out_tpot_is_what_vllm_says_where_it_says_both() -> None:
    """On the page of a real server with requests of equal length."""
    body = version_page("0.32.0")
    engine = reading("0.32.0")
    assert engine.tpot is not None
    assert engine.tpot.mean_s == pytest.approx(_share(body), rel=1e-9)


def test_a_real_page_speculation_and_cache_are_exact() -> None:
    """Values of the running 0.32.0 server: 180 drafts of 534 tokens, all accepted; 640 of 822 prompt tokens cached."""
    engine = reading("0.32.0")
    assert engine.speculation is not None
    assert engine.speculation.acceptance == 1.0
    assert engine.speculation.mean_length == pytest.approx(1 + 534 / 180)
    assert engine.speculation.per_position == pytest.approx((1.0, 1.0, 174 / 180))
    assert engine.speculation.wasted_tokens_per_s == 0
    assert engine.prefix_hit_rate == pytest.approx(640 / 822)
    assert engine.prompt_cached_share == pytest.approx(640 / 822)
    assert engine.kv_capacity_tokens == 2_097_152
    assert engine.requests_per_s == pytest.approx(0.6)
    assert engine.tokens_per_step == pytest.approx(902 / 35)
    assert engine.read_bytes_per_s == pytest.approx(6.4110592e7 / 10)


def test_kv_capacity_is_blocks_times_block_size_where_tokens_are_not_said() -> None:
    assert reading("0.6.6.post1").kv_capacity_tokens == 27_000 * 16


def test_v0_gives_only_an_average_hit_rate_and_it_is_not_shown_as_a_live_one() -> None:
    engine = reading("0.6.6.post1")
    assert engine.prefix_hit_rate is None
    assert engine.prefix_hit_rate_since_start == pytest.approx(0.53)
    assert "53 %" in engine.missing["prefix_hit_rate"]


def test_v0_speculation_has_acceptance_but_no_mean_length() -> None:
    engine = reading("0.6.6.post1")
    assert engine.speculation is not None
    assert engine.speculation.acceptance == pytest.approx(164229 / 231270)
    assert engine.speculation.mean_length is None
    assert "drafts" in engine.notes["speculation"]


def test_of_two_kv_gauges_the_one_that_stays_is_read() -> None:
    text = version_page("0.9.2").decode()
    changed = re.sub(r"(vllm:kv_cache_usage_perc\{[^}]*\}) \S+", r"\1 0.25", text)
    assert only(over_window([changed.encode()])).kv_usage == 0.25


@pytest.mark.parametrize("version", HAS)
def test_the_first_look_shows_gauges_and_says_that_rates_need_a_second_one(version: str) -> None:
    engine = only(over_window([version_page(version)]))
    assert engine.running is not None
    assert engine.generation_tokens_per_s is None
    assert engine.ttft is None, "never the average since the start"
    assert "two looks" in engine.missing["generation_tokens_per_s"]


@pytest.mark.parametrize("version", HAS)
def test_an_idle_window_keeps_the_last_latency_with_its_age_and_rates_of_zero(version: str) -> None:
    body = version_page(version)
    watcher = Watcher(10)
    watcher.see(0, body)
    live = only(watcher.see(10, doubled(body)))
    idle = only(watcher.see(40, doubled(body)))
    assert live.ttft is not None
    assert idle.ttft is not None
    assert live.ttft.age_s == 0
    assert idle.ttft.age_s == 30
    assert idle.ttft.mean_s == live.ttft.mean_s
    assert idle.generation_tokens_per_s == 0
    assert all(math.isfinite(value) for value in idle.finished_by_reason.values())


def test_two_models_behind_a_router_have_a_kv_capacity_each_only_where_the_page_says_whose_it_is() -> None:
    def page(named: bool) -> bytes:
        lines = []
        for model, blocks in (("coder", 100), ("embed", 7)):
            whose = f',model_name="{model}"' if named else ""
            lines.append(f'vllm:num_requests_running{{engine="0",model_name="{model}"}} 1')
            lines.append(f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"{whose}}} 1')
        return ("\n".join(lines) + "\n").encode()

    assert [engine.kv_capacity_tokens for engine in over_window([page(named=True)])] == [1600, 112]
    unknown = over_window([page(named=False)])
    assert [engine.kv_capacity_tokens for engine in unknown] == [None, None]
    assert "which model" in unknown[0].missing["kv_capacity_tokens"]
