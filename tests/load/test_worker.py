"""The worker as a real process: what it says, how it ends, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from load_helpers import MockProcess, StartMock, poll

from vtop.errors import VtopError
from vtop.load.progress import LoadProgress, LoadRequest
from vtop.load.runner import LoadRunner
from vtop.results import store

SLOW = ("--first", "0.05", "--step", "0.02")
FAST = ("--first", "0.05", "--step", "0.002")


def wish(server: MockProcess, **wishes: Any) -> LoadRequest:
    given: dict[str, Any] = {
        "workload": "demo",
        "model": "normal",
        "concurrency": 4,
        "requests": 12,
        "max_tokens": 20,
        "measure_client": False,
        **wishes,
    }
    return LoadRequest(url=server.url, **given)


async def run(request: LoadRequest, **options: Any) -> Any:
    runner = LoadRunner(**options)
    try:
        await runner.start(request)
        return await runner.wait()
    finally:
        await runner.close()


async def test_a_load_test_from_request_to_saved_result(mock_server: StartMock) -> None:
    server = mock_server(*FAST)
    seen: list[LoadProgress] = []
    runner = LoadRunner(server_window=lambda start, end: {"server": {"ttft_mean_s": 0.05, "width_s": end - start}})
    runner.on_progress(seen.append)
    run_id = await runner.start(wish(server, measure_client=True))
    result = await runner.wait()
    await runner.close()
    assert (result.run_id, result.completed, result.failed, result.complete) == (run_id, 12, 0, True)
    assert result.output_tokens == 240
    assert result.ttft.n == 12 and result.ttft.p50 is not None and result.ttft.p50 >= 0.05
    assert result.server["width_s"] == pytest.approx(result.duration_s)
    assert result.client_overhead_s is not None and result.client_capacity_tokens_per_s is not None
    assert result.fingerprint["vllm_version"] == "0.32.0"
    assert result.seed is not None
    assert asdict(store.load_result(run_id)) == asdict(result)
    states = [progress.state for progress in seen]
    order = ["preparing", "warming-up", "running", "finished"]
    assert [state for state in dict.fromkeys(states) if state in order] == order
    assert seen[-1].finished == 12 and len(seen[-1].points) == 12
    # Twelve counted requests and one warm-up for each stream.
    assert server.seen()["asked"] == 16
    assert server.seen()["generated"] == 16 * 20


@pytest.mark.parametrize("processes", [1, 2])
async def test_the_warm_up_is_counted_while_it_goes_on(mock_server: StartMock, processes: int) -> None:
    """Nothing else moves then, and a slow server needs half a minute for it."""
    seen: list[LoadProgress] = []
    runner = LoadRunner()
    runner.on_progress(seen.append)
    await runner.start(
        wish(mock_server(*SLOW), concurrency=processes, warmup=4 * processes, requests=2, processes=processes)
    )
    await runner.wait()
    await runner.close()
    warming = [progress for progress in seen if progress.state == "warming-up" and progress.warmup_total is not None]
    assert {progress.warmup_total for progress in warming} == {4 * processes}
    counts = [progress.warmup_done for progress in warming]
    assert counts == sorted(counts) and counts[-1] >= 1
    late = next(progress for progress in warming if progress.warmup_done)
    assert late.remaining_s is not None and late.warmup_elapsed_s > 0


async def test_output_tokens_and_ttft_agree_with_the_server(mock_server: StartMock) -> None:
    server = mock_server()
    result = await run(wish(server, workload="chat", requests=32, concurrency=16, warmup=0, max_tokens=30))
    seen = server.seen()
    assert result.output_tokens == seen["generated"] == 32 * 30
    assert result.ttft.mean is not None
    # The client can only be later than the server, and on an idle machine it is by well under a millisecond.
    assert 0 <= result.ttft.mean - statistics.mean(seen["ttfts_s"]) < 0.1


async def test_several_processes_give_one_result_on_one_clock(mock_server: StartMock) -> None:
    server = mock_server(*FAST)
    result = await run(wish(server, processes=3, requests=24, concurrency=6))
    assert (result.completed, result.requests) == (24, 24)
    lines = store.load_requests(result.run_id)
    assert [line["index"] for line in lines] == list(range(24))
    assert all(0 <= line["sent_s"] <= result.duration_s for line in lines)
    assert server.seen()["asked"] == 24 + 6


async def test_a_stop_keeps_a_marked_result(mock_server: StartMock) -> None:
    server = mock_server(*SLOW)
    runner = LoadRunner()
    await runner.start(wish(server, requests=2000))
    await poll(lambda: (p := runner.progress()) is not None and p.finished >= 4)
    await runner.stop()
    result = await asyncio.wait_for(runner.wait(), 20)
    await runner.close()
    assert not result.complete and not result.comparable
    assert result.completed >= 4
    assert store.load_result(result.run_id).completed == result.completed
    assert [entry.complete for entry in store.list_runs()] == [False]
    progress = runner.progress()
    assert progress is not None and progress.state == "cancelled"


async def test_a_stop_with_a_hanging_server_is_bounded(mock_server: StartMock) -> None:
    runner = LoadRunner()
    await runner.start(wish(mock_server(*FAST), model="hang", requests=400, concurrency=4, warmup=0))
    await poll(lambda: (p := runner.progress()) is not None and p.finished >= 3)
    await runner.stop()
    result = await asyncio.wait_for(runner.wait(), 20)
    await runner.close()
    assert result.cancelled >= 1
    assert "hang" not in dict(result.failures)


@pytest.mark.parametrize("processes", [1, 3])
async def test_a_stop_in_the_warm_up_ends_all_processes(mock_server: StartMock, processes: int) -> None:
    """Also that which has nothing to warm up and waits for the others."""
    server = mock_server("--first", "60", "--step", "0.002")
    runner = LoadRunner()
    await runner.start(wish(server, concurrency=3, warmup=2, processes=processes))
    await poll(lambda: (p := runner.progress()) is not None and p.state == "warming-up")
    await runner.stop()
    result = await asyncio.wait_for(runner.wait(), 40)
    await runner.close()
    assert (result.complete, result.requests, result.cancelled) == (False, 0, 0)


async def test_close_leaves_no_process_and_is_quick(mock_server: StartMock) -> None:
    server = mock_server(*SLOW)
    runner = LoadRunner()
    await runner.start(wish(server, requests=2000, processes=2))
    await poll(lambda: (p := runner.progress()) is not None and p.state == "running")
    children = psutil.Process().children(recursive=True)
    workers = [child for child in children if "vtop.load" in " ".join(child.cmdline())]
    assert len(workers) == 3
    await runner.close()
    await poll(lambda: not any(_alive(worker) for worker in workers))
    # Either the worker managed to save the cut test within the time, or it was killed; never is it left running.
    with contextlib.suppress(VtopError):
        assert not (await runner.wait()).complete
    assert not runner.running


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


PARENT = """
import asyncio, json, sys
from vtop.load.progress import LoadRequest
from vtop.load.runner import LoadRunner

async def main():
    runner = LoadRunner()
    await runner.start(LoadRequest(**json.loads(sys.argv[1])))
    while (runner.progress().finished < 4):
        await asyncio.sleep(0.02)
    print(runner._process.pid, flush=True)
    await runner.wait()

asyncio.run(main())
"""


async def test_the_worker_ends_with_its_killed_parent_and_saves_what_was_measured(mock_server: StartMock) -> None:
    server = mock_server(*SLOW)
    fields = {
        "workload": "demo",
        "url": server.url,
        "model": "normal",
        "concurrency": 4,
        "requests": 5000,
        "max_tokens": 10,
        "measure_client": False,
    }
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, json.dumps(fields), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    worker = psutil.Process(int(await parent.stdout.readline()))
    parent.kill()
    await parent.wait()
    await poll(lambda: not _alive(worker))
    (entry,) = store.list_runs()
    assert not entry.complete
    assert store.load_result(entry.run_id).completed >= 4


async def test_ctrl_c_in_the_workers_terminal_keeps_the_result(mock_server: StartMock) -> None:
    runner = LoadRunner()
    await runner.start(wish(mock_server(*SLOW), requests=2000))
    await poll(lambda: (p := runner.progress()) is not None and p.finished >= 4)
    process = runner._process
    assert process is not None
    os.kill(process.pid, signal.SIGINT)
    result = await asyncio.wait_for(runner.wait(), 20)
    await runner.close()
    assert not result.complete and result.completed >= 4


async def test_one_test_at_a_time(mock_server: StartMock) -> None:
    runner = LoadRunner()
    await runner.start(wish(mock_server(*SLOW), requests=2000))
    with pytest.raises(VtopError, match="already running"):
        await runner.start(wish(mock_server(*SLOW)))
    await runner.close()


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"model": "other"}, "does not serve 'other'"),
        ({"workload": "long", "max_tokens": 30_000}, "takes 37,600 tokens"),
        ({"api_key": "env:VTOP_TEST_NO_SUCH_KEY"}, "is not set"),
        ({"ca_file": "/no/such.pem", "url": "https://127.0.0.1:1"}, "cannot use the CA file"),
        ({"url": "ftp://x"}, "not an http or https address"),
        ({"url": "http://127.0.0.1:1"}, "nothing listens on 127.0.0.1:1"),
        ({"search": True}, "needs limits"),
        ({"search": True, "slo_ttft_s": 1.0, "requests": 9}, "a number of requests has no place"),
    ],
)
async def test_what_cannot_run_says_why_and_leaves_no_run(
    mock_server: StartMock, wishes: dict[str, Any], words: str
) -> None:
    fields = {"workload": "demo", "model": "normal", "url": mock_server(*FAST).url, "measure_client": False, **wishes}
    runner = LoadRunner()
    with pytest.raises(VtopError, match=words):
        await runner.start(LoadRequest(**fields))
        await runner.wait()
    await runner.close()
    assert store.list_runs() == []
    progress = runner.progress()
    assert progress is not None and progress.state == "failed" and words.strip() in progress.message


async def test_more_streams_than_files_may_be_open_is_said_before_the_start(mock_server: StartMock) -> None:
    plan = {
        "run_id": "r",
        "directory": "/nowhere",
        "request": {"url": mock_server().url, "concurrency": 500, "requests": 500},
    }
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-c", 'ulimit -n 100 && exec "$0" -m vtop.load.worker', sys.executable],
        input=json.dumps(plan).encode() + b"\n",
        stdout=subprocess.PIPE,
        timeout=60,
    )
    last = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1
    assert last["what"] == "500 streams need 564 open files; this shell allows 100"


async def test_a_soft_limit_of_open_files_is_raised(mock_server: StartMock) -> None:
    server = mock_server(*FAST)
    result = await run(wish(server, concurrency=300, requests=300, warmup=0, max_tokens=2))
    assert (result.completed, result.failed) == (300, 0)


def _contents(directory: str) -> list[bytes]:
    return [path.read_bytes() for path in Path(directory).iterdir()]


async def test_a_key_goes_out_as_a_header_and_nowhere_else(
    mock_server: StartMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VTOP_TEST_KEY", "sk-very-secret")
    server = mock_server(*FAST)
    result = await run(wish(server, api_key="env:VTOP_TEST_KEY"))
    assert server.seen()["keys"] == ["sk-very-secret"]
    assert not any(b"sk-very-secret" in data for data in _contents(result.directory))
    assert "env:VTOP_TEST_KEY" in result.repeat_command


async def test_a_fixed_rate_is_a_share_of_the_rate_just_found(mock_server: StartMock) -> None:
    result = await run(wish(mock_server(*FAST), workload="rate", requests=None, duration_s=1.5, concurrency=2))
    assert result.asked_rate is not None
    # Two streams of 50 + 19 * 2 ms at least: no more than 2 / 0.088 s = 22.7/s, of which 70 %.
    assert 0 < result.asked_rate <= 0.7 * 2 / 0.088 * 1.05
    assert result.e2e_from_schedule.n == result.completed


async def test_a_constant_rate_is_constant_in_the_clients_process_too(mock_server: StartMock) -> None:
    """An infinite burstiness was lost on the way there, since JSON has none, and became a Poisson process."""
    result = await run(wish(mock_server(*FAST), rate=50.0, burstiness=float("inf"), concurrency=None, requests=6))
    lines = (Path(result.directory) / "requests.jsonl").read_text().splitlines()
    scheduled = sorted(json.loads(line)["scheduled_s"] for line in lines)
    assert scheduled == pytest.approx([0.0, 0.02, 0.04, 0.06, 0.08, 0.10])
    assert "--burstiness inf" in result.repeat_command


async def test_a_ladder_is_saved_with_its_steps(mock_server: StartMock) -> None:
    server = mock_server(*FAST)
    result = await run(wish(server, workload="ladder", requests=None, duration_s=0.6, concurrency=4, prompt_tokens=64))
    assert result.kind == "ladder"
    assert [step.concurrency for step in result.steps] == [1, 2, 4]
    throughput = [step.output_tokens_per_s for step in result.steps]
    assert throughput == sorted(throughput)
    assert any("the ladder ended" in words for words in result.warnings)


async def test_a_search_finds_a_rate_that_holds(mock_server: StartMock) -> None:
    server = mock_server(*FAST)
    result = await run(
        wish(
            server,
            workload="chat",
            requests=None,
            duration_s=0.5,
            rate=8.0,
            search=True,
            slo_ttft_s=5.0,
            prompt_tokens=64,
        )
    )
    assert result.kind == "search"
    held = [step.rate for step in result.steps if step.holds]
    refused = [step.rate for step in result.steps if not step.holds]
    assert held
    assert not refused or max(held) < max(refused)
    assert any("held the limits" in words for words in result.warnings)


async def test_readings_of_server_and_gpu_are_kept_on_the_runs_clock(mock_server: StartMock) -> None:
    runner = LoadRunner()
    run_id = await runner.start(wish(mock_server(*FAST)))
    await poll(lambda: (p := runner.progress()) is not None and p.started_s is not None)
    progress = runner.progress()
    assert progress is not None and progress.started_s is not None
    runner.record_timeline(progress.started_s + 0.25, {"running": 4, "dram_percent": None})
    await runner.wait()
    await runner.close()
    assert store.load_timeline(run_id) == [{"t_s": 0.25, "running": 4, "dram_percent": None}]


async def test_without_uvloop_the_worker_runs_on_asyncio(mock_server: StartMock, tmp_path: Path) -> None:
    program = "import sys; sys.modules['uvloop'] = None; from vtop.load.worker import main; sys.exit(main())"
    request = {"url": mock_server(*FAST).url, "model": "normal", "requests": 4, "concurrency": 2, "max_tokens": 5}
    plan = {"run_id": "r", "directory": str(tmp_path / "r"), "request": request}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**24
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(plan).encode() + b"\n")
    events = {}
    async with asyncio.timeout(60):
        while "result" not in events and (line := await process.stdout.readline()):
            event = json.loads(line)
            events[event["event"]] = event
            if event["event"] == "measured":
                process.stdin.write(b"context {}\n")
        await process.wait()
    assert events["result"]["result"]["completed"] == 4
    assert events["floor"]["capacity_tokens_per_s"] > 0


async def test_a_run_that_cannot_be_saved_is_refused_before_anything_is_sent(
    mock_server: StartMock, tmp_path: Path
) -> None:
    taken = tmp_path / "runs"
    taken.write_text("a file where the folder belongs")
    with pytest.raises(VtopError, match="cannot save the run") as caught:
        await run(wish(mock_server(*FAST)), runs_dir=taken)
    assert "VTOP_RUNS_DIR" in caught.value.remedy
