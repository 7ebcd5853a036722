from __future__ import annotations

import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vtop.errors import UsageError, VtopError
from vtop.load.progress import LoadRequest, LoadResult, Percentiles
from vtop.load.stats import RequestRecord
from vtop.results import store

DATA = Path(__file__).parent / "data"
STARTED = 1000.0


def records() -> list[RequestRecord]:
    good = RequestRecord(
        index=0,
        sent_s=STARTED,
        ended_s=STARTED + 1.2,
        ok=True,
        status=200,
        ttft_s=0.2,
        tpot_s=0.01,
        e2e_s=1.19,
        output_tokens=100,
        prompt_tokens=20,
        chunks=2,
        token_stamps=[STARTED + 0.2, STARTED + 1.19],
        gaps_s=[0.99],
        finish_reason="length",
        text="é\U0001f680",
    )
    bad = RequestRecord(
        index=1,
        sent_s=STARTED + 0.1,
        ended_s=STARTED + 0.2,
        failure="http_503",
        detail="busy",
        status=503,
        retry_after="1",
        wanted_prompt_tokens=20,
    )
    return [good, bad]


def make(run_id: str, base: Path, **changes: Any) -> LoadResult:
    fields: dict[str, Any] = {
        "run_id": run_id,
        "directory": str(base / run_id),
        "request": LoadRequest(workload="chat", model="m", url="http://x", concurrency=2, requests=2),
        "complete": True,
        "requests": 2,
        "completed": 1,
        "failed": 1,
        "duration_s": 1.2,
        "output_tokens": 100,
        "prompt_tokens": 20,
        "output_tokens_per_s": 100 / 1.2,
        "steady_tokens_per_s": None,
        "requests_per_s": 1 / 1.2,
        "ttft": Percentiles(1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2),
        "tpot": Percentiles(1, 0.01, 0.01, 0.01, 0.01, 0.01),
        "itl": Percentiles(1, 0.99, 0.99),
        "e2e": Percentiles(1, 1.19, 1.19),
        "at_wall_s": 1_790_000_000.0,
        **changes,
    }
    return LoadResult(**fields)


def save(base: Path, run_id: str = "run-1", **changes: Any) -> LoadResult:
    result = make(run_id, base, **changes)
    store.save_result(result, records(), STARTED)
    return result


def test_a_run_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    result = save(tmp_path, server={"ttft_mean_s": 0.19})
    loaded = store.load_result("run-1", tmp_path)
    assert loaded.request == result.request
    assert (loaded.ttft, loaded.tpot, loaded.failed, loaded.server) == (
        result.ttft,
        result.tpot,
        1,
        {"ttft_mean_s": 0.19},
    )


def test_the_file_has_exactly_the_keys_of_vllm_bench_and_ours_apart(tmp_path: Path) -> None:
    """Against a file that vllm 0.32's own `bench serve --save-detailed` wrote, with percentiles 50, 90, 95 and 99."""
    theirs = json.loads((DATA / "vllm-bench-0.32.json").read_text(encoding="utf-8"))
    save(tmp_path)
    ours = json.loads((tmp_path / "run-1" / "result.json").read_text(encoding="utf-8"))
    extra = [key for key in ours if key not in theirs]
    assert [key for key in theirs if key not in ours] == []
    assert all(key.startswith("vtop_") for key in extra)
    for key, value in theirs.items():
        if isinstance(value, list):
            assert isinstance(ours[key], list) and len(ours[key]) == 2, key
        elif isinstance(value, float):
            assert isinstance(ours[key], int | float), key
        elif value is not None:
            assert type(ours[key]) is type(value), key


def test_the_lists_of_vllm_bench_hold_failures_as_it_writes_them(tmp_path: Path) -> None:
    save(tmp_path)
    ours = json.loads((tmp_path / "run-1" / "result.json").read_text(encoding="utf-8"))
    assert ours["ttfts"] == [0.2, 0.0]
    assert ours["latencies"] == [1.19, 0.0]
    assert ours["itls"] == [[0.99], []]
    assert ours["output_lens"] == [100, 0]
    assert ours["errors"] == ["", "http_503: busy"]
    assert ours["mean_ttft_ms"] == pytest.approx(200.0)
    assert ours["median_e2el_ms"] == pytest.approx(1190.0)


def test_one_line_a_request_with_times_on_the_runs_clock(tmp_path: Path) -> None:
    save(tmp_path)
    first, second = store.load_requests("run-1", tmp_path)
    assert (first["sent_s"], first["chunk_s"], first["failure"]) == (0.0, [0.2, 1.19], None)
    assert (second["ok"], second["failure"], second["retry_after"], second["ttft_s"]) == (False, "http_503", "1", None)


def test_saved_files_are_valid_json_whatever_the_numbers_are(tmp_path: Path) -> None:
    save(tmp_path, output_tokens_per_s=math.nan, server={"x": math.inf})
    text = (tmp_path / "run-1" / "result.json").read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads(text, parse_constant=refuse)
    assert document["vtop_result"]["output_tokens_per_s"] is None
    assert document["vtop_result"]["server"] == {"x": None}


def test_runs_are_listed_newest_first_and_a_damaged_one_hides_no_other(tmp_path: Path) -> None:
    save(tmp_path, "old", at_wall_s=1.0)
    save(tmp_path, "new", at_wall_s=2.0, complete=False)
    (tmp_path / "new-cmp").mkdir()
    entry = store.RunEntry("new-cmp", "compare", "baseline against fp8", 1.5, True, True, "1.5x")
    (tmp_path / "new-cmp" / "summary.json").write_bytes(store.json_bytes(entry))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "result.json").write_text('{"vtop_result": {"run', encoding="utf-8")
    os.utime(tmp_path / "broken", (0, 0))
    (tmp_path / "empty").mkdir()
    (tmp_path / "stray.txt").write_text("x", encoding="utf-8")
    listed = store.list_runs(tmp_path)
    assert [entry.run_id for entry in listed] == ["new", "new-cmp", "old", "broken"]
    assert listed[0].headline == "83.3 tok/s · TTFT p50 200 ms · TPOT p50 10.0 ms · 1 failed · cut"
    assert listed[1] == entry
    assert listed[3].headline.startswith("unreadable")


def test_a_run_that_was_moved_says_where_it_is_now(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "run-1").rename(tmp_path / "elsewhere")
    assert store.load_result("elsewhere", tmp_path).directory == str(tmp_path / "elsewhere")


@pytest.mark.parametrize("run_id", ["../secrets", "", "a/b", ".hidden", "x" * 200])
def test_a_run_id_never_leaves_the_runs_directory(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(UsageError):
        store.load_result(run_id, tmp_path)
    with pytest.raises(UsageError):
        store.delete_run(run_id, tmp_path)


def test_a_run_is_deleted_whole_and_a_missing_one_is_said(tmp_path: Path) -> None:
    save(tmp_path)
    store.delete_run("run-1", tmp_path)
    assert store.list_runs(tmp_path) == []
    with pytest.raises(VtopError, match="no run 'run-1'"):
        store.delete_run("run-1", tmp_path)
    with pytest.raises(VtopError, match="no load test 'run-1'"):
        store.load_result("run-1", tmp_path)


def test_a_deleted_run_can_be_brought_back_for_a_week(tmp_path: Path) -> None:
    save(tmp_path)
    before = (tmp_path / "run-1" / "result.json").read_bytes()
    store.delete_run("run-1", tmp_path)
    store.restore_run("run-1", tmp_path)
    assert (tmp_path / "run-1" / "result.json").read_bytes() == before
    with pytest.raises(VtopError, match="there is a run 'run-1' again"):
        store.restore_run("run-1", tmp_path)
    with pytest.raises(VtopError, match="cannot bring back run-2"):
        store.restore_run("run-2", tmp_path)


def test_what_was_deleted_long_ago_is_removed_with_the_next(tmp_path: Path) -> None:
    for name in ("run-1", "run-2", "run-3"):
        (tmp_path / name).mkdir()
    store.delete_run("run-1", tmp_path)
    store.delete_run("run-2", tmp_path)
    long_ago = time.time() - store.DELETED_FOR_S - 60
    os.utime(tmp_path / ".deleted" / "run-1", (long_ago, long_ago))
    store.delete_run("run-3", tmp_path)
    assert sorted(path.name for path in (tmp_path / ".deleted").iterdir()) == ["run-2", "run-3"]


def test_a_link_in_the_runs_directory_is_not_followed_to_delete(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "link").symlink_to(outside)
    with pytest.raises(VtopError):
        store.delete_run("link", runs)
    assert outside.is_dir()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path)
    before = (tmp_path / "run-1" / "result.json").read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VtopError, match="No space left"):
        store.save_result(replace(make("run-1", tmp_path), failed=9), records(), STARTED)
    assert (tmp_path / "run-1" / "result.json").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "run-1").iterdir()) == ["requests.jsonl", "result.json"]


def test_run_ids_are_never_given_twice(tmp_path: Path) -> None:
    first = store.new_run_id("chat", 1_790_000_000.0, tmp_path)
    (tmp_path / first).mkdir()
    second = store.new_run_id("chat", 1_790_000_000.0, tmp_path)
    assert first != second
    assert store.run_directory(second, tmp_path).parent == tmp_path


def test_a_timeline_with_a_cut_last_line_keeps_the_rest(tmp_path: Path) -> None:
    save(tmp_path)
    store.append_timeline(tmp_path / "run-1", [{"t_s": 0.5, "running": 3}])
    with (tmp_path / "run-1" / "timeline.jsonl").open("ab") as file:
        file.write(b'{"t_s": 1.0, "runn')
    assert store.load_timeline("run-1", tmp_path) == [{"t_s": 0.5, "running": 3}]
