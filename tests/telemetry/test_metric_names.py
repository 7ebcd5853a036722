"""Every metric name of 43 releases is either read or left out on purpose; each gives what its names allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import pytest
from metric_pages import DATA, only, over_window, version_page, versions

from vtop.vllm.metric_names import COUNTERS, GAUGES, LATENCIES, SUMS
from vtop.vllm.reading import EngineReading, Latency

RELEASES = (DATA / "releases.txt").read_text().split()

OFFLOAD = "blocks of the KV cache in host memory or on disk: another store's own figures, of which only hits count here"
CONNECTOR = "one connector's own bookkeeping; what it moved, how long that took and what failed is read"
STEERING = "weight updates and sleep by remote control: not serving"

UNUSED: Mapping[str, str] = {
    "vllm:avg_generation_throughput_toks_per_s": "an average of the server's own; the counter gives the rate",
    "vllm:avg_prompt_throughput_toks_per_s": "an average of the server's own; the counter gives the rate",
    "vllm:tokens_total": "prompt and generation tokens in one sum; they are read apart",
    "vllm:cpu_cache_usage_perc": "space for swapped requests; how many are swapped is read",
    "vllm:cpu_prefix_cache_hit_rate": "an average since the start, of the space for swapped requests",
    "vllm:time_in_queue_requests": "request_queue_time_seconds under another name",
    "vllm:model_forward_time_milliseconds": "empty without --collect-detailed-traces",
    "vllm:model_execute_time_milliseconds": "empty without --collect-detailed-traces",
    "vllm:spec_decode_draft_acceptance_rate": "an average of the server's own; the counters give it over the window",
    "vllm:spec_decode_efficiency": "an average of the server's own",
    "vllm:request_inference_time_seconds": "prefill and decode time in one; they are read apart",
    "vllm:request_prompt_tokens": "sizes of requests: what was asked, not how it went",
    "vllm:request_params_best_of": "what was asked for",
    "vllm:request_params_n": "what was asked for",
    "vllm:request_params_max_tokens": "what was asked for",
    "vllm:request_max_num_generation_tokens": "what was asked for",
    "vllm:request_prefill_kv_computed_tokens": "the same tokens as prompt_tokens_by_source, request by request",
    "vllm:request_num_preemptions": "the same preemptions as num_preemptions_total, request by request",
    "vllm:prompt_tokens_cached_total": "the sum of the cached sources, which are read",
    "vllm:prompt_tokens_cached_by_source_total": "where cached tokens lay; cached or transferred is read",
    "vllm:prompt_tokens_recomputed_total": "what preemptions cost, in 0.16 to 0.19 alone; preemptions are read",
    "vllm:num_requests_kv_fetch_by_stage": "stages of the deferred requests, which waiting_by_reason counts",
    "vllm:corrupted_requests_total": "0 unless a debugging variable makes vLLM look for NaN",
    "vllm:mm_cache_queries_total": "a cache of decoded images, not of KV",
    "vllm:mm_cache_hits_total": "a cache of decoded images, not of KV",
    "vllm:kv_block_lifetime_seconds": "for tuning caches; only with --kv-cache-metrics",
    "vllm:kv_block_idle_before_evict_seconds": "for tuning caches; only with --kv-cache-metrics",
    "vllm:kv_block_reuse_gap_seconds": "for tuning caches; only with --kv-cache-metrics",
    "vllm:nixl_post_time_seconds": CONNECTOR,
    "vllm:nixl_num_descriptors": CONNECTOR,
    "vllm:nixl_num_notifications_after_expiry_total": "the late half of nixl_num_kv_expired_reqs, which is read",
    "vllm:mooncake_num_descriptors": CONNECTOR,
    "vllm:watermark_requests_total": "marks in generated text: not serving",
    "vllm:websocket_connection_duration_seconds": "the realtime API's connections: no requests of the engine",
    "vllm:websocket_connections_active": "the realtime API's connections: no requests of the engine",
    "vllm:websocket_connections_total": "the realtime API's connections: no requests of the engine",
}
UNUSED_BEGINNINGS: Mapping[str, str] = {
    "vllm:kv_offload_": OFFLOAD,
    "vllm:simple_kv_offload_": OFFLOAD,
    "vllm:hisparse_": OFFLOAD,
    "vllm:hf3fs_": OFFLOAD,
    "vllm:mooncake_store_": OFFLOAD,
    "vllm:umbp_": OFFLOAD,
    "vllm:rl_weight_update_": STEERING,
    "vllm:sleep_mode_": STEERING,
}


@dataclass(frozen=True)
class Name:
    engine: str
    name: str
    kind: str
    first: int
    last: int


def known_names() -> list[Name]:
    rows = [line.split("\t") for line in (DATA / "metric_names.tsv").read_text().splitlines() if line[0] != "#"]
    return [Name(engine, name, kind, RELEASES.index(a), RELEASES.index(b)) for engine, name, kind, a, b in rows]


NAMES = known_names()
READ = {*COUNTERS, *GAUGES, *LATENCIES, *SUMS}


def unused(name: str) -> str | None:
    return UNUSED.get(name) or next((why for start, why in UNUSED_BEGINNINGS.items() if name.startswith(start)), None)


def test_every_name_of_every_release_is_read_or_left_out_for_a_reason() -> None:
    assert {entry.name for entry in NAMES if entry.name not in READ and not unused(entry.name)} == set()


def test_nothing_is_both_read_and_left_out_and_nothing_is_read_that_no_release_has() -> None:
    assert {name for name in READ if unused(name)} == set()
    assert READ - {entry.name for entry in NAMES} == set()
    assert set(UNUSED) - {entry.name for entry in NAMES} == set()


@pytest.mark.parametrize("version", versions())
def test_the_table_of_names_agrees_with_the_pages(version: str) -> None:
    """Whatever a release's own page has, the table has; the rest needs a connector, a flag or a request."""
    at = RELEASES.index(version)
    engine = "V0" if at < RELEASES.index("0.8.0") else "V1"
    listed = {entry.name for entry in NAMES if entry.engine == engine and entry.first <= at <= entry.last}
    shown = set()
    for line in version_page(version).decode().splitlines():
        if line.startswith("# TYPE vllm:"):
            _, _, name, kind = line.split()
            shown.add(name + "_total" * (kind == "counter" and not name.endswith("_total")))
    assert {name for name in shown if not name.endswith("_created")} <= listed


LABELS: Mapping[str, tuple[str, ...]] = {
    "vllm:request_success_total": ('finished_reason="stop"', 'finished_reason="length"', 'finished_reason="abort"'),
    "vllm:num_requests_waiting_by_reason": ('reason="capacity"', 'reason="deferred"'),
    "vllm:admission_rejections_total": ('reason="queue_full"',),
    "vllm:prompt_tokens_by_source_total": (
        'source="local_compute"',
        'source="local_cache_hit"',
        'source="external_kv_transfer"',
    ),
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": ('position="0"', 'position="1"'),
    "vllm:engine_sleep_state": ('sleep_state="awake"',),
    "vllm:lora_requests_info": ('max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=""',),
    "vllm:cache_config_info": ('block_size="16",cache_dtype="fp8",num_gpu_blocks="1000"',),
}
OF_NO_MODEL = {"vllm:lora_requests_info", "vllm:cache_config_info"}
GAUGE: Mapping[str, float] = {
    "vllm:num_requests_running": 3,
    "vllm:num_requests_waiting": 2,
    "vllm:num_requests_waiting_by_reason": 1,
    "vllm:num_requests_swapped": 1,
    "vllm:kv_cache_usage_perc": 0.25,
    "vllm:gpu_cache_usage_perc": 0.25,
    "vllm:gpu_prefix_cache_hit_rate": 0.5,
    "vllm:engine_sleep_state": 1,
    "vllm:lora_requests_info": 1.76e9,
}
GROWTH: Mapping[str, float] = {
    "vllm:generation_tokens_total": 4000,
    "vllm:prompt_tokens_total": 2000,
    "vllm:prefix_cache_hits_total": 50,
    "vllm:gpu_prefix_cache_hits_total": 50,
    "vllm:external_prefix_cache_hits_total": 25,
    "vllm:spec_decode_num_draft_tokens_total": 300,
    "vllm:spec_decode_num_accepted_tokens_total": 150,
    "vllm:estimated_read_bytes_per_gpu_total": 8e12,
}
NOISE = 7e11
"""The value and growth of everything that must not be read."""
OBSERVATIONS, SECONDS = 10, 2.5
SIZES = {"vllm:iteration_tokens_total": 640.0, "vllm:request_generation_tokens": 110.0}


def drawn(at: int, engine: str, grown: float) -> bytes:
    """The page of a release with every name that its source has, before (0) or after (1) the window."""
    whose = 'model_name="m"'
    if engine == "V1" and at >= RELEASES.index("0.8.3"):
        whose = 'engine="0",model_name="m"'
    lines = ["process_start_time_seconds 1"]
    for entry in NAMES:
        if entry.engine != engine or not entry.first <= at <= entry.last:
            continue
        quiet = entry.name not in READ
        if entry.kind == "histogram":
            count = NOISE * (1 + grown) if quiet else 5 + OBSERVATIONS * grown
            total = NOISE * (1 + grown) if quiet else SIZES.get(entry.name, SECONDS) * (1 + grown)
            lines += [f'{entry.name}_bucket{{{whose},le="{edge}"}} {count}' for edge in ("0.1", "0.5", "+Inf")]
            lines += [f"{entry.name}_count{{{whose}}} {count}", f"{entry.name}_sum{{{whose}}} {total}"]
        for label in LABELS.get(entry.name, ("",)) if entry.kind != "histogram" else ():
            value = GAUGE.get(entry.name, 1) if entry.kind == "gauge" else 1000 + GROWTH.get(entry.name, 100) * grown
            if quiet:
                value = NOISE * (1 + grown)
            owner = whose.partition(",")[0] * ("engine" in whose) if entry.name in OF_NO_MODEL else whose
            labels = ",".join(filter(None, (owner, label)))
            lines.append(f"{entry.name}{{{labels}}} {value}")
        if engine == "V1" and entry.kind != "gauge":
            base = entry.name.removesuffix("_total") if entry.kind == "counter" else entry.name
            lines.append(f"{base}_created{{{whose}}} 1.76e9")
    return ("\n".join(lines) + "\n").encode()


ALL_V0, ALL_V1 = ("0.6.0", "0.11.0"), ("0.7.3", "0.33.0")
Span = tuple[str, str] | None
EVERYWHERE: tuple[Span, Span] = (ALL_V0, ALL_V1)
PHASES: tuple[Span, Span] = (("0.6.4.post1", "0.11.0"), ALL_V1)


def v1_from(first: str) -> tuple[Span, Span]:
    return None, (first, "0.33.0")


HAVE: Mapping[str, tuple[Span, Span]] = {
    "running": EVERYWHERE,
    "waiting": EVERYWHERE,
    "waiting_by_reason": v1_from("0.20.2"),
    "swapped": (("0.6.0", "0.9.0"), None),
    "kv_usage": EVERYWHERE,
    "kv_usage_max": EVERYWHERE,
    "kv_capacity_tokens": EVERYWHERE,
    "kv_cache_dtype": EVERYWHERE,
    "prompt_tokens_per_s": EVERYWHERE,
    "generation_tokens_per_s": EVERYWHERE,
    "prompt_tokens_total": EVERYWHERE,
    "generation_tokens_total": EVERYWHERE,
    "requests_per_s": EVERYWHERE,
    "finished_by_reason": EVERYWHERE,
    "rejected": v1_from("0.32.0"),
    "preemptions": (ALL_V0, ("0.8.0", "0.33.0")),
    "prompt_computed_share": v1_from("0.16.0"),
    "prompt_cached_share": v1_from("0.16.0"),
    "prompt_transferred_share": v1_from("0.16.0"),
    "prefix_hit_rate": v1_from("0.7.3"),
    "prefix_hit_rate_since_start": (("0.6.0", "0.9.0"), None),
    "external_hit_rate": v1_from("0.11.1"),
    "ttft": EVERYWHERE,
    "itl": EVERYWHERE,
    "e2e": EVERYWHERE,
    "queue": PHASES,
    "prefill": PHASES,
    "decode": PHASES,
    "tpot": PHASES,
    "tokens_per_step": PHASES,
    "speculation": (("0.6.0", "0.9.2"), ("0.8.3", "0.33.0")),
    "kv_transfer": v1_from("0.11.1"),
    "lora_running": (("0.6.4.post1", "0.11.0"), ("0.8.0", "0.33.0")),
    "lora_max": (("0.6.4.post1", "0.11.0"), ("0.8.0", "0.33.0")),
    "sleep_state": v1_from("0.11.1"),
    "read_bytes_per_s": v1_from("0.17.1"),
    "write_bytes_per_s": v1_from("0.17.1"),
    "flops_per_s": v1_from("0.17.1"),
}
"""Which releases can say what, with every flag and connector on: engine V0, engine V1."""
NOT_QUANTITIES = {"model_name", "window_s", "engines", "server_kind", "missing", "notes", "restarted", "lora_waiting"}


def within(at: int, span: Span) -> bool:
    return span is not None and RELEASES.index(span[0]) <= at <= RELEASES.index(span[1])


CASES = [
    (release, engine)
    for release in RELEASES
    for engine, span in (("V0", ALL_V0), ("V1", ALL_V1))
    if within(RELEASES.index(release), span)
]


def test_the_table_of_quantities_is_about_every_field_of_a_reading() -> None:
    assert set(HAVE) | NOT_QUANTITIES == {field.name for field in fields(EngineReading)}


@pytest.mark.parametrize(("release", "engine"), CASES)
def test_each_release_gives_all_that_its_names_allow_and_no_more(release: str, engine: str) -> None:
    at = RELEASES.index(release)
    reading = only(over_window([drawn(at, engine, 0), drawn(at, engine, 1)]))
    present = {name for name in HAVE if getattr(reading, name) not in (None, (), {})}
    assert present == {name for name, spans in HAVE.items() if within(at, spans[engine == "V1"])}
    reasonless = {"finished_by_reason", "prefix_hit_rate_since_start", "prompt_tokens_total", "generation_tokens_total"}
    assert {name for name in HAVE.keys() - present - reasonless if not reading.missing.get(name)} == set()
    assert present & set(reading.missing) == set()


@pytest.mark.parametrize(("release", "engine"), CASES)
def test_each_release_gives_the_right_values_whatever_else_is_on_its_page(release: str, engine: str) -> None:
    at = RELEASES.index(release)
    reading = only(over_window([drawn(at, engine, 0), drawn(at, engine, 1)]))
    assert (reading.running, reading.waiting, reading.kv_usage, reading.kv_usage_max) == (3, 2, 0.25, 0.25)
    assert (reading.kv_capacity_tokens, reading.kv_cache_dtype) == (16_000, "fp8")
    assert (reading.generation_tokens_per_s, reading.prompt_tokens_per_s) == (400, 200)
    assert (reading.requests_per_s, reading.finished_by_reason) == (20, {"stop": 100, "length": 100, "abort": 100})
    for name in ("ttft", "itl", "e2e", "queue", "prefill", "decode"):
        latency: Latency | None = getattr(reading, name)
        assert latency is None or (latency.mean_s, latency.count) == (0.25, 10), name
    if reading.tpot is not None:
        worked_out = "tpot" in reading.notes
        assert worked_out == (engine == "V0" or at < RELEASES.index("0.11.0"))
        assert reading.tpot.mean_s == pytest.approx(2.5 / (110 - 10) if worked_out else 0.25)
    assert ("itl" in reading.notes) == (at < RELEASES.index("0.10.2")), "under its older name"
    assert reading.tokens_per_step in (None, 64)
    assert reading.preemptions in (None, 100)
    assert reading.rejected in (None, 100)
    assert reading.prefix_hit_rate in (None, 0.5)
    assert reading.external_hit_rate in (None, 0.25)
    assert dict(reading.waiting_by_reason) in ({}, {"capacity": 1, "deferred": 1})
    assert (reading.lora_running, reading.lora_max) in (((), None), (("a", "b"), 4))
    assert reading.sleep_state in (None, "awake")
    assert (reading.read_bytes_per_s, reading.write_bytes_per_s, reading.flops_per_s) in (
        (None, None, None),
        (8e11, 10, 10),
    )
    for share in (reading.prompt_computed_share, reading.prompt_cached_share, reading.prompt_transferred_share):
        assert share is None or share == pytest.approx(1 / 3)
    speculation = reading.speculation
    if speculation is not None:
        counts_drafts = engine == "V1" and at >= RELEASES.index("0.8.5.post1")
        assert (speculation.acceptance, speculation.wasted_tokens_per_s) == (0.5, 15)
        assert speculation.drafted_tokens_per_s == 30
        assert speculation.mean_length == (2.5 if counts_drafts else None)
        assert speculation.per_position == ((1, 1) if counts_drafts else ())
    transfer = reading.kv_transfer
    if transfer is not None:
        assert (transfer.bytes_per_s, transfer.mean_transfer_s) == (0.25, 0.25)
        assert transfer.failed is not None
        assert transfer.failed in (200, 300, 600), "two kinds from 0.11.1, three from 0.15, both connectors in 0.33"
        assert transfer.tokens_per_s in (None, 10)
