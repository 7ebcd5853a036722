"""The arithmetic against figures worked out by hand from datasheets and published dimensions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop import roofline
from vtop.hardware import Card
from vtop.known_models import known_shape
from vtop.model_shapes import ModelShape, quantization_named
from vtop.roofline import Setup


def card(name: str, gbs: float, bf16: float, fp8: float | None, int8: float, nvlink: float | None = None) -> Card:
    return Card(
        name=name,
        memory_bytes=24 * 2**30,
        bandwidth_bytes_per_s=gbs * 1e9,
        bf16_flops=bf16 * 1e12,
        fp8_flops=fp8 * 1e12 if fp8 else None,
        int8_ops=int8 * 1e12,
        nvlink_bytes_per_s=nvlink,
        power_limit_w=450.0,
    )


RTX_4090 = card("RTX 4090", 1008, 165.2, 330.3, 660.6)
H100 = card("H100", 3350, 989, 1979, 1979, 900e9)
A100 = card("A100", 2039, 312, None, 624, 600e9)


def shape(name: str) -> ModelShape:
    found = known_shape(name)
    assert found is not None
    return found


QWEN_7B = Setup(shape("Qwen/Qwen2.5-7B"))


def test_a_7b_model_in_bf16_weighs_15_2_gb() -> None:
    assert roofline.weight_bytes(QWEN_7B) == pytest.approx(15.23e9, rel=1e-3)


def test_awq_keeps_embedding_and_head_in_16_bit() -> None:
    awq = Setup(shape("Qwen/Qwen2.5-7B-Instruct-AWQ"), quantization_named("awq") or pytest.fail())
    # The published AWQ checkpoint is 5.57 GB: 6.5 billion packed weights and 1.1 billion in 16 bit.
    assert roofline.weight_bytes(awq) == pytest.approx(5.57e9, rel=0.01)


def test_gpt_oss_quantizes_only_its_experts() -> None:
    model = shape("openai/gpt-oss-20b")
    # 12.8 GiB is the size that the model's card gives for the MXFP4 checkpoint.
    assert roofline.weight_bytes(Setup(model, model.quantization or pytest.fail())) == pytest.approx(13.76e9, rel=0.01)


def test_a_decode_step_reads_everything_but_the_embedding() -> None:
    cost = roofline.decode_cost(QWEN_7B, batch=1, context=1000)
    assert cost.weight_bytes == pytest.approx(2 * (7_615_616_512 - 152_064 * 3584))
    assert cost.kv_read_bytes == 1000 * 57_344
    assert cost.kv_write_bytes == 57_344


def test_tpot_floor_at_batch_one_is_bytes_over_bandwidth() -> None:
    floor = roofline.tpot_floor_s(QWEN_7B, RTX_4090, 1, 0)
    assert floor == pytest.approx(14.14e9 / 1008e9, rel=1e-3)


def test_decoding_one_sequence_uses_a_few_percent_of_the_flops() -> None:
    cost = roofline.decode_cost(QWEN_7B, 1, 1000)
    time = roofline.step_time(QWEN_7B, RTX_4090, cost)
    assert time is not None
    assert time.bound == "bandwidth"
    assert time.compute_s / time.memory_s < 0.01


def test_prefill_of_a_long_prompt_is_compute_bound() -> None:
    time = roofline.step_time(QWEN_7B, RTX_4090, roofline.prefill_cost(QWEN_7B, 2048))
    assert time is not None
    assert time.bound == "compute"
    # 2 x 6.5 billion parameters x 2048 tokens over 165 TFLOPS, and a little for attention.
    assert roofline.ttft_floor_s(QWEN_7B, RTX_4090, 2048) == pytest.approx(0.163, rel=0.03)


def test_a_cached_prefix_leaves_only_the_rest_to_compute() -> None:
    whole = roofline.ttft_floor_s(QWEN_7B, RTX_4090, 2048)
    rest = roofline.ttft_floor_s(QWEN_7B, RTX_4090, 2048, cached=2032)
    assert whole is not None and rest is not None
    assert rest < whole / 8


def test_critical_batch_is_the_ratio_of_the_peaks() -> None:
    # Weights are read once (2 bytes each) and multiplied once a token (2 FLOPs each): peak FLOPs over peak bytes.
    assert roofline.critical_batch(QWEN_7B, RTX_4090) == pytest.approx(165.2e12 / 1008e9, rel=0.01)


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    four = Setup(shape("Qwen/Qwen2.5-7B"), tensor_parallel=4)
    seven = Setup(shape("Qwen/Qwen2.5-7B"), tensor_parallel=7)
    assert roofline.kv_bytes_per_token(four) == 57_344 / 4
    assert roofline.kv_bytes_per_token(seven) == 57_344 / 4


def test_mla_cache_is_not_split_by_tensor_parallelism() -> None:
    model = shape("deepseek-ai/DeepSeek-V3")
    alone, eight = Setup(model), Setup(model, tensor_parallel=8)
    assert roofline.kv_bytes_per_token(alone) == roofline.kv_bytes_per_token(eight) == 61 * 576 * 2


def test_fp8_cache_halves_the_bytes() -> None:
    assert roofline.kv_bytes_per_token(Setup(QWEN_7B.shape, kv_value_bytes=1.0)) == 57_344 / 2


def test_a_batch_wakes_more_experts_than_one_token() -> None:
    model = shape("mistralai/Mixtral-8x7B-v0.1")
    assert roofline.experts_touched(model, 1) == pytest.approx(2)
    assert roofline.experts_touched(model, 16) == pytest.approx(8 * (1 - 0.75**16))
    one = roofline.weight_read_bytes(Setup(model), 1)
    many = roofline.weight_read_bytes(Setup(model), 64)
    assert one < 0.31 * many


def test_sliding_layers_stop_reading_at_the_window() -> None:
    model = shape("openai/gpt-oss-20b")
    setup = Setup(model)
    each = roofline.kv_bytes_per_token_layer(setup)
    assert roofline.decode_cost(setup, 1, 10_000).kv_read_bytes == each * (12 * 10_000 + 12 * 128)
    assert roofline.kv_bytes_for_context(setup, 10_000) == each * (12 * 10_000 + 12 * 128)


def test_fp8_weights_use_the_fp8_peak_only_where_the_card_has_one() -> None:
    assert roofline.peak_flops(H100, "fp8") == 1979e12
    assert roofline.peak_flops(A100, "fp8") == 312e12


def test_capacity_of_a_7b_model_on_24_gib() -> None:
    pool = roofline.kv_pool_bytes(QWEN_7B, RTX_4090.memory_bytes, 0.9)
    tokens = roofline.kv_capacity_tokens(QWEN_7B, pool)
    # 23.2 GB usable less 15.2 GB of weights less about 1.5 GB: some 6.4 GB at 57 kB a token.
    assert 95_000 < tokens < 125_000


def test_a_model_that_does_not_fit_has_no_capacity() -> None:
    big = Setup(shape("meta-llama/Llama-3.1-70B"))
    pool = roofline.kv_pool_bytes(big, RTX_4090.memory_bytes)
    assert pool < 0
    assert roofline.kv_capacity_tokens(big, pool) == 0


def test_tensor_parallel_splits_the_weights_and_pays_for_the_link() -> None:
    one, four = Setup(shape("Qwen/Qwen2.5-32B")), Setup(shape("Qwen/Qwen2.5-32B"), tensor_parallel=4)
    assert roofline.weight_bytes(four) == pytest.approx(roofline.weight_bytes(one) / 4)
    cost = roofline.decode_cost(four, 16, 500)
    # Two all-reduces a layer of 16 x 5120 16-bit values, three quarters of them twice.
    assert cost.link_bytes == 64 * 2 * 16 * 5120 * 2 * 1.5
    fast, slow = (roofline.step_time(four, either, cost) for either in (H100, RTX_4090))
    assert fast is not None and slow is not None
    assert fast.link_s < slow.link_s


def test_mean_acceptance_length() -> None:
    assert roofline.acceptance_length(0.0, 4) == 1.0
    assert roofline.acceptance_length(1.0, 4) == 5.0
    assert roofline.acceptance_length(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)


def test_free_guesses_that_all_fail_cost_little_at_batch_one() -> None:
    gain = roofline.speculation_gain(QWEN_7B, RTX_4090, 1, 500, 5, 0.0)
    assert gain is not None
    assert 0.97 < gain.speedup < 1.0


def test_a_draft_model_has_a_break_even_acceptance() -> None:
    draft = Setup(shape("Qwen/Qwen2.5-0.5B"))
    gain = roofline.speculation_gain(QWEN_7B, RTX_4090, 1, 500, 4, 0.7, draft)
    assert gain is not None
    even = roofline.break_even_acceptance(gain, 4)
    assert even is not None
    assert 0.1 < even < 0.4
    at_even = roofline.speculation_gain(QWEN_7B, RTX_4090, 1, 500, 4, even, draft)
    assert at_even is not None
    assert at_even.speedup == pytest.approx(1.0, abs=1e-6)


def test_speculation_stops_paying_in_a_large_batch() -> None:
    small = roofline.speculation_gain(QWEN_7B, RTX_4090, 1, 200, 5, 0.6)
    large = roofline.speculation_gain(QWEN_7B, RTX_4090, 256, 200, 5, 0.6)
    assert small is not None and large is not None
    assert small.speedup > 2
    assert large.speedup < 1


@given(batch=st.integers(1, 512), context=st.integers(0, 8000))
def test_more_work_never_takes_less_time(batch: int, context: int) -> None:
    def floor(many: int, long: int) -> float:
        time = roofline.step_time(QWEN_7B, RTX_4090, roofline.decode_cost(QWEN_7B, many, long))
        assert time is not None
        return time.total_s

    assert floor(batch, context) <= floor(batch + 1, context)
    assert floor(batch, context) <= floor(batch, context + 1)


@given(tokens=st.integers(2, 6000), split=st.integers(1, 5999))
def test_chunked_prefill_does_the_same_arithmetic_as_a_whole_one(tokens: int, split: int) -> None:
    split = min(split, tokens - 1)
    whole = roofline.Pass()
    whole.add(0, tokens)
    parts = roofline.Pass()
    parts.add(0, split, 0)
    parts.add(split, tokens - split)
    assert parts.pairs == pytest.approx(whole.pairs)
    assert parts.tokens == whole.tokens and parts.sampled == whole.sampled
