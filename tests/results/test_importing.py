from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from results.making_runs import a_run
from vtop.errors import UsageError
from vtop.results import store
from vtop.results.importing import import_file, read_results

DATA = Path(__file__).parent / "data"


def test_a_vllm_bench_file_keeps_its_numbers(tmp_path: Path) -> None:
    (run_id,) = import_file(DATA / "vllm-bench-0.32.json", tmp_path)
    theirs = json.loads((DATA / "vllm-bench-0.32.json").read_text(encoding="utf-8"))
    run = store.load_result(run_id, tmp_path)
    assert (run.kind, run.definitions) == ("imported", "vllm bench serve")
    assert (run.completed, run.failed, run.duration_s) == (6, 0, theirs["duration"])
    assert run.output_tokens_per_s == theirs["output_throughput"]
    for ours, name in ((run.ttft, "ttft"), (run.tpot, "tpot"), (run.itl, "itl"), (run.e2e, "e2el")):
        assert ours.mean is not None and ours.mean * 1000 == pytest.approx(theirs[f"mean_{name}_ms"])
        for number in ("p50", "p90", "p95", "p99"):
            assert getattr(ours, number) * 1000 == pytest.approx(theirs[f"{number}_{name}_ms"])
    assert dict(run.sources)["failures"].startswith("an error inside a stream")
    assert (tmp_path / run_id / "imported.json").read_bytes() == (DATA / "vllm-bench-0.32.json").read_bytes()


def test_a_vllm_bench_file_without_lists_has_what_it_says(tmp_path: Path) -> None:
    short = {
        "date": "20260921-100000",
        "backend": "openai-chat",
        "model_id": "m",
        "num_prompts": 10,
        "request_rate": "inf",
        "max_concurrency": 4,
        "duration": 5.0,
        "completed": 10,
        "total_input_tokens": 100,
        "total_output_tokens": 1000,
        "output_throughput": 200.0,
        "mean_ttft_ms": 90.0,
        "median_ttft_ms": 88.0,
        "p99_ttft_ms": 120.0,
    }
    (run,) = read_results(json.dumps(short).encode(), "x.json")
    assert (run.ttft.mean, run.ttft.p50, run.ttft.p99) == (0.09, 0.088, 0.12)
    assert run.ttft.p95 is None
    assert run.e2e.n == 0 and run.e2e.mean is None
    assert run.requests_per_s is None


@pytest.mark.parametrize("joined", ["[{0}, {1}]", "{0}\n{1}\n"], ids=["a sweep's list", "appended lines"])
def test_several_vllm_bench_results_in_one_file(tmp_path: Path, joined: str) -> None:
    one = json.loads((DATA / "vllm-bench-0.32.json").read_text(encoding="utf-8"))
    both = [json.dumps({**one, "max_concurrency": concurrency}) for concurrency in (3, 6)]
    file = tmp_path / "summary.json"
    file.write_text(joined.replace("{0}", both[0]).replace("{1}", both[1]), encoding="utf-8")
    runs = [store.load_result(run_id, tmp_path) for run_id in import_file(file, tmp_path)]
    assert [run.request.concurrency for run in runs] == [3, 6]
    assert len({run.run_id for run in runs}) == 2


def test_guidellms_inter_token_latency_is_our_tpot(tmp_path: Path) -> None:
    (run_id,) = import_file(DATA / "guidellm.json", tmp_path)
    run = store.load_result(run_id, tmp_path)
    assert run.tpot.mean == pytest.approx(0.01214)
    assert run.itl.n == 0
    assert run.ttft.p95 == pytest.approx(0.211)
    assert run.e2e.p50 == pytest.approx(1.41)
    assert (run.completed, run.failed, run.output_tokens) == (30, 10, 3000)
    assert run.request.model == "example/chat-8b" and run.request.concurrency == 8
    assert not run.comparable and "10 of 40" in run.not_comparable_because
    assert "first token included" in dict(run.sources)["ITL"]


def test_aiperfs_inter_token_latency_is_our_tpot(tmp_path: Path) -> None:
    (run_id,) = import_file(DATA / "aiperf.json", tmp_path)
    run = store.load_result(run_id, tmp_path)
    assert (run.completed, run.duration_s, run.output_tokens) == (80, 20.0, 12_000)
    assert (run.ttft.p95, run.tpot.p50, run.e2e.mean) == (
        pytest.approx(0.12),
        pytest.approx(0.0179),
        pytest.approx(2.8),
    )
    assert run.output_tokens_per_s == 600.0 and run.comparable


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is not JSON"),
        (b"[]", "no result of"),
        (b"{}", "no result of"),
        (b"[3]", "no result of"),
        (b'{"a": 1}\n{broken', "is not JSON"),
        (b'{"benchmarks": [{}]}', "not as its tool writes it"),
        (b'{"benchmarks": [{"metrics": 3}]}', "not as its tool writes it"),
        (b'{"total_output_tokens": 1, "duration": "x", "completed": 1}', "not as its tool writes it"),
        (b"\xff\xfe", "is not JSON"),
    ],
)
def test_other_files_are_refused_in_words(raw: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_results(raw, "x.json")


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        import_file(tmp_path / "none.json", tmp_path)


def test_a_run_of_vtop_is_taken_in_as_it_is_with_its_mark(tmp_path: Path) -> None:
    """Its file has the keys of vllm bench too, and those do not say that it was simulated."""
    own = a_run(simulated=True, warnings=("as it was",))
    document = {**store.bench_document(own, [], 0.0), "vtop_schema": 1, "vtop_result": own}
    (tmp_path / "result.json").write_bytes(store.json_bytes(document))
    (run_id,) = import_file(tmp_path / "result.json", tmp_path / "runs")
    found = store.load_result(run_id, tmp_path / "runs")
    assert asdict(found) == asdict(replace(own, run_id=run_id, directory=str(tmp_path / "runs" / run_id)))
    document["vtop_result"] = {"requests": "many"}
    with pytest.raises(UsageError, match="not as its tool writes it"):
        read_results(store.json_bytes(document), "x.json")
