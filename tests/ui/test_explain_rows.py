"""Explain has every quantity that a reading has, and says what a number means where that is not plain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ui.fake_service import gpu, ready, snapshot
from vtop.servers.status import ServerState
from vtop.ui.glyphs import UNICODE
from vtop.ui.panels.engine import engine_rows
from vtop.ui.panels.gpus import gpu_row, gpu_title
from vtop.ui.panels.servers import server_rows
from vtop.ui.screens.explain import explain_rows
from vtop.vllm.reading import EngineReading, KvTransferReading, Latency, SpeculationReading

EVERYTHING = EngineReading(
    model_name="m",
    window_s=10.0,
    engines=2,
    running=3.0,
    waiting=2.0,
    waiting_by_reason={"capacity": 1.0, "deferred": 1.0},
    swapped=5.0,
    kv_usage=0.25,
    kv_usage_max=0.5,
    kv_capacity_tokens=16_000.0,
    kv_cache_dtype="fp8",
    prompt_tokens_per_s=200.0,
    generation_tokens_per_s=400.0,
    requests_per_s=2.0,
    finished_by_reason={"stop": 12.0, "abort": 3.0},
    rejected=7.0,
    preemptions=6.0,
    prompt_computed_share=0.5,
    prompt_cached_share=0.3,
    prompt_transferred_share=0.2,
    prefix_hit_rate=0.31,
    prefix_hit_rate_since_start=0.53,
    external_hit_rate=0.77,
    tokens_per_step=64.0,
    speculation=SpeculationReading(0.75, 3.25, (0.92, 0.78), 90.0, 22.0),
    kv_transfer=KvTransferReading(50.0, 2e9, 0.004, 1.0),
    lora_running=("sql", "line1\nline2"),
    lora_waiting=("chat",),
    lora_max=4,
    sleep_state="weights_offloaded",
    read_bytes_per_s=1.5e12,
    write_bytes_per_s=2e9,
    flops_per_s=3e13,
    missing={"rejected": "vLLM says it from 0.32 on"},
    notes={"itl": "this version calls it time_per_output_token_seconds"},
)


def text(*engines: EngineReading, joules: float | None = None) -> str:
    view = replace(ready(), engines=engines, joules_per_token=joules)
    return "\n".join(line.text for line in explain_rows(snapshot(view), view, 160, UNICODE))


@pytest.mark.parametrize(
    "words",
    [
        *("3 running", "2 waiting (1 capacity · 1 deferred)", "6 preempted", "5 swapped out", "7 refused at admission"),
        *("25 % of 16.0k tokens", "fullest engine 50 %", "fp8"),
        *("400 tok/s out", "200 tok/s in", "2.00 requests/s", "12 stop · 3 abort"),
        *("50 % computed", "30 % prefix cache", "20 % transferred"),
        *("31 % · 53 % since the server started · 77 % in the external cache", "tokens a step            64"),
        *("75 % accepted", "3.25 tokens a step", "by position 92 % 78 %", "90.0 tok/s drafted, 22.0 tok/s in vain"),
        *("50.0 tok/s of prompts · 2.00 GB/s · 4.00 ms each · 1 failed",),
        *(r"sql, line1\nline2 running, of 4 at once · waiting: chat", "weights offloaded"),
        *("reads 1.50 TB/s, writes 2.00 GB/s · 30 TFLOP/s a GPU",),
        *("What a number means on this server", "this version calls it time_per_output_token_seconds"),
        *("What this server does not say", "vLLM says it from 0.32 on", "0.600 J a generated token"),
    ],
)
def test_each_quantity_is_written_out(words: str) -> None:
    assert words in text(EVERYTHING, joules=0.6)


def test_what_is_unknown_is_a_dash_or_absent_and_never_a_zero() -> None:
    said = text(EngineReading("m", 10.0))
    assert "– running · – waiting · – preempted" in said
    for word in ("LoRA", "KV from elsewhere", "refused", "swapped", "estimate", "sleep", "energy", "0 %"):
        assert word not in said


def test_the_password_in_an_address_is_not_shown() -> None:
    view = ready()
    view = replace(view, status=replace(view.status, url="http://me:p@ss@127.0.0.1:8000/a@b"))
    said = "\n".join(line.text for line in explain_rows(snapshot(view), view, 160, UNICODE))
    assert "http://127.0.0.1:8000/a@b" in said
    assert "ss@" not in said


def test_gaps_between_tokens_are_counted_as_steps_and_not_as_requests() -> None:
    said = text(EngineReading("m", 10.0, ttft=Latency(0.3, 12), itl=Latency(0.02, 4096)))
    assert "mean 300 ms of 12 requests" in said
    assert "mean 20.0 ms of 4,096 steps" in said


def test_each_model_of_a_server_has_its_own_numbers() -> None:
    said = text(EngineReading("coder", 10.0, running=4.0), EngineReading("embed", 10.0, running=9.0))
    assert said.index("4 running") < said.index("Another model here: embed") < said.index("9 running")


def test_a_gpu_of_another_machine_says_where_it_is_wherever_it_is_drawn() -> None:
    there = gpu(0, host="gpu-7")
    for width in (60, 80, 160):
        assert "in gpu-7" in gpu_row(there, width, UNICODE).text
    assert gpu_title(snapshot(ready(), gpus=[there]), UNICODE).text.startswith("GPU 0 in gpu-7")
    view = ready()
    text_of_it = "\n".join(line.text for line in explain_rows(snapshot(view, gpus=[there]), view, 120, UNICODE))
    assert "in gpu-7" in text_of_it


def test_another_servers_numbers_never_pass_for_vllms() -> None:
    view = replace(ready(), engines=(EngineReading("m", 10.0, server_kind="sglang", running=3.0),))
    drawn = {
        "list": server_rows(snapshot(view), view, 80, 3, UNICODE)[0],
        "engine": engine_rows(view, 80, 2, UNICODE),
        "explain": explain_rows(snapshot(view), view, 80, UNICODE),
    }
    for where, lines in drawn.items():
        assert "sglang" in " ".join(line.text for line in lines), where
    ours = engine_rows(ready(), 80, 2, UNICODE) + server_rows(snapshot(ready()), ready(), 80, 3, UNICODE)[0]
    assert "own numbers" not in " ".join(line.text for line in ours)


def test_with_several_models_the_dashboard_says_whose_numbers_it_shows_and_where_the_others_are() -> None:
    view = replace(ready(), engines=(EngineReading("coder", 10.0, running=4.0), EngineReading("embed", 10.0)))
    for width in (80, 120):
        assert "coder, 1 of 2 models: e shows all" in " ".join(
            line.text for line in engine_rows(view, width, 2, UNICODE)
        )


def test_the_list_names_another_server_even_where_it_is_narrow() -> None:
    engine = EngineReading("m", 10.0, server_kind="llama.cpp", running=3.0, generation_tokens_per_s=60.0)
    view = replace(ready(), engines=(engine,))
    rows, _ = server_rows(snapshot(view), view, 46, 3, UNICODE)
    assert "llama.cpp, not vLLM" in rows[0].text


@pytest.mark.parametrize(
    ("kind", "shown"), [("vllm", "vLLM 0.4.6"), ("sglang", "sglang 0.4.6"), (None, "0.4.6")]
)  # fmt: skip
def test_a_version_stands_under_the_name_of_what_answers(kind: str | None, shown: str) -> None:
    status = ready().status
    foreign = replace(status, state=ServerState.FOREIGN, version="0.4.6", simulated=False)
    engines = (EngineReading("m", 2.0, server_kind=kind),) if kind else ()
    view = replace(ready(), status=foreign, engines=engines)
    rows = [line.text.split("version", 1)[1].strip() for line in explain_rows(snapshot(view), view, 120, UNICODE)
            if line.text.strip().startswith("version")]  # fmt: skip
    assert rows == [shown]
