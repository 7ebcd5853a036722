"""The /metrics page of the simulated server: names, labels and buckets of vLLM 0.33."""

from __future__ import annotations

import os
import resource
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

TTFT_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_TIME_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_TIME_EDGES = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
STEP_TOKEN_EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
COUNT_EDGES = (1, 2, 5, 10, 20)
TRANSFER_TIME_EDGES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
TRANSFER_BYTES_EDGES = tuple(2.0 ** (10 + 3 * power) for power in range(9))
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def one_two_five(limit: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... up to a limit: the edges of token counts."""
    edges: list[int] = []
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power > limit:
                return tuple(edges)
            edges.append(factor * power)
        power *= 10


class Histogram:
    """A Prometheus histogram."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.edges, value)] += times
        self.total += value * times


class EngineMetrics:
    """Everything that one engine counts."""

    def __init__(self, max_model_len: int, drafted: int) -> None:
        self.created_wall_s = time.time()
        self.running = 0
        self.waiting_capacity = 0
        self.waiting_deferred = 0
        self.kv_usage = 0.0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.external_queries = 0
        self.external_hits = 0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.prompt_computed = 0
        self.prompt_cached = 0
        self.prompt_transferred = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.accepted_at = [0] * drafted
        self.flops = 0.0
        self.read_bytes = 0.0
        self.write_bytes = 0.0
        lengths = one_two_five(max_model_len)
        self.histograms: dict[str, Histogram] = {
            "request_prompt_tokens": Histogram(lengths),
            "request_generation_tokens": Histogram(lengths),
            "iteration_tokens_total": Histogram(STEP_TOKEN_EDGES),
            "request_max_num_generation_tokens": Histogram(lengths),
            "request_params_n": Histogram(COUNT_EDGES),
            "request_params_max_tokens": Histogram(lengths),
            "time_to_first_token_seconds": Histogram(TTFT_EDGES),
            "inter_token_latency_seconds": Histogram(TOKEN_TIME_EDGES),
            "request_time_per_output_token_seconds": Histogram(TOKEN_TIME_EDGES),
            "e2e_request_latency_seconds": Histogram(REQUEST_TIME_EDGES),
            "request_queue_time_seconds": Histogram(REQUEST_TIME_EDGES),
            "request_inference_time_seconds": Histogram(REQUEST_TIME_EDGES),
            "request_prefill_time_seconds": Histogram(REQUEST_TIME_EDGES),
            "request_decode_time_seconds": Histogram(REQUEST_TIME_EDGES),
            "request_num_preemptions": Histogram(COUNT_EDGES),
            "request_prefill_kv_computed_tokens": Histogram(lengths),
        }
        self.transfers: dict[str, Histogram] = {
            "nixl_xfer_time_seconds": Histogram(TRANSFER_TIME_EDGES),
            "nixl_bytes_transferred": Histogram(TRANSFER_BYTES_EDGES),
        }

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Counts a value in one of the histograms."""
        self.histograms[name].observe(value, times)


_Pick = Callable[[EngineMetrics], Iterable[tuple[str, float]]]
"""Label text and value of each series of a family."""


def escape(value: str) -> str:
    """A label value as the text format wants it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Page:
    """Puts the page together."""

    def __init__(
        self,
        model_name: str,
        cache_config: Mapping[str, str],
        *,
        speculation: bool,
        mfu: bool,
        transfers: bool,
    ) -> None:
        self._model = escape(model_name)
        self._cache = ",".join(f'{key}="{escape(value)}"' for key, value in sorted(cache_config.items()))
        self._speculation = speculation
        self._mfu = mfu
        self._transfers = transfers

    def text(self, engines: Sequence[EngineMetrics]) -> str:
        """The whole page."""
        lines: list[str] = []
        self._process(lines, engines[0].created_wall_s)
        self._counters(lines, engines)
        self._gauges(lines, engines)
        for name in engines[0].histograms:
            self._histogram(lines, name, [engine.histograms[name] for engine in engines], engines)
        if self._transfers:
            for name in engines[0].transfers:
                self._histogram(lines, name, [engine.transfers[name] for engine in engines], engines)
        self._head(lines, "cache_config_info", "gauge", "Cache configuration of the simulated engine.")
        for index in range(len(engines)):
            lines.append(f'vllm:cache_config_info{{{self._cache},engine="{index}"}} 1.0')
        return "\n".join(lines) + "\n"

    def _labels(self, engine: int, extra: str = "") -> str:
        return f'engine="{engine}",model_name="{self._model}"{"," + extra if extra else ""}'

    @staticmethod
    def _head(lines: list[str], name: str, kind: str, text: str) -> None:
        lines.append(f"# HELP vllm:{name} {text}")
        lines.append(f"# TYPE vllm:{name} {kind}")

    @staticmethod
    def _process(lines: list[str], started_wall_s: float) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        lines += [
            "# HELP vtop_simulated 1 on a page of vtop's simulated server.",
            "# TYPE vtop_simulated gauge",
            "vtop_simulated 1.0",
            "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {started_wall_s!r}",
            "# HELP process_cpu_seconds_total Total user and system CPU time spent in seconds.",
            "# TYPE process_cpu_seconds_total counter",
            f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime:.2f}",
            "# HELP process_open_fds Number of open file descriptors.",
            "# TYPE process_open_fds gauge",
            f"process_open_fds {_open_files()}.0",
        ]

    def _counters(self, lines: list[str], engines: Sequence[EngineMetrics]) -> None:
        if self._speculation:
            self._counter(lines, "spec_decode_num_drafts", "Drafts.", engines, lambda e: [("", e.drafts)])
            self._counter(
                lines, "spec_decode_num_draft_tokens", "Draft tokens.", engines, lambda e: [("", e.draft_tokens)]
            )
            self._counter(
                lines, "spec_decode_num_accepted_tokens", "Accepted.", engines, lambda e: [("", e.accepted_tokens)]
            )
            self._counter(
                lines,
                "spec_decode_num_accepted_tokens_per_pos",
                "Accepted tokens by draft position.",
                engines,
                lambda e: [(f'position="{place}"', value) for place, value in enumerate(e.accepted_at)],
            )
        if self._mfu:
            for name, text, pick in _MFU_COUNTERS:
                self._counter(lines, name, text, engines, pick)
        for name, text, pick in _COUNTERS:
            self._counter(lines, name, text, engines, pick)
        self._head(lines, "admission_rejections_total", "counter", "Requests refused at admission.")
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            lines.append(f'vllm:admission_rejections_total{{model_name="{self._model}",reason="{reason}"}} 0.0')

    def _counter(self, lines: list[str], name: str, text: str, engines: Sequence[EngineMetrics], pick: _Pick) -> None:
        self._head(lines, f"{name}_total", "counter", text)
        created = []
        for index, engine in enumerate(engines):
            for extra, value in pick(engine):
                labels = self._labels(index, extra)
                lines.append(f"vllm:{name}_total{{{labels}}} {float(value)!r}")
                created.append(f"vllm:{name}_created{{{labels}}} {engine.created_wall_s!r}")
        self._head(lines, f"{name}_created", "gauge", text)
        lines += created

    def _gauges(self, lines: list[str], engines: Sequence[EngineMetrics]) -> None:
        for name, text, pick in _GAUGES:
            self._head(lines, name, "gauge", text)
            for index, engine in enumerate(engines):
                for extra, value in pick(engine):
                    lines.append(f"vllm:{name}{{{self._labels(index, extra)}}} {float(value)!r}")

    def _histogram(
        self, lines: list[str], name: str, histograms: Sequence[Histogram], engines: Sequence[EngineMetrics]
    ) -> None:
        self._head(lines, name, "histogram", f"Histogram of {name}.")
        for index, histogram in enumerate(histograms):
            labels = self._labels(index)
            bucket = f'vllm:{name}_bucket{{engine="{index}",'
            running = 0
            for edge, count in zip(histogram.edges, histogram.counts, strict=False):
                running += count
                lines.append(f'{bucket}le="{float(edge)!r}",model_name="{self._model}"}} {running}.0')
            running += histogram.counts[-1]
            lines.append(f'{bucket}le="+Inf",model_name="{self._model}"}} {running}.0')
            lines.append(f"vllm:{name}_count{{{labels}}} {running}.0")
            lines.append(f"vllm:{name}_sum{{{labels}}} {histogram.total!r}")
        self._head(lines, f"{name}_created", "gauge", f"Histogram of {name}.")
        for index, engine in enumerate(engines):
            lines.append(f"vllm:{name}_created{{{self._labels(index)}}} {engine.created_wall_s!r}")


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


_COUNTERS: tuple[tuple[str, str, _Pick], ...] = (
    ("corrupted_requests", "Requests with NaNs.", lambda e: [("", 0)]),
    ("prefix_cache_queries", "Prefix cache queries, in tokens.", lambda e: [("", e.prefix_queries)]),
    ("prefix_cache_hits", "Prefix cache hits, in tokens.", lambda e: [("", e.prefix_hits)]),
    ("external_prefix_cache_queries", "External cache queries, tokens.", lambda e: [("", e.external_queries)]),
    ("external_prefix_cache_hits", "External cache hits, tokens.", lambda e: [("", e.external_hits)]),
    ("mm_cache_queries", "Multi-modal cache queries.", lambda e: [("", 0)]),
    ("mm_cache_hits", "Multi-modal cache hits.", lambda e: [("", 0)]),
    ("num_preemptions", "Preemptions.", lambda e: [("", e.preemptions)]),
    ("prompt_tokens", "Prefill tokens processed.", lambda e: [("", e.prompt_tokens)]),
    (
        "prompt_tokens_by_source",
        "Prompt tokens by source.",
        lambda e: [
            ('source="local_compute"', e.prompt_computed),
            ('source="local_cache_hit"', e.prompt_cached),
            ('source="external_kv_transfer"', e.prompt_transferred),
        ],
    ),
    ("prompt_tokens_cached", "Cached prompt tokens.", lambda e: [("", e.prompt_cached + e.prompt_transferred)]),
    (
        "prompt_tokens_cached_by_source",
        "Cached prompt tokens by source.",
        lambda e: [
            ('source="device"', e.prompt_cached),
            ('source="host"', 0),
            ('source="p2p"', e.prompt_transferred),
            ('source="disk"', 0),
            ('source="external_unspecified"', 0),
        ],
    ),
    ("generation_tokens", "Generation tokens processed.", lambda e: [("", e.generation_tokens)]),
    (
        "request_success",
        "Finished requests.",
        lambda e: [(f'finished_reason="{reason}"', e.finished[reason]) for reason in FINISH_REASONS],
    ),
)

_MFU_COUNTERS: tuple[tuple[str, str, _Pick], ...] = (
    ("estimated_flops_per_gpu", "Estimated FLOPs per GPU.", lambda e: [("", e.flops)]),
    ("estimated_read_bytes_per_gpu", "Estimated bytes read per GPU.", lambda e: [("", e.read_bytes)]),
    ("estimated_write_bytes_per_gpu", "Estimated bytes written per GPU.", lambda e: [("", e.write_bytes)]),
)

_GAUGES: tuple[tuple[str, str, _Pick], ...] = (
    ("num_requests_running", "Requests in execution batches.", lambda e: [("", e.running)]),
    ("num_requests_waiting", "Requests waiting.", lambda e: [("", e.waiting_capacity + e.waiting_deferred)]),
    (
        "num_requests_waiting_by_reason",
        "Requests waiting, by reason.",
        lambda e: [('reason="capacity"', e.waiting_capacity), ('reason="deferred"', e.waiting_deferred)],
    ),
    (
        "engine_sleep_state",
        "Sleep state.",
        lambda e: [
            ('sleep_state="awake"', 1),
            ('sleep_state="weights_offloaded"', 0),
            ('sleep_state="discard_all"', 0),
        ],
    ),
    ("kv_cache_usage_perc", "KV cache usage, 1 means 100 percent.", lambda e: [("", e.kv_usage)]),
)
