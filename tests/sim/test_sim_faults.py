"""Misbehaviour on demand, and the P/D pair."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from simprocess import DEADLINE_S, SimProcess, StartSim, free_port

BODY: dict[str, Any] = {"model": "sim", "prompt": "one two three", "max_tokens": 20, "ignore_eos": True, "stream": True}


def ask(sim: SimProcess, **changes: Any) -> httpx.Response:
    return httpx.post(sim.url + "/v1/completions", json={**BODY, **changes}, timeout=20)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("die-loading", "SafetensorError: Error while deserializing header"),
        ("oom", "torch.OutOfMemoryError: CUDA out of memory"),
        ("gpu-busy", "is less than desired GPU memory utilization"),
    ],
)
def test_a_start_that_fails_says_why_and_exits_with_1(start_sim: StartSim, fault: str, words: str) -> None:
    sim = start_sim("--fault", fault, wait=False)
    assert sim.wait() == 1
    assert words in sim.text()
    assert "Engine core initialization failed" in sim.text()


def test_a_model_that_does_not_fit_fails_like_vllm(start_sim: StartSim) -> None:
    sim = start_sim("--model", "Qwen/Qwen2.5-32B-Instruct", wait=False)
    assert sim.wait() == 1
    assert "torch.OutOfMemoryError: CUDA out of memory" in sim.text()


def test_an_unknown_flag_exits_with_2(start_sim: StartSim) -> None:
    sim = start_sim("--no-such-flag", wait=False)
    assert sim.wait() == 2
    assert "unrecognized arguments" in sim.text()


def test_the_first_request_kills_it(start_sim: StartSim) -> None:
    sim = start_sim("--fault", "first-request")
    with pytest.raises(httpx.TransportError):
        ask(sim)
    assert sim.wait() == 1
    assert "died unexpectedly" in sim.text()


def test_exit_zero_is_a_crash_with_code_0(start_sim: StartSim) -> None:
    sim = start_sim("--fault", "exit-zero", "--fault-after-s", "1", wait=False)
    assert sim.wait() == 0
    assert "EngineDeadError" in sim.text()


def test_restart_begins_its_counters_again(start_sim: StartSim) -> None:
    sim = start_sim("--fault", "restart", "--fault-after-s", "100")
    assert ask(sim).status_code == 200
    before = sim.metric("vllm:generation_tokens_total")
    assert before == 20
    deadline = time.monotonic() + DEADLINE_S
    while sim.metric("vllm:generation_tokens_total") != 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sim.metric("vllm:generation_tokens_total") == 0


@pytest.mark.parametrize("fault", ["cut-streams", "stream-errors", "reset-streams", "refuse"])
def test_every_fourth_request_breaks(start_sim: StartSim, fault: str) -> None:
    sim = start_sim("--fault", fault)
    seen = []
    for _ in range(4):
        try:
            answer = ask(sim)
        except httpx.TransportError:
            seen.append("reset")
            continue
        if answer.status_code != 200:
            seen.append(str(answer.status_code))
        elif '"error"' in answer.text:
            seen.append("error")
        else:
            seen.append("good" if "[DONE]" in answer.text and '"finish_reason":"length"' in answer.text else "cut")
    wanted = {"cut-streams": "cut", "stream-errors": "error", "reset-streams": "reset", "refuse": "503"}[fault]
    assert seen == ["good", "good", "good", wanted]
    deadline = time.monotonic() + DEADLINE_S
    while sim.metric("vllm:num_requests_running") != 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sim.metric("vllm:num_requests_running") == 0


def test_a_frozen_engine_takes_requests_and_still_stops(start_sim: StartSim) -> None:
    sim = start_sim("--fault", "hang-serving")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(sim.url + "/v1/completions", json={**BODY, "stream": False}, timeout=0.5)
    assert sim.metric("vllm:generation_tokens_total") == 0
    assert sim.stop() == 0


async def test_a_stop_tells_running_streams_and_ends(start_sim: StartSim) -> None:
    sim = start_sim(speed=1)
    lines = []
    async with (
        httpx.AsyncClient(timeout=20) as client,
        client.stream("POST", sim.url + "/v1/completions", json={**BODY, "max_tokens": 3000}) as answer,
    ):
        async for line in answer.aiter_lines():
            lines.append(line)
            if len(lines) == 6:
                sim.process.terminate()
    assert (
        json.loads([line for line in lines if "finish_reason" in line][-1][6:])["choices"][0]["finish_reason"]
        == "abort"
    )
    assert await asyncio.to_thread(sim.wait) == 0


async def test_a_pd_pair_transfers_the_prompts_cache(start_sim: StartSim) -> None:
    prefill = start_sim("--kv-role", "prefill", wait=False)
    decode = start_sim("--kv-role", "decode", "--gpu-index", "1", wait=False)
    prefill.until_healthy()
    decode.until_healthy()
    router = start_sim("--role", "router", "--prefill", prefill.url, "--decode", decode.url)
    models = httpx.get(router.url + "/v1/models").json()  # noqa: ASYNC210
    assert models["data"][0]["id"] == "sim"
    body = {
        "model": "sim",
        "max_tokens": 30,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with httpx.AsyncClient(timeout=30) as client:
        answers = await asyncio.gather(
            *(
                client.post(router.url + "/v1/completions", json={**body, "prompt": list(range(number, number + 600))})
                for number in range(6)
            )
        )
    for answer in answers:
        assert answer.status_code == 200
        assert answer.text.rstrip().endswith("data: [DONE]")
        assert '"completion_tokens": 30' in answer.text
    assert decode.metric("vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"') == 6 * 599
    assert decode.metric("vllm:prompt_tokens_by_source_total", 'source="local_compute"') == 6
    assert decode.metric("vllm:nixl_bytes_transferred_sum") == 6 * 599 * 57_344
    assert decode.metric("vllm:generation_tokens_total") == 6 * 30
    assert prefill.metric("vllm:prompt_tokens_total") == 3600
    assert prefill.metric("vllm:generation_tokens_total") == 6
    assert router.stop() == prefill.stop() == decode.stop() == 0


async def test_a_router_whose_servers_are_gone_answers_502(start_sim: StartSim) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    router = start_sim("--role", "router", "--prefill", gone, "--decode", gone, wait=False)
    async with httpx.AsyncClient(timeout=20) as client:
        for _ in range(300):
            try:
                health = await client.get(router.url + "/health")
                break
            except httpx.TransportError:
                await asyncio.sleep(0.05)
        assert health.status_code == 503
        answer = await client.post(router.url + "/v1/completions", json=BODY)
    assert answer.status_code == 502
    assert await asyncio.to_thread(router.stop) == 0
