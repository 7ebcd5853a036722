"""Tests of several stages: what is sent in which, from where prompts come, and what a stop leaves."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from load_helpers import MockProcess, StartMock, poll

from vtop.errors import VtopError
from vtop.load.course import Course
from vtop.load.outcome import Measured
from vtop.load.progress import LoadRequest, LoadResult, LoadStep
from vtop.load.runner import LoadRunner
from vtop.load.stats import RequestRecord
from vtop.load.workload import Shape, resolve

FAST = ("--first", "0.02", "--step", "0.002")


def prompts_file(path: Path, count: int) -> str:
    file = path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"measured {i}"}) + "\n" for i in range(count)), encoding="utf-8")
    return str(file)


async def run(server: MockProcess, **wishes: Any) -> LoadResult:
    given: dict[str, Any] = {"model": "normal", "max_tokens": 3, "measure_client": False, **wishes}
    runner = LoadRunner()
    try:
        await runner.start(LoadRequest(url=server.url, **given))
        return await runner.wait()
    finally:
        await runner.close()


def measured_prompts(server: MockProcess) -> list[str]:
    texts = [body["messages"][0]["content"] for body in server.seen()["bodies"]]
    return [text for text in texts if text.startswith("measured")]


@pytest.mark.parametrize("processes", [1, 2])
async def test_steps_go_on_in_the_file_and_say_when_it_had_to_begin_again(
    mock_server: StartMock, tmp_path: Path, processes: int
) -> None:
    server = mock_server(*FAST)
    wishes = {"workload": "ladder", "concurrency": 4, "duration_s": 0.8, "warmup": 2, "processes": processes}
    result = await run(server, file=prompts_file(tmp_path, 6), **wishes)
    assert all(step.requests > 0 for step in result.steps)
    often = Counter(measured_prompts(server))
    sent = sum(step.requests for step in result.steps)
    assert sum(often.values()) == sent > 6
    if processes == 1:
        # Nothing is sent again while something has not been sent.
        assert max(often.values()) - min(often.values()) <= 1
    assert any("6 prompts were too few for all steps" in words for words in result.warnings)


async def test_a_conversation_is_one_prompt_of_the_file_however_many_turns_it_has(
    mock_server: StartMock, tmp_path: Path
) -> None:
    server = mock_server(*FAST)
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps({"turns": [f"measured {n}", "and?", "and?"]}) + "\n" for n in range(12)))
    result = await run(server, workload="ladder", file=str(file), requests=4, concurrency=3, warmup=0)
    assert len(result.steps) >= 2
    assert {step.requests for step in result.steps} == {12}
    assert set(Counter(measured_prompts(server)).values()) == {3}, "each was begun once, and went on twice"
    assert not any("too few for all steps" in words for words in result.warnings)


async def test_each_step_of_a_ladder_over_a_file_has_the_number_of_requests_that_was_asked_for(
    mock_server: StartMock, tmp_path: Path
) -> None:
    """Without a time and a number it would never end."""
    server = mock_server(*FAST)
    file = prompts_file(tmp_path, 30)
    result = await run(server, workload="ladder", file=file, requests=5, concurrency=2, warmup=0)
    assert [(step.concurrency, step.requests) for step in result.steps] == [(1, 5), (2, 5)]


async def test_a_file_with_fewer_prompts_than_were_asked_for_is_said(mock_server: StartMock, tmp_path: Path) -> None:
    server = mock_server(*FAST)
    result = await run(server, workload="file", file=prompts_file(tmp_path, 3), requests=5, warmup=0)
    assert result.requests == 3
    assert "the file holds 3 of the 5 requests asked for" in result.warnings


async def test_a_file_that_is_long_enough_is_sent_once(mock_server: StartMock, tmp_path: Path) -> None:
    server = mock_server(*FAST)
    result = await run(
        server,
        file=prompts_file(tmp_path, 5000),
        workload="file",
        search=True,
        rate=10.0,
        duration_s=0.4,
        slo_ttft_s=5.0,
    )
    assert result.kind == "search"
    assert all(step.requests > 0 for step in result.steps)
    assert set(Counter(measured_prompts(server)).values()) == {1}
    assert not any("too few" in words and "prompts" in words for words in result.warnings)


@pytest.mark.parametrize("wishes", [{"workload": "ladder"}, {"workload": "rate"}, {"search": True, "slo_ttft_s": 1.0}])
async def test_a_trace_says_itself_when_requests_leave(
    mock_server: StartMock, tmp_path: Path, wishes: dict[str, Any]
) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 20, "output_length": 3}\n', encoding="utf-8")
    server = mock_server(*FAST)
    with pytest.raises(VtopError, match="the times of the trace") as caught:
        await run(server, file=str(file), **wishes)
    assert caught.value.exit_code == 2
    assert server.seen()["asked"] == 0


async def test_a_stopped_ladder_is_marked_as_cut_and_keeps_its_finished_steps(mock_server: StartMock) -> None:
    server = mock_server(*FAST)
    runner = LoadRunner()
    await runner.start(
        LoadRequest(
            url=server.url,
            model="normal",
            workload="ladder",
            concurrency=64,
            duration_s=1.5,
            max_tokens=3,
            prompt_tokens=64,
            warmup=0,
            measure_client=False,
        )
    )
    await poll(lambda: (p := runner.progress()) is not None and len(p.steps) >= 1)
    await runner.stop()
    result = await asyncio.wait_for(runner.wait(), 30)
    await runner.close()
    assert not result.complete and not result.comparable
    assert len(result.steps) >= 1
    assert result.completed > 0


async def test_the_workload_hash_tells_files_apart_by_their_content(mock_server: StartMock, tmp_path: Path) -> None:
    server = mock_server(*FAST)

    async def hash_of(folder: str, texts: list[str]) -> str:
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
        result = await run(server, workload="file", file=str(file), concurrency=2, warmup=0)
        return str(result.fingerprint["workload_hash"])

    first = await hash_of("a", ["one", "two"])
    assert await hash_of("b", ["one", "two"]) == first
    assert await hash_of("c", ["one", "three"]) != first


class Stages:
    """Pretends to run stages: a server that holds any rate up to a limit."""

    def __init__(self, holds_up_to: float) -> None:
        self._limit = holds_up_to
        self.rates: list[float] = []
        self.steps: list[LoadStep] = []
        self.course: Course | None = None
        self.stop_after: int | None = None

    async def run(self, shape: Shape, phase: str) -> Measured:
        rate = shape.rate or 40.0
        self.rates.append(rate)
        ttft = 0.1 if rate <= self._limit else 3.0
        records = [
            RequestRecord(
                index=i,
                sent_s=i / rate,
                ended_s=i / rate + ttft + 0.1,
                ok=True,
                ttft_s=ttft,
                tpot_s=0.01,
                e2e_s=ttft + 0.1,
                output_tokens=10,
                chunks=10,
                last_token_s=i / rate + ttft + 0.1,
            )
            for i in range(40)
        ]
        complete = self.stop_after is None or len(self.rates) < self.stop_after
        if not complete and self.course is not None:
            self.course.stopped = True
        return Measured(records=records, warmup_records=[], started_s=0.0, shape=shape, complete=complete)


def searching(limit: float, **wishes: Any) -> tuple[Course, Stages]:
    request = LoadRequest(workload="chat", search=True, slo_ttft_s=0.5, rate=4.0, **wishes)
    stages = Stages(limit)
    stages.course = Course(request, resolve(request), stages.run, stages.steps.append)
    return stages.course, stages


@pytest.mark.parametrize("limit", [0.7, 3.0, 9.0, 31.0])
async def test_a_search_ends_within_ten_percent_of_the_limit_in_at_most_eight_runs(limit: float) -> None:
    course, stages = searching(limit)
    measured = await course.run()
    assert len(stages.rates) <= 8
    assert measured.shape.rate is not None
    assert measured.shape.rate <= limit < measured.shape.rate * 1.25
    assert measured.complete
    assert [step.holds for step in stages.steps] == [rate <= limit for rate in stages.rates]


async def test_a_search_that_is_stopped_says_nothing_of_the_run_that_was_cut() -> None:
    course, stages = searching(9.0)
    stages.stop_after = 3
    measured = await course.run()
    assert [step.holds for step in stages.steps] == [True, True]
    assert not measured.complete
    assert measured.shape.rate == 6.0
    assert "6.00 requests/s held the limits" in course.notes[-1]
