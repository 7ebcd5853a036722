"""What a /metrics page of any vLLM from 0.6 to 0.33 (engines V0 and V1) says, as one `EngineReading` a model.

Names, their meaning and the versions that have them: `vllm/v1/metrics/loggers.py` and `vllm/engine/metrics.py` of the
releases. Two facts rule the rest: counts and buckets are added up over data-parallel engines, shares never are; and a
figure that the page does not have is None with a reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vtop.vllm.families import UNKNOWN, Family, View, families, known, over
from vtop.vllm.reading import (
    MEASURING,
    NOTHING_FINISHED,
    EngineReading,
    KvTransferReading,
    Latency,
    SpeculationReading,
)
from vtop.vllm.samples import Differences, Layout

_TPOT = "vllm:request_time_per_output_token_seconds"
_ITL = "vllm:inter_token_latency_seconds"
_OLD_ITL = "vllm:time_per_output_token_seconds"
_DECODE = "vllm:request_decode_time_seconds"
_OUTPUT_SIZES = "vllm:request_generation_tokens"
_LATENCIES = {
    "ttft": "vllm:time_to_first_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": _DECODE,
}
_FINISHED_WELL = ("stop", "length")

NEEDS = {
    "swapped": "engine V1 does not swap requests out to the CPU",
    "waiting_by_reason": "vLLM says it from 0.20 on",
    "rejected": "vLLM says it from 0.32 on",
    "ttft": "not on this page",
    "e2e": "not on this page",
    "itl": "not on this page",
    "queue": "vLLM says it from 0.6.4 on",
    "prefill": "vLLM says it from 0.6.4 on",
    "decode": "vLLM says it from 0.6.4 on",
    "tpot": "vLLM before 0.11 has no per-request TPOT, and this page has no decode times to work it out from",
    "tokens_per_step": "vLLM says it from 0.6.4 on",
    "prompt_computed_share": "vLLM says where prompt tokens came from from 0.16 on",
    "prefix_hit_rate": "no prefix cache counters on this page",
    "external_hit_rate": "vLLM says it from 0.11.1 on",
    "speculation": "no speculative decoding on this server",
    "kv_transfer": "no KV connector on this server",
    "lora_running": "no LoRA on this server (--enable-lora)",
    "sleep_state": "vLLM says it from 0.11.1 on",
    "read_bytes_per_s": "needs --enable-mfu-metrics and vLLM 0.17 or newer",
    "kv_capacity_tokens": "the page does not say how many KV blocks there are",
    "preemptions": "not on this page",
    "requests_per_s": "not on this page",
    "prompt_tokens_per_s": "not on this page",
    "generation_tokens_per_s": "not on this page",
    "kv_usage": "not on this page",
    "running": "not on this page",
    "waiting": "not on this page",
}
"""Why a page may lack a field."""


@dataclass(slots=True)
class _Kept:
    """The last value of a latency, for windows in which nothing finished."""

    total: float
    grew_at_s: float
    latency: Latency | None = None


class MetricsReader:
    """Reads the pages of one server; remembers the order of its lines and the last value of each latency."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._families: list[Family] = []
        self._kept: dict[tuple[str, str], _Kept] = {}

    def read(self, differences: Differences, at_s: float) -> tuple[EngineReading, ...]:
        """One reading a model, in page order.

        Args:
            differences: the page and its growth over the window.
            at_s: when the page was read, monotonic seconds.
        """
        if differences.layout is not self._layout:
            self._layout = differences.layout
            self._families = families(differences.layout)
            models = {family.model for family in self._families}
            self._kept = {key: kept for key, kept in self._kept.items() if key[0] in models}
        shared = View(Family(None), differences)
        if self._families and self._families[0].model is None:
            shared = View(self._families[0], differences)
        named = [View(family, differences) for family in self._families if family.model is not None]
        return tuple(self._engine(view, shared, len(named) == 1, at_s) for view in named)

    def _engine(self, view: View, shared: View, alone: bool, at_s: float) -> EngineReading:
        differences = view.differences
        missing: dict[str, str] = {}
        notes: dict[str, str] = {}
        span = differences.span_s
        no_rate = differences.unavailable or "measuring: a rate needs two looks at the page"
        measured = differences.increase is not None

        def gauge(field: str, name: str) -> float | None:
            value = known(view.last(name))
            if value is None:
                missing[field] = NEEDS[field] if not view.has(name) else _NO_NUMBER
            return value

        def rate(field: str, name: str) -> float | None:
            value = over(view.grown(name), span)
            if value is None:
                missing[field] = NEEDS[field] if not view.has(name) else no_rate if not measured else _NO_NUMBER
            return value

        latencies = {field: self._latency(view, field, name, at_s, missing) for field, name in _LATENCIES.items()}
        itl_name = view.first(_ITL, _OLD_ITL)
        if itl_name == _OLD_ITL:
            notes["itl"] = "this version calls it time_per_output_token_seconds"
        usage, usage_max = _kv_usage(view, missing)
        finished = _finished(view)
        requests_per_s = over(_finished_well(view), span) if measured else None
        if requests_per_s is None:
            missing["requests_per_s"] = no_rate if not measured else NEEDS["requests_per_s"]
        computed, cached, transferred = _prompt_sources(view, missing, no_rate)
        capacity, dtype = _kv_capacity(view, shared, alone, missing)
        lora_max, lora_running, lora_waiting = _lora(view, shared, missing)
        traffic = _counts(view, _READ_BYTES, _WRITTEN_BYTES)
        reading = EngineReading(
            model_name=view.family.model or "",
            window_s=span,
            engines=view.family.engines,
            running=gauge("running", "vllm:num_requests_running"),
            waiting=gauge("waiting", "vllm:num_requests_waiting"),
            waiting_by_reason=_by(view, "vllm:num_requests_waiting_by_reason", "reason", "waiting_by_reason", missing),
            swapped=gauge("swapped", "vllm:num_requests_swapped"),
            kv_usage=usage,
            kv_usage_max=usage_max,
            kv_capacity_tokens=capacity,
            kv_cache_dtype=dtype,
            prompt_tokens_per_s=rate("prompt_tokens_per_s", "vllm:prompt_tokens_total"),
            generation_tokens_per_s=rate("generation_tokens_per_s", "vllm:generation_tokens_total"),
            requests_per_s=requests_per_s,
            finished_by_reason=finished,
            rejected=_count(view, "rejected", "vllm:admission_rejections_total", missing, no_rate),
            preemptions=_count(view, "preemptions", "vllm:num_preemptions_total", missing, no_rate),
            prompt_computed_share=computed,
            prompt_cached_share=cached,
            prompt_transferred_share=transferred,
            prefix_hit_rate=_prefix_hits(view, missing, no_rate),
            prefix_hit_rate_since_start=_v0_hit_rate(view),
            external_hit_rate=_hit_rate(view, "external_hit_rate", "vllm:external_prefix_cache", missing, no_rate),
            tpot=self._tpot(view, at_s, missing, notes),
            itl=self._latency(view, "itl", itl_name or _ITL, at_s, missing),
            tokens_per_step=over(
                view.sum_grown("vllm:iteration_tokens_total"), view.count_grown("vllm:iteration_tokens_total")
            ),
            speculation=_speculation(view, missing, notes, no_rate),
            kv_transfer=_kv_transfer(view, missing),
            lora_running=lora_running,
            lora_waiting=lora_waiting,
            lora_max=lora_max,
            sleep_state=_sleep_state(view, missing),
            read_bytes_per_s=_per_gpu(view, _READ_BYTES) if traffic else None,
            write_bytes_per_s=_per_gpu(view, _WRITTEN_BYTES) if traffic else None,
            flops_per_s=_per_gpu(view, _FLOPS) if _counts(view, _FLOPS) else None,
            generation_tokens_total=known(view.last("vllm:generation_tokens_total")),
            prompt_tokens_total=known(view.last("vllm:prompt_tokens_total")),
            missing=missing,
            notes=notes,
            restarted=differences.restarted,
            ttft=latencies["ttft"],
            e2e=latencies["e2e"],
            queue=latencies["queue"],
            prefill=latencies["prefill"],
            decode=latencies["decode"],
        )
        if reading.tokens_per_step is None:
            step = view.has("vllm:iteration_tokens_total")
            missing["tokens_per_step"] = (no_rate if not measured else _IDLE) if step else NEEDS["tokens_per_step"]
        if reading.read_bytes_per_s is None:
            counted = view.has(_READ_BYTES)
            missing["read_bytes_per_s"] = (
                NEEDS["read_bytes_per_s"] if not counted else no_rate if traffic else _NOT_ANALYSED
            )
        for field, others in _SAME_REASON.items():
            if field in missing:
                missing.update(dict.fromkeys(others, missing[field]))
        if reading.flops_per_s is None:
            missing.setdefault("flops_per_s", no_rate if _counts(view, _FLOPS) else _NOT_ANALYSED)
        return reading

    def _latency(self, view: View, field: str, base: str, at_s: float, missing: dict[str, str]) -> Latency | None:
        histogram = view.family.histograms.get(base)
        if histogram is None or not histogram.counts:
            # Engine V0 shows a histogram only after its first observation, so the page may still come to have it.
            missing[field] = NEEDS[field]
            return None
        return self._keep(view, field, view.count_total(base), view.latency(base), at_s, missing)

    def _tpot(self, view: View, at_s: float, missing: dict[str, str], notes: dict[str, str]) -> Latency | None:
        if view.has(_TPOT):
            return self._latency(view, "tpot", _TPOT, at_s, missing)
        if not (view.has(_DECODE) and view.has(_OUTPUT_SIZES)):
            missing["tpot"] = NEEDS["tpot"]
            return None
        notes["tpot"] = (
            "worked out: decode time over (output tokens - 1), of the requests that finished in the window; "
            "vLLM itself says it from 0.11 on"
        )
        # Decode time and output size are both counted when a request finishes, so the two windows agree.
        finished = view.count_grown(_OUTPUT_SIZES)
        mean = over(view.sum_grown(_DECODE), view.sum_grown(_OUTPUT_SIZES) - finished)
        latency = Latency(mean, round(finished)) if mean is not None and finished >= 0.5 else None
        return self._keep(view, "tpot", view.count_total(_OUTPUT_SIZES), latency, at_s, missing)

    def _keep(
        self, view: View, field: str, total: float, latency: Latency | None, at_s: float, missing: dict[str, str]
    ) -> Latency | None:
        key = (view.family.model or "", field)
        kept = self._kept.get(key)
        if kept is None or total < kept.total:
            kept = self._kept[key] = _Kept(total, at_s)
        grew = total > kept.total
        if grew:
            kept.total, kept.grew_at_s = total, at_s
        if latency is not None:
            kept.latency = latency
            return latency
        if grew:
            # Something finished that cannot be told apart from what came before: an older value is no value of now.
            kept.latency = None
            missing[field] = view.differences.unavailable or _NO_NUMBER
            return None
        if kept.latency is not None:
            return replace(kept.latency, age_s=max(0.0, at_s - kept.grew_at_s))
        if view.differences.increase is None:
            missing[field] = view.differences.unavailable or MEASURING
        else:
            missing[field] = NOTHING_FINISHED
        return None


_SAME_REASON = {
    "kv_usage": ("kv_usage_max",),
    "kv_capacity_tokens": ("kv_cache_dtype",),
    "prompt_computed_share": ("prompt_cached_share", "prompt_transferred_share"),
    "lora_running": ("lora_waiting", "lora_max"),
    "read_bytes_per_s": ("write_bytes_per_s", "flops_per_s"),
}
"""Fields that come from the same lines."""

_READ_BYTES = "vllm:estimated_read_bytes_per_gpu_total"
_WRITTEN_BYTES = "vllm:estimated_write_bytes_per_gpu_total"
_FLOPS = "vllm:estimated_flops_per_gpu_total"
_NOT_ANALYSED = "vLLM's arithmetic does not know this model: its counters stay at 0"
_IDLE = "nothing ran in the window"
_NO_NUMBER = "the page gives no usable number"


def _all_known(view: View, name: str) -> bool:
    return math.isfinite(view.grown(name))


def _by(view: View, name: str, label: str, field: str, missing: dict[str, str]) -> dict[str, float]:
    if not view.has(name):
        missing[field] = NEEDS[field]
    result: dict[str, float] = {}
    for labels, value in view.lines(name):
        key = labels.get(label, "")
        result[key] = result.get(key, 0.0) + value
    return {key: value for key, value in result.items() if math.isfinite(value)}


def _count(view: View, field: str, name: str, missing: dict[str, str], no_rate: str) -> float | None:
    value = known(view.grown(name))
    if value is None:
        missing[field] = no_rate if view.has(name) else NEEDS[field]
    return value


def _finished(view: View) -> dict[str, float]:
    return view.grown_by("vllm:request_success_total", "finished_reason")


def _finished_well(view: View) -> float:
    name = "vllm:request_success_total"
    if view.has(name):
        return view.grown(name, lambda labels: labels.get("finished_reason") in _FINISHED_WELL)
    # Engine V0 shows a reason only after the first request that ended so: no line at all means that none has ended.
    young = view.has("vllm:num_requests_swapped") and not view.has("vllm:e2e_request_latency_seconds")
    return 0.0 if young else UNKNOWN


def _kv_usage(view: View, missing: dict[str, str]) -> tuple[float | None, float | None]:
    name = view.first("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    if name is None:
        missing["kv_usage"] = NEEDS["kv_usage"]
        return None, None
    shares = [value for _, value in view.lines(name)]
    if not all(map(math.isfinite, shares)):
        missing["kv_usage"] = _NO_NUMBER
        return None, None
    if max(shares) > 1.005 or min(shares) < 0:
        # Engine V0 adds the gauge up over processes, dead ones too where their files were left behind.
        missing["kv_usage"] = (
            f"the page says {max(shares) * 100:.0f} %: files of dead processes in PROMETHEUS_MULTIPROC_DIR"
        )
        return None, None
    return sum(shares) / len(shares), max(shares)


def _prompt_sources(
    view: View, missing: dict[str, str], no_rate: str
) -> tuple[float | None, float | None, float | None]:
    name = "vllm:prompt_tokens_by_source_total"
    if not view.has(name):
        missing["prompt_computed_share"] = NEEDS["prompt_computed_share"]
        return None, None, None
    grown = view.grown_by(name, "source")
    total = sum(grown.values())
    if total <= 0 or not _all_known(view, name):
        missing["prompt_computed_share"] = no_rate if view.differences.increase is None else _IDLE
        return None, None, None
    cached = grown.get("local_cache_hit", 0.0)
    transferred = grown.get("external_kv_transfer", 0.0)
    return grown.get("local_compute", 0.0) / total, cached / total, transferred / total


def _hit_rate(view: View, field: str, base: str, missing: dict[str, str], no_rate: str) -> float | None:
    queries, hits = f"{base}_queries_total", f"{base}_hits_total"
    if not (view.has(queries) and view.has(hits)):
        missing[field] = NEEDS[field]
        return None
    share = over(view.grown(hits), view.grown(queries))
    if share is None:
        missing[field] = no_rate if view.differences.increase is None else "nothing was looked up in the window"
        return None
    return min(share, 1.0)


def _prefix_hits(view: View, missing: dict[str, str], no_rate: str) -> float | None:
    if view.has("vllm:prefix_cache_queries_total"):
        return _hit_rate(view, "prefix_hit_rate", "vllm:prefix_cache", missing, no_rate)
    # Blocks in 0.8, tokens from 0.9 on; the quotient means the same.
    share = _hit_rate(view, "prefix_hit_rate", "vllm:gpu_prefix_cache", missing, no_rate)
    if view.has("vllm:gpu_prefix_cache_hit_rate"):
        average = _v0_hit_rate(view)
        missing["prefix_hit_rate"] = (
            "prefix caching is off"
            if average is None
            else f"engine V0 gives only an average since the start ({average * 100:.0f} %), no live value"
        )
    return share


def _v0_hit_rate(view: View) -> float | None:
    shares = [value for _, value in view.lines("vllm:gpu_prefix_cache_hit_rate")]
    # -1 says that prefix caching is off.
    return shares[0] if len(shares) == 1 and 0 <= shares[0] <= 1 else None


def _kv_capacity(view: View, shared: View, alone: bool, missing: dict[str, str]) -> tuple[float | None, str | None]:
    # vLLM's own line names no model; a router in front may add one.
    named = view.lines("vllm:cache_config_info")
    by_engine = {labels.get("engine", ""): labels for labels, _ in named or shared.lines("vllm:cache_config_info")}
    if not by_engine or not (named or alone):
        missing["kv_capacity_tokens"] = (
            NEEDS["kv_capacity_tokens"] if alone else "the page does not say which model the KV cache belongs to"
        )
        return None, None
    total = 0.0
    for labels in by_engine.values():
        tokens = _whole(labels.get("kv_cache_size_tokens"))
        if tokens is None:
            blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
            tokens = blocks * size if blocks is not None and size is not None else None
        if tokens is None:
            missing["kv_capacity_tokens"] = NEEDS["kv_capacity_tokens"]
            total = UNKNOWN
        else:
            total += tokens
    return known(total), next(iter(by_engine.values())).get("cache_dtype")


def _whole(text: str | None) -> int | None:
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if number > 0 else None


def _lora(view: View, shared: View, missing: dict[str, str]) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
    lines = view.lines("vllm:lora_requests_info") or shared.lines("vllm:lora_requests_info")
    lines = [line for line in lines if math.isfinite(line[1])]
    if not lines:
        missing["lora_running"] = NEEDS["lora_running"]
        return None, (), ()
    # The value is the time of the statement, and old statements stay on the page: the newest one holds.
    labels, _ = max(lines, key=lambda line: line[1])
    maximum = _whole(labels.get("max_lora"))
    if maximum is None:
        missing["lora_running"] = NEEDS["lora_running"]
    return (
        maximum,
        tuple(sorted(filter(None, labels.get("running_lora_adapters", "").split(",")))),
        tuple(sorted(filter(None, labels.get("waiting_lora_adapters", "").split(",")))),
    )


def _sleep_state(view: View, missing: dict[str, str]) -> str | None:
    states = {labels.get("sleep_state", "") for labels, value in view.lines("vllm:engine_sleep_state") if value == 1}
    if not states:
        missing["sleep_state"] = NEEDS["sleep_state"]
        return None
    return "/".join(sorted(states))


def _counts(view: View, *names: str) -> bool:
    """Whether vLLM's arithmetic knows the model: of one that it cannot analyse it says 0 however much is generated."""
    return not (sum(view.last(name) for name in names) == 0 and view.last("vllm:generation_tokens_total") > 0)


def _per_gpu(view: View, name: str) -> float | None:
    """Mean over engines, since the counter itself is for one GPU."""
    lines = len(view.family.plain.get(name, ()))
    return over(view.grown(name), view.differences.span_s * lines)


def _speculation(view: View, missing: dict[str, str], notes: dict[str, str], no_rate: str) -> SpeculationReading | None:
    name = "vllm:spec_decode_num_draft_tokens_total"
    if not view.has(name):
        missing["speculation"] = NEEDS["speculation"]
        return None
    drafted = view.grown(name)
    accepted = view.grown("vllm:spec_decode_num_accepted_tokens_total")
    drafts = view.grown("vllm:spec_decode_num_drafts_total")
    span = view.differences.span_s
    if view.differences.increase is None:
        missing["speculation"] = no_rate
    elif drafted == 0:
        missing["speculation"] = "nothing was drafted in the window"
    per_draft = over(accepted, drafts)
    if not view.has("vllm:spec_decode_num_drafts_total"):
        notes["speculation"] = "this version does not count drafts, so there is no mean acceptance length"
    by_position = view.grown_by("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
    positions = sorted((int(text), growth) for text, growth in by_position.items() if text.isdecimal())
    return SpeculationReading(
        acceptance=over(accepted, drafted),
        mean_length=None if per_draft is None else 1 + per_draft,
        per_position=tuple(growth / drafts for _, growth in positions) if drafts > 0 else (),
        drafted_tokens_per_s=over(drafted, span),
        wasted_tokens_per_s=over(max(0.0, drafted - accepted) if drafted >= 0 and accepted >= 0 else UNKNOWN, span),
    )


def _kv_transfer(view: View, missing: dict[str, str]) -> KvTransferReading | None:
    def external(labels: object) -> bool:
        return isinstance(labels, dict) and labels.get("source") == "external_kv_transfer"

    source = "vllm:prompt_tokens_by_source_total"
    brought = any(value > 0 for labels, value in view.lines(source) if external(labels))
    connector = next((kind for kind in ("nixl", "mooncake") if view.has(f"vllm:{kind}_xfer_time_seconds")), None)
    if connector is None and not brought:
        missing["kv_transfer"] = NEEDS["kv_transfer"]
        return None
    span = view.differences.span_s
    base = f"vllm:{connector or 'nixl'}"
    failures = [name for name in _TRANSFER_FAILURES if view.has(name)]
    return KvTransferReading(
        tokens_per_s=over(view.grown(source, external), span),
        bytes_per_s=over(view.sum_grown(f"{base}_bytes_transferred"), span),
        mean_transfer_s=over(
            view.sum_grown(f"{base}_xfer_time_seconds"), view.count_grown(f"{base}_xfer_time_seconds")
        ),
        failed=known(sum(view.grown(name) for name in failures)) if failures else None,
    )


_TRANSFER_FAILURES = (
    "vllm:nixl_num_failed_transfers_total",
    "vllm:nixl_num_failed_notifications_total",
    "vllm:nixl_num_kv_expired_reqs_total",
    "vllm:mooncake_num_failed_transfers_total",
    "vllm:mooncake_num_failed_recvs_total",
    "vllm:mooncake_num_kv_expired_reqs_total",
)
