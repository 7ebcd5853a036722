"""A snapshot as plain data for JSON, and back: units in the key names, unknown is null, never NaN.

Latencies are flattened, so that a script reads `.servers[0].engines[0].ttft_p95_s`. Shares are 0..1 and end in `_share`
or `_rate`. The same form is what a recording holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgspec

from vtop.secrets import without_user
from vtop.servers.status import ServerStatus
from vtop.telemetry.snapshot import (
    Event,
    GpuReading,
    GpuStatus,
    History,
    HostReading,
    ServerView,
    Snapshot,
    TreeReading,
    Verdict,
)
from vtop.vllm.reading import EngineReading, Latency, Quantile, ScrapeStatus

FORMAT = 1
"""Raised when a key changes its meaning or goes away; new keys do not raise it."""

LATENCY_FIELDS = ("ttft", "tpot", "itl", "e2e", "queue", "prefill", "decode")
_QUANTILES = ("p50", "p95", "p99")
_KEYS = {
    "kv_usage": "kv_usage_share",
    "kv_usage_max": "kv_usage_max_share",
    "acceptance": "acceptance_share",
    "per_position": "per_position_share",
    "mean_length": "mean_length_tokens",
    "rejected": "rejected_requests",
}
"""Field name -> key, where the field name does not say the unit."""
_FIELDS = {key: field for field, key in _KEYS.items()}

T = TypeVar("T")


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Everything of a snapshot except its history."""
    result: dict[str, Any] = {"format": FORMAT}
    for field in _names(Snapshot):
        if field == "servers":
            result[field] = [view_to_json(view) for view in snapshot.servers]
        elif field != "history":
            result[field] = _plain(getattr(snapshot, field))
    return result


def view_to_json(view: ServerView) -> dict[str, Any]:
    """One server; a user and password in its address are left out."""
    result = {field: _plain(getattr(view, field)) for field in _names(ServerView) if field != "engines"}
    result["status"]["url"] = without_user(view.status.url)
    result["engines"] = [engine_to_json(engine) for engine in view.engines]
    return result


def engine_to_json(engine: EngineReading) -> dict[str, Any]:
    """One model of a server, its latencies flattened."""
    result: dict[str, Any] = {}
    for field in _names(EngineReading):
        value = getattr(engine, field)
        if field in LATENCY_FIELDS:
            result.update(_flat(field, value))
        else:
            result[_KEYS.get(field, field)] = _plain(value)
    return result


def snapshot_from_json(data: Mapping[str, Any], history: History) -> Snapshot:
    """The snapshot again, with a history of the reader's own.

    Raises:
        ValueError: the data is not of this form (msgspec's ValidationError is one).
    """
    try:
        return Snapshot(
            sequence=int(data["sequence"]),
            at_s=float(data["at_s"]),
            at_wall_s=float(data["at_wall_s"]),
            window_s=float(data["window_s"]),
            host=_typed(data["host"], HostReading),
            gpu_status=_typed(data["gpu_status"], GpuStatus),
            gpus=tuple(_typed(gpu, GpuReading) for gpu in data["gpus"]),
            servers=tuple(_view(view) for view in data["servers"]),
            history=history,
            events=tuple(_typed(event, Event) for event in data.get("events") or ()),
            simulated=bool(data.get("simulated")),
            replayed=bool(data.get("replayed")),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a snapshot: {error}") from error


def _flat(field: str, latency: Latency | None) -> dict[str, Any]:
    known = latency is not None
    result: dict[str, Any] = {
        f"{field}_mean_s": _plain(latency.mean_s) if latency is not None else None,
        f"{field}_count": latency.count if latency is not None else None,
        f"{field}_age_s": _plain(latency.age_s) if latency is not None else None,
    }
    for name in _QUANTILES:
        quantile: Quantile | None = getattr(latency, name) if known else None
        result[f"{field}_{name}_s"] = None if quantile is None else _plain(quantile.value_s)
        result[f"{field}_{name}_low_s"] = None if quantile is None else _plain(quantile.low_s)
        result[f"{field}_{name}_high_s"] = None if quantile is None else _plain(quantile.high_s)
    return result


def _latency(field: str, data: dict[str, Any]) -> Latency | None:
    mean, count, age = (data.pop(f"{field}_{part}", None) for part in ("mean_s", "count", "age_s"))
    quantiles: dict[str, Quantile | None] = {}
    for name in _QUANTILES:
        value, low, high = (data.pop(f"{field}_{name}_{part}", None) for part in ("s", "low_s", "high_s"))
        quantiles[name] = None if low is None else Quantile(value, low, high)
    if count is None:
        return None
    return Latency(mean, int(count), quantiles["p50"], quantiles["p95"], quantiles["p99"], age or 0.0)


def _engine(data: Mapping[str, Any]) -> EngineReading:
    left = dict(data)
    latencies = {field: _latency(field, left) for field in LATENCY_FIELDS}
    reading = _typed(left, EngineReading)
    return dataclasses.replace(reading, **latencies)  # type: ignore[arg-type]


def _view(data: Mapping[str, Any]) -> ServerView:
    return ServerView(
        status=_typed(data["status"], ServerStatus),
        scrape=_typed(data["scrape"], ScrapeStatus),
        engines=tuple(_engine(engine) for engine in data["engines"]),
        tree=_typed(data["tree"], TreeReading) if data.get("tree") else None,
        verdict=_typed(data["verdict"], Verdict) if data.get("verdict") else None,
        joules_per_token=data.get("joules_per_token"),
    )


def _typed(data: Any, shape: type[T]) -> T:
    return msgspec.convert(_renamed(data), shape)


def _renamed(data: Any) -> Any:
    if isinstance(data, dict):
        return {_FIELDS.get(key, key): _renamed(value) for key, value in data.items()}
    return data


@cache
def _names(shape: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(shape))


def _plain(value: Any) -> Any:
    """Values that JSON knows; a number that is not finite is unknown."""
    if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_KEYS.get(name, name): _plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return str(value)
