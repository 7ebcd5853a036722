"""Shapes against what the models' authors publish: parameter counts and KV bytes a token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vtop.errors import VtopError
from vtop.known_models import find_shape, known_model_names, known_shape
from vtop.model_shapes import quantization_from_config, quantization_named, shape_from_config, shape_from_directory
from vtop.roofline import Setup, kv_bytes_per_token

PUBLISHED_PARAMETERS = {
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED_PARAMETERS.items())
def test_parameters_match_the_published_count(name: str, parameters: int) -> None:
    shape = known_shape(name)
    assert shape is not None
    assert shape.parameters == parameters


def test_deepseek_v3_is_671_billion_of_which_37_are_active() -> None:
    shape = known_shape("deepseek-ai/DeepSeek-V3")
    assert shape is not None
    assert shape.parameters == pytest.approx(671.03e9, rel=1e-4)
    assert shape.active_parameters + 2 * shape.head_parameters == pytest.approx(37.5e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("meta-llama/Llama-3.1-8B", 131_072),
        ("Qwen/Qwen2.5-7B", 57_344),
        ("meta-llama/Llama-3.1-70B", 327_680),
        ("meta-llama/Llama-2-7b", 524_288),
        ("deepseek-ai/DeepSeek-V3", 61 * 576 * 2),
    ],
)
def test_kv_bytes_of_a_token(name: str, kv_bytes: int) -> None:
    shape = known_shape(name)
    assert shape is not None
    assert kv_bytes_per_token(Setup(shape)) == kv_bytes


@pytest.mark.parametrize(
    ("name", "like", "quantization"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B", "bf16"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B", "awq"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-7B", "gptq"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-7B", "int8-weights"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B", "bf16"),
        ("/data/models/Qwen2.5-7B-Instruct/", "Qwen/Qwen2.5-7B", "bf16"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "meta-llama/Llama-3.1-8B", "int8"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "meta-llama/Llama-3.1-8B", "fp8"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3", "bf16"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1", "bf16"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B", "bf16"),
        ("gpt-oss-20b", "openai/gpt-oss-20b", "mxfp4"),
    ],
)
def test_a_checkpoint_is_recognised_by_its_name(name: str, like: str, quantization: str) -> None:
    shape, expected = known_shape(name), known_shape(like)
    assert shape is not None and expected is not None
    assert shape.parameters == expected.parameters
    assert shape.quantization is not None and shape.quantization.name == quantization


def test_an_unknown_model_is_none_and_not_a_guess() -> None:
    assert known_shape("someone/Model-9B") is None


def test_every_row_of_the_table_is_found_by_its_own_name() -> None:
    for name in known_model_names():
        shape = known_shape(name)
        assert shape is not None and name in shape.source


def test_a_multimodal_config_is_read_through_text_config(tmp_path: Path) -> None:
    text = {
        "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 1000, "model_type": "gemma3_text", "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    shape = find_shape(str(tmp_path))
    assert shape is not None
    assert (shape.layers, shape.sliding_layers, shape.sliding_window) == (4, 2, 512)


@pytest.mark.parametrize("content", ["{", "[]", '{"hidden_size": 64}'])
def test_a_config_that_cannot_be_used_says_so(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(VtopError):
        shape_from_directory(tmp_path)


@pytest.mark.parametrize(
    ("table", "name", "bytes_per_weight", "compute"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 0.5 + 2.5 / 128, "bf16"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "gptq", 1 + 3 / 128, "bf16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 1.0, "fp8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"a": 1}}
                },
            },
            "int8",
            1.0,
            "int8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {"weights": {"num_bits": 4, "type": "int", "group_size": 64, "symmetric": True}}
                },
            },
            "w4a16",
            0.5 + 2 / 64,
            "bf16",
        ),
    ],
)
def test_quantization_config(table: dict[str, object], name: str, bytes_per_weight: float, compute: str) -> None:
    scheme = quantization_from_config({"quantization_config": table})
    assert scheme is not None
    assert (scheme.name, scheme.compute) == (name, compute)
    assert scheme.bytes_per_weight == pytest.approx(bytes_per_weight)


def test_a_scheme_that_is_not_understood_is_none() -> None:
    assert quantization_from_config({"quantization_config": {"quant_method": "brand-new"}}) is None
    assert quantization_named("gguf") is None


def test_a_missing_dimension_is_named() -> None:
    with pytest.raises(VtopError, match="num_attention_heads"):
        shape_from_config({"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 9}, name="tiny")


LLAMA_4 = {
    "model_type": "llama4_text",
    "num_hidden_layers": 48,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "vocab_size": 202048,
    "num_experts_per_tok": 1,
}


@pytest.mark.parametrize(
    ("experts", "step", "billions", "active_billions"),
    [(16, 1, 107.8, 17.2), (128, 2, 400.7, 17.2)],  # Scout and Maverick, without what sees pictures
)
def test_llama_4_has_a_shared_expert_and_maverick_experts_in_every_second_layer(
    experts: int, step: int, billions: float, active_billions: float
) -> None:
    text = {**LLAMA_4, "num_local_experts": experts, "interleave_moe_layer_step": step}
    shape = shape_from_config({"model_type": "llama4", "text_config": text})
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.1)
    assert (shape.active_parameters + 2 * shape.head_parameters) / 1e9 == pytest.approx(active_billions, abs=0.1)


def test_layers_with_experts_may_be_listed_one_by_one() -> None:
    listed = shape_from_config({**LLAMA_4, "num_local_experts": 16, "moe_layer_freq": [0, 0] + [1] * 46})
    assert listed.moe_layers == 46


def test_experts_of_which_it_is_not_said_how_many_work_are_not_guessed() -> None:
    """Taken for a dense model, it would weigh a tenth of what it does."""
    with pytest.raises(VtopError, match="does not say how many of its 64 experts"):
        shape_from_config({**LLAMA_4, "num_experts_per_tok": None, "moe_num_experts": 64})


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim", "intermediate_size", "kv_lora_rank", "num_experts"])
@pytest.mark.parametrize("value", [[1, 2], "x", float("nan")])
def test_a_dimension_that_is_no_number_is_an_error_in_words(key: str, value: object) -> None:
    with pytest.raises(VtopError, match="no whole number"):
        shape_from_config({**LLAMA_4, key: value})
