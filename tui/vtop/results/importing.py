"""Results of other load tools as runs of vtop, with their definitions mapped and labelled.

The names are the same in these tools, the numbers are not: what `guidellm` calls TPOT includes the first token, what it
calls ITL is the mean of each request's (last - first token) / (n - 1), which is vtop's TPOT; `aiperf` calls that number
inter token latency too; `vllm bench serve` counts a role-only chunk as the first token and a
stream that dies as a success.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from vtop import paths
from vtop.errors import UsageError, VtopError
from vtop.load import stats
from vtop.load.progress import LoadRequest, LoadResult, Percentiles
from vtop.results import store

_VLLM_SOURCES = (
    ("TTFT", "first event with choices, even a role-only one, minus the call that sends the request"),
    ("TPOT", "(latency - TTFT) / (n - 1), as vtop's"),
    ("ITL", "every gap between events; several tokens may be in one"),
    ("E2E", "last event minus the call, as vtop's"),
    ("output tokens/s", "tokens over the whole run, ramp and tail included"),
    ("failures", "an error inside a stream or a cut stream counts as success in vllm 0.32"),
)
_GUIDELLM_SOURCES = (
    ("TTFT", "time_to_first_token_ms: first event with content, minus the first header write"),
    ("TPOT", "inter_token_latency_ms: (last - first token) / (n - 1), weighted by n - 1"),
    ("ITL", "not in the file; its time_per_output_token_ms is latency / n, first token included, and is not shown"),
    ("E2E", "request_latency: to the end of the stream, after [DONE]"),
    ("output tokens/s", "mean of a time-weighted distribution over the window without warm-up and cool-down"),
    ("failures", "errored and incomplete; a stream cut without an error counts as success"),
)
_AIPERF_SOURCES = (
    ("TTFT", "time_to_first_token: first content response minus the start"),
    ("TPOT", "inter_token_latency: (latency - TTFT) / (n - 1)"),
    ("ITL", "inter_chunk_latency: gaps between events, where the file has it"),
    ("E2E", "request_latency: last content response minus the start"),
    (
        "output tokens/s",
        "output tokens over first request to last response; n counted by its own tokenizer",
    ),
    ("failures", "error records; failed requests are in no latency"),
)
_MILLISECONDS = 1e-3


def import_file(path: Path, base: Path | None = None) -> list[str]:
    """Saves every result in a file as a run and returns the runs' ids.

    Args:
        path: JSON of `vllm bench serve`, `guidellm` or `aiperf` (`profile_export_aiperf.json`), or a run of vtop.
        base: where runs are kept.

    Raises:
        UsageError: the file cannot be read or is of no known tool.
        VtopError: the run cannot be saved.
    """
    try:
        raw = path.expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the path.") from error
    results = read_results(raw, str(path))
    base = base or paths.runs_dir()
    ids: list[str] = []
    for result in results:
        run_id = store.new_run_id("import", result.at_wall_s or time.time(), base)
        directory = base / run_id
        try:
            directory.mkdir(mode=0o700, parents=True)
            saved = replace(result, run_id=run_id, directory=str(directory))
            store.write_atomically(directory / "imported.json", raw)
            document = {"vtop_schema": store.SCHEMA, "vtop_result": saved}
            store.write_atomically(directory / "result.json", store.json_bytes(document))
        except OSError as error:
            raise VtopError(f"cannot save the run in {directory}: {error.strerror}", "Free space.") from error
        ids.append(run_id)
    return ids


def read_results(raw: bytes, name: str) -> list[LoadResult]:
    """The results in the bytes of a file.

    Raises:
        UsageError: they are of no known tool.
    """
    try:
        documents = _documents(raw)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}", "Give the JSON file that the tool saved.") from None
    return [result for document in documents for result in _results_in(document, name)]


def _documents(raw: bytes) -> list[Any]:
    """What a file holds: one result, a list of them (`vllm bench sweep`), or one a line (`--append-result`).

    Raises:
        ValueError: it is not JSON.
    """
    try:
        document = json.loads(raw)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            raise
        return [json.loads(line) for line in raw.splitlines() if line.strip()]
    return document if isinstance(document, list) and document else [document]


def _results_in(document: Any, name: str) -> list[LoadResult]:
    if isinstance(document, dict):
        try:
            if isinstance(document.get("vtop_result"), dict):
                # vtop's file has the keys of vllm bench too; its own numbers say more, and whether it was simulated.
                return [msgspec.convert(document["vtop_result"], LoadResult)]
            if isinstance(document.get("benchmarks"), list):
                return [_guidellm(part, document) for part in document["benchmarks"]]
            if "total_output_tokens" in document and "duration" in document:
                return [_vllm(document)]
            if isinstance(document.get("request_latency"), dict) or isinstance(document.get("records"), dict):
                return [_aiperf(document)]
        except (KeyError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as error:
            raise UsageError(
                f"{name}: not as its tool writes it ({error!r})", "Was the file changed or cut?"
            ) from error
    raise UsageError(
        f"{name} is no result of vllm bench, guidellm or aiperf",
        "Give result JSON of `vllm bench serve --save-result`, `guidellm benchmark` or `aiperf profile`.",
    )


def _result(request: LoadRequest, **fields: Any) -> LoadResult:
    given: dict[str, Any] = {
        "run_id": "",
        "directory": "",
        "request": request,
        "complete": True,
        "steady_tokens_per_s": None,
        "itl": Percentiles(0),
        "kind": "imported",
        **fields,
    }
    requests, failed = given["requests"], given["failed"]
    if requests and failed > stats.FAILURE_LIMIT * requests:
        given["comparable"] = False
        given["not_comparable_because"] = f"{failed} of {requests} requests failed ({failed / requests:.0%})"
    return LoadResult(**given)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# vllm bench serve


def _vllm(document: Mapping[str, Any]) -> LoadResult:
    rate = document.get("request_rate")
    request = LoadRequest(
        workload="vllm bench",
        model=str(document.get("model_id") or ""),
        concurrency=_whole(document.get("max_concurrency")),
        requests=_whole(document.get("num_prompts")),
        rate=_number(rate),
        endpoint="completions" if document.get("backend") in ("openai", "vllm") else "chat",
        label=str(document.get("label") or ""),
    )
    completed = int(document["completed"])
    failed = int(document.get("failed") or 0)
    lists = _vllm_lists(document)
    return _result(
        request,
        requests=completed + failed,
        completed=completed,
        failed=failed,
        duration_s=float(document["duration"]),
        output_tokens=int(document["total_output_tokens"]),
        prompt_tokens=int(document.get("total_input_tokens") or 0),
        output_tokens_per_s=_number(document.get("output_throughput")),
        requests_per_s=_number(document.get("request_throughput")),
        goodput_per_s=_number(document.get("request_goodput")),
        peak_tokens_per_s=None,
        asked_rate=_number(rate),
        ttft=lists.get("ttft") or _vllm_percentiles(document, "ttft", completed),
        tpot=lists.get("tpot") or _vllm_percentiles(document, "tpot", completed),
        itl=lists.get("itl") or _vllm_percentiles(document, "itl", 0),
        e2e=lists.get("e2el") or _vllm_percentiles(document, "e2el", completed),
        at_wall_s=_vllm_date(document.get("date")),
        definitions="vllm bench serve",
        sources=_VLLM_SOURCES,
        warnings=("imported from vllm bench serve: streams that died may be counted as successes",),
    )


def _vllm_date(text: Any) -> float:
    try:
        return time.mktime(time.strptime(str(text), "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return 0.0


def _vllm_percentiles(document: Mapping[str, Any], name: str, n: int) -> Percentiles:
    def seconds(prefix: str) -> float | None:
        value = _number(document.get(f"{prefix}_{name}_ms"))
        return None if value is None else value * _MILLISECONDS

    if seconds("mean") is None:
        return Percentiles(0)
    return Percentiles(n, seconds("mean"), seconds("median"), seconds("p90"), seconds("p95"), seconds("p99"))


def _vllm_lists(document: Mapping[str, Any]) -> dict[str, Percentiles]:
    """Every percentile, from the lists that `--save-detailed` keeps."""
    names = ("ttfts", "latencies", "output_lens", "errors")
    columns = [document.get(name) for name in names]
    if not all(isinstance(column, list) for column in columns):
        return {}
    rows: Sequence[tuple[float, float, int, str]] = list(zip(*columns, strict=True))
    good = [row for row in rows if not row[3]]
    found = {
        "ttft": stats.percentiles(row[0] for row in good),
        "tpot": stats.percentiles((row[1] - row[0]) / (row[2] - 1) for row in good if row[2] > 1),
        "e2el": stats.percentiles(row[1] for row in good),
    }
    gaps = document.get("itls")
    if isinstance(gaps, list):
        found["itl"] = stats.percentiles(gap for one in gaps for gap in one)
    return found


# guidellm


def _guidellm(part: Mapping[str, Any], document: Mapping[str, Any]) -> LoadResult:
    metrics = part["metrics"]
    totals = metrics.get("request_totals") or {}

    def total(kind: str) -> int:
        known = _whole(totals.get(kind))
        listed = (part.get("requests") or {}).get(kind)
        return known if known is not None else len(listed) if isinstance(listed, list) else 0

    def of(name: str, scale: float = 1.0) -> Percentiles:
        return _guidellm_percentiles((metrics.get(name) or {}).get("successful"), scale)

    completed, failed = total("successful"), total("errored") + total("incomplete")
    strategy = ((part.get("config") or {}).get("strategy") or {}) if isinstance(part.get("config"), dict) else {}
    request = LoadRequest(
        workload="guidellm",
        model=_guidellm_model(part, document),
        concurrency=_whole(strategy.get("streams") or strategy.get("max_concurrency")),
        rate=_number(strategy.get("rate")),
        label=str(strategy.get("type_") or ""),
    )
    output, prompt = of("output_token_count"), of("prompt_token_count")
    rate = of("output_tokens_per_second")
    return _result(
        request,
        requests=completed + failed,
        completed=completed,
        failed=failed,
        duration_s=float(part.get("duration") or float(part["end_time"]) - float(part["start_time"])),
        output_tokens=round((output.mean or 0.0) * completed),
        prompt_tokens=round((prompt.mean or 0.0) * completed),
        output_tokens_per_s=rate.mean,
        requests_per_s=of("requests_per_second").mean,
        concurrency_mean=of("request_concurrency").mean,
        asked_rate=_number(strategy.get("rate")),
        ttft=of("time_to_first_token_ms", _MILLISECONDS),
        tpot=of("inter_token_latency_ms", _MILLISECONDS),
        e2e=of("request_latency"),
        at_wall_s=_number(part.get("start_time")) or 0.0,
        definitions="guidellm",
        sources=_GUIDELLM_SOURCES,
        warnings=("imported from guidellm: TPOT is its inter_token_latency_ms",),
    )


def _guidellm_model(part: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    for place in (part.get("config"), document.get("config"), document.get("args")):
        if isinstance(place, dict):
            backend = place.get("backend")
            model = place.get("model") or (backend.get("model") if isinstance(backend, dict) else None)
            if isinstance(model, str):
                return model
    return ""


def _guidellm_percentiles(found: Any, scale: float) -> Percentiles:
    if not isinstance(found, dict) or not found.get("count"):
        return Percentiles(0)
    points = found.get("percentiles") or {}

    def scaled(value: Any) -> float | None:
        number = _number(value)
        return None if number is None else number * scale

    return Percentiles(
        int(found["count"]),
        scaled(found.get("mean")),
        scaled(found.get("median")),
        scaled(points.get("p90")),
        scaled(points.get("p95")),
        scaled(points.get("p99")),
        scaled(found.get("min")),
        scaled(found.get("max")),
    )


# aiperf

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0, "seconds": 1.0}


def _aiperf(document: Mapping[str, Any]) -> LoadResult:
    # Older files keep the metrics under "records".
    metrics = document["records"] if isinstance(document.get("records"), dict) else document
    count = _aiperf_value(metrics, "request_count") or 0.0
    failed = _aiperf_value(metrics, "error_request_count") or 0.0
    configured = document.get("input_config") or {}
    load = configured.get("loadgen") or {}
    names = (configured.get("endpoint") or {}).get("model_names")
    request = LoadRequest(
        workload="aiperf",
        model=str(names[0]) if isinstance(names, list) and names else "",
        concurrency=_whole(load.get("concurrency")),
        rate=_number(load.get("request_rate")),
    )
    output = _aiperf_value(metrics, "output_sequence_length") or 0.0
    prompt = _aiperf_value(metrics, "input_sequence_length") or 0.0
    rate = _aiperf_value(metrics, "output_token_throughput")
    per_s = _aiperf_value(metrics, "request_throughput")
    duration = _aiperf_seconds(metrics, "benchmark_duration")
    n = int(count)
    return _result(
        request,
        requests=n + int(failed),
        completed=n,
        failed=int(failed),
        duration_s=duration if duration is not None else count / per_s if per_s else 0.0,
        output_tokens=round(output * count),
        prompt_tokens=round(prompt * count),
        output_tokens_per_s=rate,
        requests_per_s=per_s,
        asked_rate=_number(load.get("request_rate")),
        goodput_per_s=_aiperf_value(metrics, "goodput"),
        ttft=_aiperf_percentiles(metrics.get("time_to_first_token"), n),
        tpot=_aiperf_percentiles(metrics.get("inter_token_latency"), n),
        itl=_aiperf_percentiles(metrics.get("inter_chunk_latency"), n),
        e2e=_aiperf_percentiles(metrics.get("request_latency"), n),
        at_wall_s=_aiperf_date(document.get("start_time")),
        complete=not document.get("was_cancelled"),
        definitions="aiperf",
        sources=_AIPERF_SOURCES,
        warnings=("imported from aiperf: TPOT is its inter_token_latency",),
    )


def _aiperf_date(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def _aiperf_value(metrics: Mapping[str, Any], name: str) -> float | None:
    metric = metrics.get(name)
    return _number(metric.get("avg")) if isinstance(metric, dict) else None


def _aiperf_seconds(metrics: Mapping[str, Any], name: str) -> float | None:
    value = _aiperf_value(metrics, name)
    return None if value is None else value * _UNITS.get(str(metrics[name].get("unit")), 1.0)


def _aiperf_percentiles(metric: Any, n: int) -> Percentiles:
    if not isinstance(metric, dict) or metric.get("avg") is None:
        return Percentiles(0)
    scale = _UNITS.get(str(metric.get("unit")), _MILLISECONDS)

    def scaled(name: str) -> float | None:
        value = _number(metric.get(name))
        return None if value is None else value * scale

    samples = _whole(metric.get("count"))
    return Percentiles(
        samples if samples is not None else n,
        scaled("avg"),
        scaled("p50"),
        scaled("p90"),
        scaled("p95"),
        scaled("p99"),
        scaled("min"),
        scaled("max"),
    )
