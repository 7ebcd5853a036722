"""Whether models fit cards, against cases that people know from practice."""

from __future__ import annotations

import pytest

from vtop.errors import VtopError
from vtop.fit import FitReport, OptimizationAdvice, fit
from vtop.hardware import find_card
from vtop.presets import ServerSpec, Speculative
from vtop.setups import kv_value_bytes
from vtop.vllm.number_formats import KV_CACHE_DTYPES


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


GB, GIB = 1e9, 2**30


@pytest.mark.parametrize(
    ("model", "gpu", "spec", "context", "weights_gb", "kv_token_bytes", "read_gb"),
    [
        # Weights: published parameters x 2 B. KV: 2 x KV heads x head size x 2 B x layers. Read: weights less the
        # input embedding (vocabulary x width x 2 B), plus the cache of 16 requests.
        ("Qwen/Qwen2.5-7B-Instruct", "RTX 4090", {}, 4096, 15.231, 2 * 4 * 128 * 2 * 28, 15.231 - 1.090 + 3.758),
        ("meta-llama/Llama-3.1-8B-Instruct", "H100", {}, 2048, 16.061, 2 * 8 * 128 * 2 * 32, 16.061 - 1.051 + 4.295),
        ("Qwen/Qwen2.5-0.5B-Instruct", "RTX 3060", {}, 1024, 0.988, 2 * 2 * 64 * 2 * 24, 0.988 + 0.201),
        # Over 4 GPUs each holds a quarter of the weights and two of the eight KV heads.
        ("Qwen/Qwen2.5-32B-Instruct", "RTX 4090", {"tensor_parallel": 4}, 1024, 65.528 / 4, 2 * 2 * 128 * 2 * 64,
         (65.528 - 1.557) / 4 + 1.074),
        # An fp8 cache is half.
        ("Qwen/Qwen2.5-7B-Instruct", "H100", {"kv_cache_dtype": "fp8"}, 8192, 15.231, 4 * 128 * 2 * 28,
         15.231 - 1.090 + 3.758),
        # 16 tokens wake nearly all of 8 experts (1 - 0.75^16 = 99 %); no more than all weights are read.
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "H200", {}, 1024, 93.406, 2 * 8 * 128 * 2 * 32,
         (93.406 - 0.262 - 90.194) + 0.98998 * 90.194 + 2.147),
    ],
)  # fmt: skip
def test_bytes_and_floors_by_hand(
    model: str, gpu: str, spec: dict[str, object], context: int, weights_gb: float, kv_token_bytes: int, read_gb: float
) -> None:
    found = report(model, gpu, context=context, concurrency=16, **spec)
    assert found.weights_bytes == pytest.approx(weights_gb * GB, rel=1e-3)
    assert found.kv_wanted_bytes == pytest.approx(16 * context * kv_token_bytes)
    assert found.tpot_floor_s is not None and found.card.bandwidth_bytes_per_s
    # Tensor parallelism: two all-reduces a layer of 16 x 5120 x 2 B, 2 x 3/4 of it out of each GPU, by PCIe at 25 GB/s.
    link_s = 64 * 2 * 16 * 5120 * 2 * 1.5 / 25e9 if "tensor_parallel" in spec else 0.0
    assert found.tpot_floor_s == pytest.approx(read_gb * GB / found.card.bandwidth_bytes_per_s + link_s, rel=0.01)


def test_four_bits_by_hand() -> None:
    """6.53 billion linear weights at half a byte and 0.031 B of scales and zeros; embedding and head at 2 bytes."""
    found = report("Qwen/Qwen2.5-7B-Instruct-AWQ", "RTX 3060")
    assert found.weights_bytes == pytest.approx(6.5256e9 * 0.515625 + 1.0900e9 * 2, rel=0.02)


def test_the_capacity_is_what_weights_and_overhead_leave_with_its_uncertainty() -> None:
    found = report("Qwen/Qwen2.5-7B-Instruct", "RTX 4090", context=4096, gpu_memory_utilization=0.9)
    usable = 24 * GIB * 0.9
    assert found.memory_bytes == pytest.approx(usable, rel=0.01)
    for overhead, tokens in (
        (found.overhead_bytes, found.kv_capacity_tokens),
        (found.overhead_high_bytes, found.kv_capacity_low_tokens),
        (found.overhead_low_bytes, found.kv_capacity_high_tokens),
    ):
        left = found.memory_bytes - found.weights_bytes - overhead
        assert tokens == pytest.approx(left / 57_344, rel=1e-3)
    assert (found.fits, found.sure) == (True, False), "16 x 4096 tokens fit unless the overhead is at its highest"


def test_far_from_the_edge_it_is_sure() -> None:
    far = report("meta-llama/Llama-3.1-70B-Instruct", "RTX 4090")
    assert (far.fits, far.sure) == (False, True)
    small = report("Qwen/Qwen2.5-0.5B-Instruct", "H100")
    assert (small.fits, small.sure) == (True, True)


def test_floors_of_what_does_not_fit_are_those_it_would_have() -> None:
    """Not those of the one request that does not fit either: batching would pay on a card that holds the model."""
    found = report("meta-llama/Llama-3.1-70B-Instruct", "RTX 4090", concurrency=16)
    assert (found.requests_at_once, found.batch) == (0.0, 16.0)
    assert advice(found, "continuous batching").pays is True


def test_the_arithmetic_adds_up_in_its_own_words() -> None:
    terms = dict(report("Qwen/Qwen2.5-7B-Instruct", "RTX 4090", context=4096, concurrency=16).arithmetic)
    assert "57,344 B a token x 4096 tokens x 16 requests = 3.50 GiB" in terms["KV cache"]
    assert "weights 14.1 GB (all but the input embedding) + KV 3.76 GB of 16 requests" in terms["decode step"]
    assert terms["decode step"].endswith("TPOT floor 17.8 ms")
    assert terms["prefill"].startswith("53.5 TFLOP (2 a parameter and token) + 3.4 TFLOP attention")


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


@pytest.mark.parametrize(("cache_bytes", "fits"), [(5_000_000_000, True), (15_000_000_000, False)])
def test_a_cache_of_a_given_size_must_fit_beside_the_weights(cache_bytes: int, fits: bool) -> None:
    """vLLM allocates what it is told, whatever share was set: 15.2 GB of weights and 15 GB of cache are not 24 GB."""
    found = report("Qwen/Qwen2.5-7B", "RTX 4090", 4096, 4, kv_cache_memory_bytes=cache_bytes)
    assert (found.fits, found.sure) == (fits, True)
    assert ("lower kv_cache_memory_bytes" in found.selection[0]) is not fits


def test_the_cache_of_a_draft_model_takes_its_part_of_the_pool() -> None:
    """57,344 B a token of the model and 12,288 B of the draft: capacity in tokens and in requests are one figure."""
    plan = Speculative(method="draft_model", num_tokens=5, model="Qwen/Qwen2.5-0.5B-Instruct")
    found = report("Qwen/Qwen2.5-7B", "RTX 4090", 4096, 16, speculative=plan)
    assert found.kv_wanted_bytes == 16 * 4096 * (57_344 + 12_288)
    assert found.kv_capacity_tokens == pytest.approx(found.requests_at_once * 4096)


@pytest.mark.parametrize(
    ("dtype", "value_bytes"),
    [
        (None, 2.0), ("fp8", 1.0), ("nvfp4", 0.5), ("int4_per_token_head", 0.5), ("turboquant_k8v4", 0.75),
        ("turboquant_4bit_nc", 0.5), ("turboquant_k3v4_nc", 0.4375), ("turboquant_3bit_nc", 0.375),
        ("ultraquant_4bit", 0.5), ("bfloat16", 2.0),
    ],
)  # fmt: skip
def test_bytes_of_a_cached_value(dtype: str | None, value_bytes: float) -> None:
    assert report("Qwen/Qwen2.5-7B", "H100", kv_cache_dtype=dtype).setup.kv_value_bytes == value_bytes


def test_no_kv_cache_type_of_any_version_is_taken_for_16_bit_unless_it_is() -> None:
    sixteen = {name for name in KV_CACHE_DTYPES if kv_value_bytes(name) == 2.0}
    assert sixteen == {"auto", "bfloat16", "float16"}
