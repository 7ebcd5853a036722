"""Pages that misled somebody's monitor, each with the values that are right."""

from __future__ import annotations

import json

import pytest
from metric_pages import Watcher, case, only, over_window, parse

from vtop import units
from vtop.telemetry.to_json import engine_to_json


def pair(name: str) -> list[bytes]:
    return [case(f"{name}_a.txt"), case(f"{name}_b.txt")]


def test_finished_requests_come_from_the_success_counter_not_from_the_count_of_first_tokens() -> None:
    engine = only(over_window(pair("ttft_count_is_not_requests")))
    assert engine.window_s == 10
    assert sum(engine.finished_by_reason.values()) == 9
    assert engine.requests_per_s == pytest.approx(0.9)
    assert engine.generation_tokens_per_s == pytest.approx(420.0), "from the counter, not from the avg_ gauge (77.7)"
    assert engine.prompt_tokens_per_s == pytest.approx(70.0)
    assert engine.ttft is not None
    assert engine.ttft.p95 is not None
    assert engine.ttft.count == 20
    assert engine.ttft.mean_s == pytest.approx(0.36)
    assert engine.ttft.p95.value_s == pytest.approx(0.875), "of the window; since the start it would be 0.059"
    assert (engine.ttft.p95.low_s, engine.ttft.p95.high_s) == (0.75, 1.0)


def test_names_that_changed_in_0_11_are_found_and_names_that_went_away_are_absent_not_zero() -> None:
    engine = only(over_window(pair("renamed_metrics")))
    assert engine.kv_usage == pytest.approx(0.4375)
    assert engine.tpot is not None
    assert engine.tpot.p95 is not None
    assert engine.tpot.p50 is not None
    assert engine.tpot.p95.value_s == pytest.approx(0.0625)
    assert engine.tpot.p50.value_s == pytest.approx(0.020714285714285713)
    assert engine.tpot.count == 40
    assert engine.itl is not None
    assert engine.itl.mean_s == pytest.approx(0.02)
    assert engine.itl.count == 5000
    assert engine.generation_tokens_per_s == pytest.approx(504.0)
    assert engine.swapped is None
    assert engine.missing["swapped"]
    assert engine.requests_per_s is None, "a page without the success counter does not say that nothing finished"


def test_data_parallel_engines_are_added_up_but_never_their_percentages() -> None:
    engine = only(over_window(pair("data_parallel")))
    assert engine.engines == 2
    assert (engine.running, engine.waiting) == (4, 7)
    assert engine.kv_usage == pytest.approx(0.5)
    assert engine.kv_usage_max == pytest.approx(0.8)
    assert engine.generation_tokens_per_s == pytest.approx(300.0)
    assert engine.ttft is not None
    assert engine.ttft.p95 is not None
    assert engine.ttft.count == 20
    assert engine.ttft.p95.value_s == pytest.approx(1.75), "from summed buckets; the mean of both engines is 1.169"
    assert (engine.ttft.p95.low_s, engine.ttft.p95.high_s) == (1.0, 2.5)


def test_a_restart_gives_no_negative_rate_and_the_next_window_is_normal() -> None:
    watcher = Watcher()
    watcher.see(0, case("restart_a.txt"))
    after = only(watcher.see(10, case("restart_b.txt")))
    assert after.restarted
    assert after.generation_tokens_per_s is None
    assert after.ttft is None
    assert "began again" in after.missing["generation_tokens_per_s"]
    assert after.generation_tokens_total == 1300
    later = only(watcher.see(20, case("restart_c.txt")))
    assert not later.restarted
    assert later.generation_tokens_per_s == pytest.approx(250.0)
    assert later.ttft is not None
    assert later.ttft.p95 is not None
    assert later.ttft.p50 is not None
    assert later.ttft.count == 10
    assert later.ttft.p95.value_s == pytest.approx(0.875)
    assert later.ttft.p50.value_s == pytest.approx(0.095)


def test_the_newest_lora_statement_holds_and_its_time_is_no_count() -> None:
    engine = only(over_window([case("lora.txt")]))
    assert engine.lora_running == ("chat-lora", "sql-lora")
    assert engine.lora_waiting == ()
    assert engine.lora_max == 4


def test_the_order_of_lora_statements_does_not_matter() -> None:
    lines = case("lora.txt").decode().splitlines()
    engine = only(over_window([("\n".join(reversed(lines)) + "\n").encode()]))
    assert engine.lora_running == ("chat-lora", "sql-lora")


def test_label_values_are_unescaped_and_models_are_never_merged() -> None:
    readings = over_window([case("escapes.txt")])
    assert {reading.model_name: reading.running for reading in readings if reading.running is not None} == {
        "C:\\models\\qwen": 1,
        "D:\\": 2,
        'org/chat "v2", {beta} # 1': 3,
        "line1\nline2": 4,
        "[/bold] x": 5,
        "模型/中文": 6,
    }
    assert {reading.model_name: reading.waiting for reading in readings if reading.waiting is not None} == {
        "org/spaces": 4
    }


def test_a_value_that_is_not_finite_takes_only_itself_away() -> None:
    engine = only(over_window([case("nan.txt")]))
    assert engine.kv_usage is None
    assert engine.running == 2
    assert engine.generation_tokens_total is None
    assert engine.prompt_tokens_total == 12000
    text = json.dumps(engine_to_json(engine), allow_nan=False)
    assert "NaN" not in text


def test_a_histogram_with_only_the_inf_bucket_has_a_mean_and_no_quantile() -> None:
    """The counts of the page itself, as if all seven had come in the window."""
    empty = b'vllm:num_requests_running{engine="0",model_name="example/chat-8b"} 0\n'
    engine = only(over_window([empty, case("nan.txt")]))
    assert engine.ttft is not None
    assert (engine.ttft.count, engine.ttft.mean_s) == (7, 0.5)
    assert (engine.ttft.p50, engine.ttft.p95) == (None, None)
    assert engine.e2e is None, "nothing observed: no 0 / 0"


def test_exemplars_timestamps_and_eof_are_read_past() -> None:
    page = parse(case("openmetrics.txt"))
    assert page.complete
    values = dict(zip((series.name for series in page.layout.series), page.values, strict=True))
    assert values["vllm:num_requests_running"] == 4, "not its timestamp"
    assert values["vllm:generation_tokens_total"] == 640
    assert "vllm:generation_tokens_created" not in values
    young = b'vllm:num_requests_running{model_name="example/chat-8b"} 0\n'
    found = only(over_window([young, case("openmetrics.txt")])).ttft
    assert found is not None
    assert found.count == 10
    assert found.p50 is not None
    assert found.p95 is not None
    assert found.mean_s == pytest.approx(0.19)
    assert found.p50.value_s == pytest.approx(0.15)
    assert found.p95.value_s is None, "the rank lies above the last finite bound"
    assert f"> {units.duration(found.p95.low_s)}" == "> 250 ms"


def test_two_models_behind_one_port_are_two_readings() -> None:
    coder, embed = over_window(pair("two_models"))
    assert (coder.model_name, coder.running, coder.kv_usage) == ("example/coder-32b", 4, 0.9)
    assert (embed.model_name, embed.running, embed.kv_usage) == ("example/embed-1b", 1, 0.1)
    assert coder.ttft is not None
    assert coder.ttft.p95 is not None
    assert embed.ttft is not None
    assert embed.ttft.p95 is not None
    assert coder.ttft.p95.value_s == pytest.approx(2.125)
    assert embed.ttft.p95.value_s == pytest.approx(0.009525)


def test_one_model_on_two_backends_of_a_router_is_added_up_and_no_backend_is_dropped() -> None:
    """An unknown label (`server`) keeps lines apart that are otherwise alike."""

    def page(first: int, second: int) -> bytes:
        lines = []
        for server, tokens, usage in (("a", first, 0.2), ("b", second, 0.6)):
            labels = f'model_name="m",server="{server}"'
            lines += [
                f"vllm:num_requests_running{{{labels}}} 2",
                f"vllm:kv_cache_usage_perc{{{labels}}} {usage}",
                f"vllm:generation_tokens_total{{{labels}}} {tokens}",
            ]
        return ("\n".join(lines) + "\n").encode()

    engine = only(over_window([page(100, 7000), page(400, 7500)]))
    assert (engine.engines, engine.running, engine.generation_tokens_per_s) == (2, 4, 80)
    assert (engine.kv_usage, engine.kv_usage_max) == (pytest.approx(0.4), 0.6)


def test_the_old_time_per_output_token_is_inter_token_latency() -> None:
    before = only(over_window([case("tpot_meaning_before_a.txt"), case("tpot_meaning_before_b.txt")], 30))
    after = only(over_window([case("tpot_meaning_after_a.txt"), case("tpot_meaning_after_b.txt")], 30))
    assert before.itl is not None
    assert after.itl is not None
    assert after.tpot is not None
    assert before.itl.mean_s == pytest.approx(0.015)
    assert before.tpot is None
    assert before.missing["tpot"]
    assert "time_per_output_token" in before.notes["itl"]
    assert after.itl.mean_s == pytest.approx(0.015)
    assert after.tpot.mean_s == pytest.approx(0.022)


def test_names_that_begin_alike_are_not_added_up() -> None:
    engine = only(over_window(pair("look_alike_names")))
    assert (engine.running, engine.waiting) == (4, 6)
    assert dict(engine.waiting_by_reason) == {"capacity": 5, "deferred": 1}
    assert engine.prompt_tokens_per_s == pytest.approx(500.0)
    assert engine.generation_tokens_per_s == pytest.approx(240.0)
    assert engine.finished_by_reason == {"stop": 15, "length": 3, "abort": 2, "error": 3, "repetition": 1}
    assert engine.requests_per_s == pytest.approx(1.8), "stop and length only"
    assert engine.rejected == 4
    assert engine.prefix_hit_rate == pytest.approx(0.4)
    assert engine.external_hit_rate == pytest.approx(0.75)
    assert engine.sleep_state == "awake"
    assert engine.tokens_per_step is not None
