"""Saved runs: one directory each, under `runs_dir()`.

`result.json` has the keys of `vllm bench serve --save-result --save-detailed`, in its units, so that tools that read
those files read ours; everything else of vtop is under `vtop_result` and `vtop_schema`. `requests.jsonl` holds one
request a line, `timeline.jsonl` the readings of server and GPU on the run's clock. Files are replaced in one step;
unknown is null.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from vtop import paths, units
from vtop.errors import UsageError, VtopError
from vtop.load import stats
from vtop.load.progress import LoadResult
from vtop.load.stats import RequestRecord

SCHEMA = 1
DELETED_FOR_S = 7 * 86400.0
"""How long a deleted run can be brought back; it is gone with the first deletion after that."""
_DELETED = ".deleted"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A saved run in a list."""

    run_id: str
    kind: str
    """`load`, `ladder`, `search`, `compare`, `imported`."""
    title: str
    at_wall_s: float
    simulated: bool
    complete: bool
    headline: str
    """The one line to show: `892 tok/s · TTFT p50 82 ms`."""


class _Saved(msgspec.Struct):
    """What is read back of `result.json`; the long lists are passed over."""

    vtop_result: LoadResult | None = None


def new_run_id(workload: str, wall_s: float, base: Path | None = None) -> str:
    """A run id that is not taken: local time, then the workload."""
    base = base or paths.runs_dir()
    stem = (
        f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(wall_s))}-{re.sub(r'[^A-Za-z0-9-]', '-', workload) or 'run'}"
    )
    run_id, number = stem, 2
    while (base / run_id).exists():
        run_id = f"{stem}-{number}"
        number += 1
    return run_id


def run_directory(run_id: str, base: Path | None = None) -> Path:
    """Where a run is kept.

    Raises:
        UsageError: the id is not one that vtop gives.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(f"{run_id!r} is not the name of a run", "List them: vtop runs.")
    return (base or paths.runs_dir()) / run_id


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file in one step, so that a reader sees the old or the new one, never half."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def json_bytes(value: Any) -> bytes:
    """Valid JSON whatever the numbers are: NaN and infinity become null."""
    return msgspec.json.encode(value)


def save_result(result: LoadResult, records: Sequence[RequestRecord], started_s: float) -> Path:
    """Writes `result.json` and `requests.jsonl` into the run's directory.

    Args:
        result: what came out.
        records: every counted request, in any order.
        started_s: the start of the run's clock, monotonic.

    Raises:
        VtopError: the directory cannot be written.
    """
    directory = Path(result.directory)
    ordered = sorted(records, key=lambda record: record.index)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = b"".join(json_bytes(request_line(record, started_s)) + b"\n" for record in ordered)
        write_atomically(directory / "requests.jsonl", lines)
        document = {**bench_document(result, ordered, started_s), "vtop_schema": SCHEMA, "vtop_result": result}
        write_atomically(directory / "result.json", json_bytes(document))
    except OSError as error:
        raise VtopError(
            f"cannot save the run in {directory}: {error.strerror}", "Free space, or set VTOP_RUNS_DIR."
        ) from error
    return directory / "result.json"


def request_line(record: RequestRecord, started_s: float) -> dict[str, Any]:
    """One line of `requests.jsonl`; seconds since the start of the run, chunks since the send."""
    return {
        "index": record.index,
        "ok": record.ok,
        "failure": record.failure or None,
        "detail": record.detail or None,
        "note": record.note or None,
        "status": record.status,
        "retry_after": record.retry_after,
        "scheduled_s": None if record.scheduled_s is None else round(record.scheduled_s - started_s, 6),
        "sent_s": round(record.sent_s - started_s, 6),
        "ended_s": round(record.ended_s - started_s, 6),
        "connect_s": record.connect_s,
        "ttft_s": record.ttft_s,
        "ttfo_s": record.ttfo_s,
        "tpot_s": record.tpot_s,
        "tpot_by_choice_s": record.tpot_by_choice_s,
        "e2e_s": record.e2e_s,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "finish_reason": record.finish_reason,
        "chunk_s": [round(stamp - record.sent_s, 6) for stamp in record.token_stamps],
        "chunk_tokens": record.token_counts,
    }


def bench_document(result: LoadResult, records: Sequence[RequestRecord], started_s: float) -> dict[str, Any]:
    """The keys of a `vllm bench serve` result file; failed requests hold 0.0 and an error, as there."""
    request = result.request
    good = [record for record in records if record.ok]
    took = result.duration_s
    closed = result.asked_rate is None
    document: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S", time.localtime(result.at_wall_s)),
        "endpoint_type": "openai" if request.endpoint == "completions" else "openai-chat",
        "backend": "openai" if request.endpoint == "completions" else "openai-chat",
        "label": request.label or None,
        "model_id": request.model,
        "tokenizer_id": request.model,
        "num_prompts": result.requests,
        "request_rate": "inf" if closed else result.asked_rate,
        "burstiness": request.burstiness if request.burstiness is not None else 1.0,
        "max_concurrency": request.concurrency,
        "duration": took,
        "completed": result.completed,
        "failed": result.failed,
        "total_input_tokens": result.prompt_tokens,
        "total_output_tokens": result.output_tokens,
        "request_throughput": len(good) / took if took > 0 else 0.0,
        "request_goodput": result.goodput_per_s,
        "output_throughput": result.output_tokens / took if took > 0 else 0.0,
        "total_token_throughput": (result.prompt_tokens + result.output_tokens) / took if took > 0 else 0.0,
        "input_lens": [record.prompt_tokens or record.wanted_prompt_tokens or 0 for record in records],
        "output_lens": [_output_length(record) for record in records],
        "ttfts": [record.ttft_s or 0.0 if record.ok else 0.0 for record in records],
        "itls": [record.gaps_s if record.ok else [] for record in records],
        "latencies": [record.e2e_s or 0.0 if record.ok else 0.0 for record in records],
        "start_times": [record.sent_s for record in records],
        "queue_times": [
            0.0 if record.scheduled_s is None else max(0.0, record.sent_s - record.scheduled_s) for record in records
        ],
        "generated_texts": [record.text for record in records],
        "errors": ["" if record.ok else f"{record.failure}: {record.detail}" for record in records],
        "max_output_tokens_per_s": max(stats.tokens_by_second(good, started_s), default=0.0),
        "max_concurrent_requests": max(
            (level for _, level in stats.concurrency_steps((r.sent_s, r.ended_s) for r in good)), default=0
        ),
        "rtfx": 0.0,
    }
    for name, values in (
        ("ttft", [record.ttft_s for record in good]),
        ("tpot", [record.tpot_s for record in good]),
        ("itl", [gap for record in good for gap in record.gaps_s]),
        ("e2el", [record.e2e_s for record in good]),
    ):
        document.update(_milliseconds(name, sorted(value for value in values if value is not None)))
    _add_speculation(document, result.server)
    return document


def _output_length(record: RequestRecord) -> int:
    if not record.ok:
        return 0
    return record.output_tokens if record.output_tokens is not None else record.chunks


def _milliseconds(name: str, ordered: Sequence[float]) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        f"mean_{name}_ms": math.fsum(ordered) / len(ordered) * 1000 if ordered else None,
        f"median_{name}_ms": _times_1000(stats.percentile(ordered, 50)),
        f"std_{name}_ms": stats.standard_deviation(ordered) * 1000 if ordered else None,
    }
    for number in _PERCENTILES:
        found[f"p{number}_{name}_ms"] = _times_1000(stats.percentile(ordered, number))
    return found


def _times_1000(value: float | None) -> float | None:
    return None if value is None else value * 1000


def _add_speculation(document: dict[str, Any], server: Mapping[str, Any]) -> None:
    if server.get("acceptance") is None:
        return
    document["spec_decode_acceptance_rate"] = server["acceptance"] * 100
    for ours, theirs in (
        ("acceptance_length", "spec_decode_acceptance_length"),
        ("drafts", "spec_decode_num_drafts"),
        ("draft_tokens", "spec_decode_draft_tokens"),
        ("accepted_tokens", "spec_decode_accepted_tokens"),
    ):
        if server.get(ours) is not None:
            document[theirs] = server[ours]


def load_result(run_id: str, base: Path | None = None) -> LoadResult:
    """A saved load test.

    Raises:
        VtopError: there is none of that name, or its file is damaged.
    """
    path = run_directory(run_id, base) / "result.json"
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
    except FileNotFoundError:
        raise VtopError(f"there is no load test {run_id!r}", "List them: vtop runs.") from None
    except OSError as error:
        raise VtopError(f"cannot read {path}: {error.strerror}", "Check its permissions.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise VtopError(f"{path} is damaged: {error}", f"Delete the run: {run_id}.") from error
    if saved.vtop_result is None:
        raise VtopError(f"{path} was not written by vtop", f"Take it in: vtop import {path}")
    # A run directory may have been copied: it is where it was read.
    return replace(saved.vtop_result, directory=str(path.parent))


def load_requests(run_id: str, base: Path | None = None) -> list[dict[str, Any]]:
    """The lines of `requests.jsonl`; a cut last line is left out."""
    return _lines(run_directory(run_id, base) / "requests.jsonl")


def load_timeline(run_id: str, base: Path | None = None) -> list[dict[str, Any]]:
    """The rows of `timeline.jsonl`: `t_s` since the start of the run, and what was read then."""
    return _lines(run_directory(run_id, base) / "timeline.jsonl")


def _lines(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    try:
        data = path.read_bytes()
    except OSError:
        return rows
    for line in data.split(b"\n"):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def append_timeline(directory: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows to `timeline.jsonl`."""
    with (directory / "timeline.jsonl").open("ab") as file:
        file.write(b"".join(json_bytes(row) + b"\n" for row in rows))


def headline(result: LoadResult) -> str:
    """A load test in one line."""
    parts = [units.rate(result.output_tokens_per_s, "tok/s"), f"TTFT p50 {units.duration(result.ttft.p50)}"]
    if result.tpot.p50 is not None:
        parts.append(f"TPOT p50 {units.duration(result.tpot.p50)}")
    if result.failed:
        parts.append(f"{result.failed} failed")
    if not result.complete:
        parts.append("cut")
    return " · ".join(parts)


def list_runs(base: Path | None = None) -> list[RunEntry]:
    """Saved runs, newest first. A damaged one is listed as such; it hides no other."""
    base = base or paths.runs_dir()
    entries: list[RunEntry] = []
    for directory in base.iterdir() if base.is_dir() else ():
        if not directory.is_dir() or not _RUN_ID.fullmatch(directory.name):
            continue
        entry = _entry(directory, base)
        if entry is not None:
            entries.append(entry)
    return sorted(entries, key=lambda entry: (entry.at_wall_s, entry.run_id), reverse=True)


def _entry(directory: Path, base: Path) -> RunEntry | None:
    if (directory / "summary.json").is_file():
        return _summary_entry(directory)
    if not (directory / "result.json").is_file():
        return None
    try:
        result = load_result(directory.name, base)
    except VtopError as error:
        at = directory.stat().st_mtime
        return RunEntry(directory.name, "load", directory.name, at, False, False, f"unreadable: {error.what}")
    title = result.request.label or f"{result.request.workload} · {result.request.model or result.request.url}"
    return RunEntry(
        directory.name, result.kind, title, result.at_wall_s, result.simulated, result.complete, headline(result)
    )


def _summary_entry(directory: Path) -> RunEntry:
    """Runs of other kinds (comparisons) describe themselves in `summary.json`, with the fields of `RunEntry`."""
    try:
        return msgspec.json.decode((directory / "summary.json").read_bytes(), type=RunEntry)
    except (OSError, msgspec.DecodeError) as error:
        at = directory.stat().st_mtime
        return RunEntry(directory.name, "compare", directory.name, at, False, False, f"unreadable: {error}")


def delete_run(run_id: str, base: Path | None = None) -> None:
    """Puts a run's directory aside; `restore_run` brings it back for `DELETED_FOR_S`.

    Raises:
        VtopError: there is none, or it cannot be moved.
    """
    base = base or paths.runs_dir()
    directory = run_directory(run_id, base)
    if directory.is_symlink() or not directory.is_dir():
        raise VtopError(f"there is no run {run_id!r}", "List them: vtop runs.")
    aside = base / _DELETED
    try:
        aside.mkdir(mode=0o700, exist_ok=True)
        _empty(aside, run_id)
        os.utime(directory)
        directory.rename(aside / run_id)
    except OSError as error:
        raise VtopError(f"cannot delete {directory}: {error.strerror}", "Check its permissions.") from error


def restore_run(run_id: str, base: Path | None = None) -> None:
    """Brings a deleted run back.

    Raises:
        VtopError: it is not there any more, or its place is taken.
    """
    base = base or paths.runs_dir()
    directory = run_directory(run_id, base)
    if directory.exists():
        raise VtopError(f"there is a run {run_id!r} again", "Nothing was changed.")
    try:
        (base / _DELETED / run_id).rename(directory)
    except OSError as error:
        raise VtopError(f"cannot bring back {run_id}: {error.strerror}", "Deleted runs are kept for a week.") from error


def _empty(aside: Path, again: str) -> None:
    """Removes what was deleted long ago, and an earlier run of the name that is deleted now."""
    for directory in aside.iterdir():
        if directory.name == again or time.time() - directory.stat().st_mtime > DELETED_FOR_S:
            shutil.rmtree(directory)
