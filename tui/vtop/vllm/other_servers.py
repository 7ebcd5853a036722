"""Servers other than vLLM that may answer on its port: what they are, and their own basic figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vtop.vllm.families import UNKNOWN, View, families, known, over
from vtop.vllm.reading import EngineReading, Latency
from vtop.vllm.samples import Differences

_KINDS = (
    ("vllm:", "vllm"),
    ("sglang:", "sglang"),
    ("sglang_", "sglang"),
    ("llamacpp:", "llama.cpp"),
    ("tgi_", "tgi"),
    ("vllm_router", "router"),
    ("sgl_router", "router"),
    ("smg_", "router"),
    ("litellm_", "router"),
    ("trtllm_", "tensorrt-llm"),
    ("nv_inference_", "triton"),
    ("ollama_", "ollama"),
    ("lmdeploy:", "lmdeploy"),
    ("DCGM_FI_", "dcgm-exporter"),
    ("node_", "node-exporter"),
    ("prometheus_", "prometheus"),
)

TITLES: Mapping[str, str] = {
    "sglang": "an SGLang server",
    "llama.cpp": "a llama.cpp server",
    "tgi": "a TGI server",
    "router": "a router",
    "tensorrt-llm": "a TensorRT-LLM server",
    "triton": "a Triton server",
    "ollama": "an Ollama server",
    "lmdeploy": "an LMDeploy server",
    "dcgm-exporter": "a dcgm-exporter (use it with --dcgm-url)",
    "node-exporter": "a node exporter",
    "prometheus": "a Prometheus server",
}
"""A kind in words."""


@dataclass(frozen=True, slots=True)
class _Words:
    """Another server's names for the figures that it shares with vLLM."""

    kind: str
    model_label: str
    gauges: Mapping[str, str]
    rates: Mapping[str, str]
    latencies: Mapping[str, tuple[str, ...]]


_WORDS = (
    _Words(
        "sglang",
        "model_name",
        {"running": "sglang:num_running_reqs", "waiting": "sglang:num_queue_reqs", "kv_usage": "sglang:token_usage"},
        {
            "prompt_tokens_per_s": "sglang:prompt_tokens_total",
            "generation_tokens_per_s": "sglang:generation_tokens_total",
            "requests_per_s": "sglang:num_requests_total",
        },
        {
            "ttft": ("sglang:time_to_first_token_seconds",),
            "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
            "e2e": ("sglang:e2e_request_latency_seconds",),
        },
    ),
    _Words(
        "llama.cpp",
        "model",
        {
            "running": "llamacpp:requests_processing",
            "waiting": "llamacpp:requests_deferred",
            "kv_usage": "llamacpp:kv_cache_usage_ratio",
        },
        {
            "prompt_tokens_per_s": "llamacpp:prompt_tokens_total",
            "generation_tokens_per_s": "llamacpp:tokens_predicted_total",
        },
        {},
    ),
    _Words(
        "tgi",
        "model_id",
        {"running": "tgi_batch_current_size", "waiting": "tgi_queue_size"},
        {"requests_per_s": "tgi_request_success"},
        {"queue": ("tgi_request_queue_duration",), "e2e": ("tgi_request_duration",)},
    ),
)

OTHER_NAMES = frozenset(
    name
    for words in _WORDS
    for name in (
        *words.gauges.values(),
        *words.rates.values(),
        *(
            f"{base}_{part}"
            for bases in words.latencies.values()
            for base in bases
            for part in ("bucket", "count", "sum")
        ),
    )
)
"""Exact names to read off the page of another server."""


def kind_of(names: Sequence[str]) -> str | None:
    """What wrote a page with these names: `vllm`, another kind, or None.

    vLLM wins wherever it appears: a router in front of it passes its series on.
    """
    for beginning, kind in _KINDS:
        if any(name.startswith(beginning) for name in names):
            return kind
    return None


def read_other(differences: Differences, kind: str) -> tuple[EngineReading, ...]:
    """Another server's own figures, marked with its kind; empty where vtop knows none of them."""
    words = next((words for words in _WORDS if words.kind == kind), None)
    if words is None:
        return ()
    return tuple(
        _reading(View(family, differences), words)
        for family in families(differences.layout, words.model_label)
        if any(name in family.plain for name in (*words.gauges.values(), *words.rates.values()))
    )


def _reading(view: View, words: _Words) -> EngineReading:
    counts = {field: known(view.last(name)) for field, name in words.gauges.items() if field != "kv_usage"}
    # Of data-parallel engines the page has one share each, and shares are never added up.
    shares = [value for _, value in view.lines(words.gauges.get("kv_usage", ""))]
    usable = bool(shares) and all(0 <= share <= 1 for share in shares)
    rates = {field: over(view.grown(name), view.differences.span_s) for field, name in words.rates.items()}
    latencies: dict[str, Latency | None] = {}
    for field, bases in words.latencies.items():
        base = view.first(*bases)
        latencies[field] = None if base is None else view.latency(base)
    generated = words.rates.get("generation_tokens_per_s")
    return EngineReading(
        model_name=view.family.model or "",
        window_s=view.differences.span_s,
        server_kind=words.kind,
        running=counts.get("running"),
        waiting=counts.get("waiting"),
        kv_usage=sum(shares) / len(shares) if usable else None,
        kv_usage_max=max(shares) if usable else None,
        prompt_tokens_per_s=rates.get("prompt_tokens_per_s"),
        generation_tokens_per_s=rates.get("generation_tokens_per_s"),
        requests_per_s=rates.get("requests_per_s"),
        ttft=latencies.get("ttft"),
        itl=latencies.get("itl"),
        e2e=latencies.get("e2e"),
        queue=latencies.get("queue"),
        generation_tokens_total=known(view.last(generated) if generated else UNKNOWN),
        restarted=view.differences.restarted,
        missing={"tpot": f"{TITLES[words.kind]} answers here: only the figures that it shares with vLLM are shown"},
    )
