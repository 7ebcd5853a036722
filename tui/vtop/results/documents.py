"""Runs and comparisons as plain data for JSON and CSV: units in the names, unknown is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vtop.load.progress import LoadResult, LoadStep, Percentiles
from vtop.results.comparison import CompareRow, ComparisonRecord

_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "minimum", "maximum")


def run_document(result: LoadResult) -> dict[str, Any]:
    """A load test, flat."""
    request = result.request
    document: dict[str, Any] = {
        "run_id": result.run_id,
        "kind": result.kind,
        "at_wall_s": result.at_wall_s,
        "simulated": result.simulated,
        "complete": result.complete,
        "comparable": result.comparable,
        "not_comparable_because": result.not_comparable_because or None,
        "workload": request.workload,
        "model": request.model,
        "url": request.url,
        "concurrency": request.concurrency,
        "asked_rate_per_s": result.asked_rate,
        "achieved_rate_per_s": result.achieved_rate,
        "max_tokens": request.max_tokens,
        "seed": result.seed,
        "requests": result.requests,
        "completed": result.completed,
        "failed": result.failed,
        "failures": dict(result.failures),
        "duration_s": result.duration_s,
        "prompt_tokens": result.prompt_tokens,
        "output_tokens": result.output_tokens,
        "output_tokens_per_s": result.output_tokens_per_s,
        "steady_tokens_per_s": result.steady_tokens_per_s,
        "peak_tokens_per_s": result.peak_tokens_per_s,
        "requests_per_s": result.requests_per_s,
        "goodput_per_s": result.goodput_per_s,
        "concurrency_mean": result.concurrency_mean,
        "tokens_per_chunk": result.tokens_per_chunk,
    }
    for name in ("ttft", "tpot", "itl", "e2e"):
        document |= _flat(name, getattr(result, name))
    for name in ("ttfo", "e2e_from_schedule", "wait_before_send"):
        if getattr(result, name).n:
            document |= _flat(name, getattr(result, name))
    document |= {
        "client_overhead_s": result.client_overhead_s,
        "client_capacity_tokens_per_s": result.client_capacity_tokens_per_s,
        "loop_lag_p99_s": result.loop_lag_p99_s,
        "client_bound": result.client_bound,
        "warnings": list(result.warnings),
        "server": dict(result.server),
        "gpu": dict(result.gpu),
        "fingerprint": dict(result.fingerprint),
        "steps": [asdict(step) for step in result.steps],
        "definitions": result.definitions or "vtop",
        "repeat_command": result.repeat_command,
    }
    return document


def comparison_document(record: ComparisonRecord) -> dict[str, Any]:
    """A comparison: its question, its table, each run of it."""
    request = record.request
    return {
        "run_id": record.run_id,
        "kind": "compare",
        "at_wall_s": record.at_wall_s,
        "simulated": record.simulated,
        "state": record.state,
        "presets": list(request.presets),
        "workload": request.workload,
        "repeats": request.repeats,
        "order": request.order,
        "seed": record.seed,
        "gpu": request.gpu,
        "overrides": dict(request.overrides),
        "elapsed_s": record.elapsed_s,
        "rows": [row_document(row) for row in record.rows],
        "failures": dict(record.failures),
        "warnings": list(record.warnings),
        "runs": [
            {"round": run.round, "preset": run.preset, "drift_check": run.drift_check, **run_document(run.result)}
            for run in record.measured
        ],
        "repeat_command": record.repeat_command,
    }


def row_document(row: CompareRow) -> dict[str, Any]:
    """One row of the table."""
    return asdict(row) | {"notes": list(row.notes)}


def run_row(result: LoadResult) -> dict[str, Any]:
    """A load test as one line of a CSV file: what fits into a cell."""
    return _cells(run_document(result))


def comparison_row(record: ComparisonRecord, row: CompareRow) -> dict[str, Any]:
    """A configuration as one line of a CSV file."""
    about = {"run_id": record.run_id, "simulated": record.simulated, "workload": record.request.workload}
    return _cells(about | row_document(row))


def step_row(result: LoadResult, step: LoadStep) -> dict[str, Any]:
    """A step of a ladder or search as one line of a CSV file."""
    return _cells({"run_id": result.run_id, "simulated": result.simulated} | asdict(step))


def _flat(name: str, numbers: Percentiles) -> dict[str, Any]:
    values = {f"{name}_{statistic}_s": getattr(numbers, statistic) for statistic in _STATISTICS}
    return {f"{name}_n": numbers.n, **values}


def _cells(document: Mapping[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            cells |= {
                f"{name}_{key}": item for key, item in value.items() if not isinstance(item, Mapping | list | tuple)
            }
        elif isinstance(value, list | tuple):
            if name in ("warnings", "notes"):
                cells[name] = "; ".join(map(str, value))
        else:
            cells[name] = value
    return cells
