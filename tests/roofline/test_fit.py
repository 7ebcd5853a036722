"""Whether models fit cards, against cases that people know from practice."""

from __future__ import annotations

import pytest

from vtop.errors import VtopError
from vtop.fit import FitReport, OptimizationAdvice, fit
from vtop.hardware import find_card
from vtop.presets import ServerSpec, Speculative


def report(
    model: str, gpu: str, context: int | None = None, concurrency: int | None = None, **spec: object
) -> FitReport:
    card = find_card(gpu)
    assert card is not None
    return fit(None, ServerSpec(model=model, **spec), card, context, concurrency)  # type: ignore[arg-type]


def advice(found: FitReport, name: str) -> OptimizationAdvice:
    return next(item for item in found.advice if name in item.name)


@pytest.mark.parametrize(
    ("model", "gpu", "spec", "fits"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "RTX 4090", {}, True),
        ("Qwen/Qwen2.5-7B-Instruct", "RTX 3060", {}, False),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "RTX 3060", {"max_num_seqs": 4}, True),
        ("Qwen/Qwen2.5-32B-Instruct", "RTX 4090", {}, False),
        ("Qwen/Qwen2.5-32B-Instruct", "RTX 4090", {"tensor_parallel": 4}, True),
        ("meta-llama/Llama-3.1-70B-Instruct", "H100", {}, False),
        ("openai/gpt-oss-120b", "H100", {}, True),
    ],
)
def test_what_fits(model: str, gpu: str, spec: dict[str, object], fits: bool) -> None:
    assert report(model, gpu, **spec).fits is fits


def test_what_does_not_fit_is_told_what_to_do() -> None:
    found = report("meta-llama/Llama-3.1-70B-Instruct", "RTX 4090")
    assert found.selection[0].startswith("Does not fit RTX 4090")
    assert "the weights alone need" in found.warnings[0]
    assert advice(found, "awq").pays is True


def test_one_request_at_a_time_is_not_what_vllm_is_for() -> None:
    found = report("Qwen/Qwen2.5-7B-Instruct", "RTX 4090", concurrency=1)
    assert "Ollama" in found.selection[0]
    assert advice(found, "continuous batching").pays is False


def test_more_requests_than_the_cache_holds_wait() -> None:
    found = report("Qwen/Qwen2.5-7B-Instruct", "RTX 4090", context=16_384, concurrency=64)
    assert not found.fits
    assert 6 < found.requests_at_once < 8
    assert "rest wait" in found.selection[0]


def test_fp8_cache_pays_at_long_context_and_not_at_short() -> None:
    long = report("Qwen/Qwen2.5-7B-Instruct", "H100", context=16_384, concurrency=32)
    short = report("Qwen/Qwen2.5-7B-Instruct", "H100", context=256, concurrency=4)
    assert advice(long, "fp8 KV cache").pays is True
    assert advice(short, "fp8 KV cache").pays is False


def test_speculation_states_its_break_even() -> None:
    found = report(
        "Qwen/Qwen2.5-7B-Instruct", "RTX 4090", concurrency=1,
        speculative=Speculative(method="draft_model", model="Qwen/Qwen2.5-0.5B-Instruct", num_tokens=4),
    )  # fmt: skip
    said = advice(found, "Qwen2.5-0.5B")
    assert said.gain is not None and said.gain > 1.5
    assert "break-even" in said.why


def test_speculation_does_not_pay_in_a_batch_that_fills_the_arithmetic() -> None:
    found = report("Qwen/Qwen2.5-7B-Instruct", "RTX 4090", context=256, concurrency=256)
    assert advice(found, "n-gram").gain is not None
    assert (advice(found, "n-gram").gain or 2) < 1


def test_uncertainty_brackets_the_estimate() -> None:
    found = report("Qwen/Qwen2.5-7B-Instruct", "RTX 4090")
    assert found.overhead_low_bytes < found.overhead_bytes < found.overhead_high_bytes


def test_a_context_beyond_the_model_is_cut_to_it() -> None:
    assert report("Qwen/Qwen2.5-7B-Instruct", "H100", context=1_000_000).context == 32_768


def test_an_unknown_model_says_what_to_give_instead() -> None:
    with pytest.raises(VtopError, match="not known"):
        report("someone/Model-9B", "RTX 4090")


def test_heads_that_do_not_divide_are_named() -> None:
    assert any("do not divide" in text for text in report("Qwen/Qwen2.5-7B", "H100", tensor_parallel=3).warnings)
