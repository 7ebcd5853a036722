"""The simulated server over real sockets: vLLM's endpoints, words and counters."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from simprocess import StartSim

CHAT: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "Tell me about paged attention."}]}


def events(text: str) -> list[Any]:
    parts = [line[len("data: ") :] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(part) if part != "[DONE]" else part for part in parts]


async def stream(url: str, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[Any]:
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(url + path, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        return events(answer.text)


def test_it_says_everywhere_that_it_is_simulated(start_sim: StartSim) -> None:
    sim = start_sim()
    assert httpx.get(sim.url + "/version").json() == {"version": "0.33.0+vtop.simulated"}
    model = httpx.get(sim.url + "/v1/models").json()["data"][0]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("sim", "vtop-simulated", 4096)
    assert "vtop_simulated 1.0" in httpx.get(sim.url + "/metrics").text
    assert "SIMULATED" in sim.text()


async def test_a_chat_stream_has_role_content_reason_usage_and_done(start_sim: StartSim) -> None:
    sim = start_sim()
    body = {**CHAT, "max_tokens": 8, "ignore_eos": True, "stream_options": {"include_usage": True}}
    found = await stream(sim.url, body)
    assert found[-1] == "[DONE]"
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    contents = [event["choices"][0]["delta"]["content"] for event in found[1:-2]]
    assert len(contents) == 8 and all(contents)
    assert found[-3]["choices"][0]["finish_reason"] == "length"
    assert found[-2]["choices"] == [] and found[-2]["usage"]["completion_tokens"] == 8


async def test_continuous_usage_counts_up(start_sim: StartSim) -> None:
    sim = start_sim()
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = await stream(sim.url, {**CHAT, "max_tokens": 5, "ignore_eos": True, "stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in found if event != "[DONE]"]
    assert counts[-1] == 5 and counts == sorted(counts) and len(set(counts)) == 5


def test_token_id_prompts_are_counted_exactly(start_sim: StartSim) -> None:
    sim = start_sim()
    body = {"model": "sim", "prompt": list(range(100, 357)), "max_tokens": 3, "ignore_eos": True}
    answer = httpx.post(sim.url + "/v1/completions", json=body).json()
    assert answer["usage"] == {"prompt_tokens": 257, "total_tokens": 260, "completion_tokens": 3}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert sim.metric("vllm:prompt_tokens_total") == 257


def test_several_answers_to_one_prompt(start_sim: StartSim) -> None:
    sim = start_sim()
    answer = httpx.post(sim.url + "/v1/chat/completions", json={**CHAT, "n": 3, "max_tokens": 4, "ignore_eos": True})
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in choices}) == 3
    assert answer.json()["usage"]["completion_tokens"] == 12


def test_the_same_prompt_at_temperature_zero_has_the_same_answer(start_sim: StartSim) -> None:
    sim = start_sim()
    body = {**CHAT, "max_tokens": 20, "temperature": 0}
    texts = {
        httpx.post(sim.url + "/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        for _ in range(2)
    }
    assert len(texts) == 1


def test_min_tokens_holds_a_short_answer_open(start_sim: StartSim) -> None:
    sim = start_sim(speed=200)
    body = {**CHAT, "min_tokens": 900, "max_tokens": 1000}
    answer = httpx.post(sim.url + "/v1/chat/completions", json=body, timeout=60).json()
    assert 900 <= answer["usage"]["completion_tokens"] <= 1000


def test_tokenize_agrees_with_usage(start_sim: StartSim) -> None:
    sim = start_sim()
    counted = httpx.post(sim.url + "/tokenize", json={"model": "sim", "messages": CHAT["messages"]}).json()
    answer = httpx.post(sim.url + "/v1/chat/completions", json={**CHAT, "max_tokens": 1}).json()
    assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
    text = httpx.post(sim.url + "/tokenize", json={"prompt": "Grüße, world 123"}).json()
    back = httpx.post(sim.url + "/detokenize", json={"tokens": text["tokens"]}).json()
    assert back["prompt"] == "Grüße, world 123"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "other", "messages": [{"role": "user", "content": "x"}]}, 404, "does not exist"),
        ({"model": "sim", "messages": []}, 400, "messages"),
        ({"model": "sim"}, 400, "messages"),
        ({**CHAT, "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({**CHAT, "max_tokens": 5000}, 400, "maximum context length is 4096"),
        ({**CHAT, "n": 0}, 400, "n must be at least 1"),
    ],
)
def test_bad_requests_are_answered_as_vllm_does(
    start_sim: StartSim, body: dict[str, Any], status: int, words: str
) -> None:
    sim = start_sim()
    answer = httpx.post(sim.url + "/v1/chat/completions", json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_the_key_is_asked_for_under_v1_only_and_is_in_no_log(start_sim: StartSim) -> None:
    sim = start_sim(env={"VLLM_API_KEY": "s3cret-key"})
    assert httpx.get(sim.url + "/v1/models").status_code == 401
    assert httpx.get(sim.url + "/v1/models", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert httpx.get(sim.url + "/v1/models", headers={"authorization": "Bearer s3cret-key"}).status_code == 200
    assert httpx.get(sim.url + "/metrics").status_code == 200
    assert "s3cret-key" not in sim.text()


async def test_every_token_that_a_client_saw_is_counted_once(start_sim: StartSim) -> None:
    sim = start_sim("--enable-mfu-metrics", "--speculative-config", '{"method":"ngram","num_speculative_tokens":4}')
    bodies = [
        {
            "model": "sim",
            "messages": [{"role": "user", "content": f"Repeat this word for word: {number} red green blue. " * 3}],
            "max_tokens": 20 + number,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        for number in range(12)
    ]
    answers = await asyncio.gather(*(stream(sim.url, body) for body in bodies))
    usage = [found[-2]["usage"] for found in answers]
    generated = sum(item["completion_tokens"] for item in usage)
    prompts = sum(item["prompt_tokens"] for item in usage)
    assert generated == sum(20 + number for number in range(12))
    assert sim.metric("vllm:generation_tokens_total") == generated
    assert sim.metric("vllm:prompt_tokens_total") == prompts
    assert sim.metric("vllm:prompt_tokens_by_source_total") == prompts
    assert sim.metric("vllm:request_success_total", 'finished_reason="length"') == 12
    assert sim.metric("vllm:time_to_first_token_seconds_count") == 12
    assert sim.metric("vllm:request_generation_tokens_sum") == generated
    assert sim.metric("vllm:iteration_tokens_total_sum") == generated + prompts
    accepted = sim.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert 0 < accepted <= sim.metric("vllm:spec_decode_num_draft_tokens_total")
    assert accepted == sim.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total")
    assert sim.metric("vllm:num_requests_running") == 0
    assert sim.metric("vllm:kv_cache_usage_perc") == 0


async def test_a_client_that_leaves_ends_its_request(start_sim: StartSim) -> None:
    sim = start_sim(speed=1)
    body = {**CHAT, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    async with (
        httpx.AsyncClient() as client,
        client.stream("POST", sim.url + "/v1/chat/completions", json=body) as answer,
    ):
        async for _ in answer.aiter_lines():
            break
    for _ in range(200):
        if sim.metric("vllm:num_requests_running") == 0:
            break
        await asyncio.sleep(0.02)
    assert sim.metric("vllm:num_requests_running") == 0
    assert sim.metric("vllm:request_success_total", 'finished_reason="abort"') == 1


def test_two_engines_share_the_requests_and_label_their_series(start_sim: StartSim) -> None:
    sim = start_sim("--data-parallel-size", "2", "--gpu-index", "0", "1")
    for number in range(4):
        httpx.post(sim.url + "/v1/completions", json={"model": "sim", "prompt": f"go {number}", "max_tokens": 2})
    for engine in ("0", "1"):
        assert sim.metric("vllm:request_success_total", f'engine="{engine}"') == 2
    assert [gpu["index"] for gpu in httpx.get(sim.url + "/vtop/sim/gpu").json()["gpus"]] == [0, 1]


def test_sigterm_ends_it_cleanly_and_frees_the_port(start_sim: StartSim) -> None:
    sim = start_sim()
    assert sim.stop() == 0
    assert "Application shutdown complete" in sim.text()
    with pytest.raises(httpx.TransportError):
        httpx.get(sim.url + "/health")


def test_sigterm_while_it_starts_ends_it(start_sim: StartSim) -> None:
    sim = start_sim("--fault", "hang", wait=False)
    while "Loading safetensors" not in sim.text():
        assert sim.process.poll() is None
    assert sim.stop() == 0


def test_a_taken_port_is_said_in_vllms_words(start_sim: StartSim) -> None:
    first = start_sim()
    second = start_sim("--port", str(first.port), wait=False)
    assert second.wait() == 1
    assert "Address already in use" in second.text()
