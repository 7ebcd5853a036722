"""The exact names on /metrics that vtop reads, vLLM 0.6 to 0.33, engines V0 and V1.

Names that begin alike mean different things (`prompt_tokens_total`, `prompt_tokens_by_source_total`), and one histogram
ends in `_total`; so names are compared whole, never by their beginning or end.
"""

from __future__ import annotations

COUNTERS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_by_source_total",
    "vllm:request_success_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:spec_decode_num_emitted_tokens_total",
    "vllm:admission_rejections_total",
    "vllm:estimated_flops_per_gpu_total",
    "vllm:estimated_read_bytes_per_gpu_total",
    "vllm:estimated_write_bytes_per_gpu_total",
    "vllm:nixl_num_failed_transfers_total",
    "vllm:nixl_num_failed_notifications_total",
    "vllm:nixl_num_kv_expired_reqs_total",
    "vllm:mooncake_num_failed_transfers_total",
    "vllm:mooncake_num_failed_recvs_total",
    "vllm:mooncake_num_kv_expired_reqs_total",
)

GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_swapped",
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:gpu_prefix_cache_hit_rate",
    "vllm:engine_sleep_state",
    "vllm:lora_requests_info",
    "vllm:cache_config_info",
)

LATENCIES = (
    "vllm:time_to_first_token_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
)
"""Histograms read with their buckets."""

SUMS = (
    "vllm:iteration_tokens_total",
    "vllm:request_generation_tokens",
    "vllm:nixl_xfer_time_seconds",
    "vllm:nixl_bytes_transferred",
    "vllm:mooncake_xfer_time_seconds",
    "vllm:mooncake_bytes_transferred",
)
"""Histograms of which only sum and count are read."""

PROCESS_START = "process_start_time_seconds"
"""Tells one process from the next; absent in multiprocess mode."""

SIMULATED = "vtop_simulated"
"""On the page of vtop's own simulated server, whose figures must never pass for measured ones."""

VLLM_NAMES = frozenset(
    {
        *COUNTERS,
        *GAUGES,
        *(f"{name}_{part}" for name in LATENCIES for part in ("bucket", "count", "sum")),
        *(f"{name}_{part}" for name in SUMS for part in ("count", "sum")),
    }
)
