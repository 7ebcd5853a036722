from __future__ import annotations

from typing import Any

from vtop.load.progress import LoadProgress, LoadRequest, LoadResult, LoadStep, Percentiles
from vtop.load.summary import progress_line, summary_lines, summary_text


def result(**changes: Any) -> LoadResult:
    fields: dict[str, Any] = {
        "run_id": "r",
        "directory": "/runs/r",
        "request": LoadRequest(workload="demo", model="qwen2.5", concurrency=16, requests=64),
        "complete": True,
        "requests": 64,
        "completed": 64,
        "failed": 0,
        "duration_s": 18.42,
        "output_tokens": 9600,
        "prompt_tokens": 1600,
        "output_tokens_per_s": 892.3,
        "steady_tokens_per_s": 901.0,
        "requests_per_s": 3.47,
        "ttft": Percentiles(64, 0.1, 0.09, 0.12, 0.14, 0.2),
        "tpot": Percentiles(64, 0.018, 0.018, 0.02, 0.021, 0.022),
        "itl": Percentiles(9000, 0.018, 0.018, 0.02, 0.021, 0.022),
        "e2e": Percentiles(64, 4.51, 4.4, 5.9, 6.12, 6.5),
        "repeat_command": "vtop load demo --server baseline",
        **changes,
    }
    return LoadResult(**fields)


def test_the_first_lines_are_the_ones_people_paste() -> None:
    lines = [" ".join(line.split()) for line in summary_lines(result())]
    assert lines[1:7] == [
        "Requests 64 of 64 ok, 16 at once",
        "Total time 18.42 s",
        "Output 892.3 tokens/s (steady 901.0 tokens/s)",
        "QPS 3.47 requests/s",
        "Mean latency 4.51 s",
        "P95 latency 6.12 s (too few requests for a P95)",
    ]
    assert lines[-2:] == ["Saved /runs/r", "Repeat vtop load demo --server baseline"]


def test_percentiles_of_small_samples_are_marked_and_n_stands_beside() -> None:
    (ttft,) = [line for line in summary_lines(result()) if line.strip().startswith("TTFT")]
    assert ttft.split() == ["TTFT", "100", "ms", "90.0", "ms", "140", "ms?", "200", "ms?", "64"]
    many = Percentiles(400, 0.1, 0.09, 0.12, 0.14, 0.2)
    assert "?" not in next(line for line in summary_lines(result(ttft=many)) if "TTFT" in line)


def test_unknown_is_a_dash_and_never_zero() -> None:
    text = summary_text(result(completed=0, requests_per_s=None, output_tokens_per_s=None, e2e=Percentiles(0)))
    assert "QPS                 –" in text
    assert "Mean latency        –" in text


def test_simulated_and_cut_runs_are_marked() -> None:
    first = summary_lines(result(simulated=True, complete=False))[0]
    assert first.startswith("SIMULATED") and "cut before its end" in first


def test_gaps_of_several_tokens_are_not_called_itl() -> None:
    names = [line.split("  ")[1] for line in summary_lines(result(tokens_per_chunk=3.1)) if line.startswith("  ")]
    assert "Chunk gap" in names and "ITL" not in names


def test_the_client_and_the_server_speak_for_themselves() -> None:
    text = summary_text(
        result(
            client_overhead_s=0.0006,
            client_capacity_tokens_per_s=50_000.0,
            server={"ttft_mean_s": 0.08, "prefix_hit_rate": 0.004},
            comparable=False,
            not_comparable_because="6 of 20 requests failed (30%)",
            warnings=("6 failed: stream_cut",),
        )
    )
    assert "adds 600 µs to TTFT, can read 50.0k tok/s: not the bottleneck" in text
    assert "mean 80.0 ms over the same window" in text
    assert "0.4 % of this run's prompt tokens" in text
    assert "6 of 20 requests failed" in text and "! 6 failed: stream_cut" in text


def test_a_server_window_that_is_longer_than_the_test_says_so() -> None:
    """A step of a ladder that takes 0.3 s lies between two readings of the server a second apart."""
    short = result(duration_s=0.3, server={"ttft_mean_s": 0.08, "window_s": 2.0})
    assert "mean 80.0 ms over 2.00 s, with what ran before or after" in summary_text(short)
    fitting = result(duration_s=20.0, server={"ttft_mean_s": 0.08, "window_s": 20.05})
    assert "mean 80.0 ms over the same window" in summary_text(fitting)


def test_steps_of_a_ladder_are_rows() -> None:
    step = LoadStep(
        concurrency=4,
        rate=None,
        requests=10,
        failed=0,
        output_tokens_per_s=400.0,
        requests_per_s=2.0,
        ttft_p50_s=0.1,
        ttft_p95_s=0.2,
        tpot_p50_s=0.01,
        tpot_p95_s=0.02,
    )
    (row,) = [line for line in summary_lines(result(steps=(step,))) if line.startswith("  4 ")]
    assert row.split() == ["4", "400", "2.00", "200", "ms", "10.0", "ms", "20.0", "ms", "#" * 20]


def test_the_progress_line_fits_its_width() -> None:
    progress = LoadProgress(
        run_id="r",
        request=LoadRequest(),
        state="running",
        total=64,
        finished=32,
        failed=1,
        elapsed_s=5.0,
        remaining_s=5.0,
        output_tokens_per_s=871.0,
        ttft=Percentiles(32, 0.1, 0.082),
        tpot=Percentiles(32, 0.02, 0.018),
    )
    assert progress_line(progress) == (
        "[############............] 32/64 1 failed 871 tok/s TTFT 82.0 ms TPOT 18.0 ms 0:05 left"
    )
    assert len(progress_line(progress, 40)) == 40


def test_the_progress_line_counts_the_warm_up() -> None:
    progress = LoadProgress(
        run_id="r",
        request=LoadRequest(),
        state="warming-up",
        total=64,
        remaining_s=20.0,
        warmup_done=3,
        warmup_total=8,
        warmup_elapsed_s=12.0,
    )
    assert progress_line(progress) == "[#########...............] warming up 3/8 0:20 left"
