"""Shapes of well-known models, so that nothing has to be downloaded to talk about them.

Each row is the part that matters of the model's public `config.json` on the Hugging Face hub (the id is the source);
it goes through the same reader as a file on disk.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from vtop.model_shapes import ModelShape, Quantization, quantization_named, shape_from_config, shape_from_directory

_HUB = "built-in table, from the public config.json of "


def _dense(
    kind: str, layers: int, hidden: int, heads: int, kv: int, width: int, vocab: int, **rest: Any
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": width,
        "vocab_size": vocab,
        **rest,
    }


def _qwen25(layers: int, hidden: int, heads: int, kv: int, width: int, vocab: int, tied: bool) -> dict[str, Any]:
    return _dense(
        "qwen2", layers, hidden, heads, kv, width, vocab, tie_word_embeddings=tied, max_position_embeddings=32768
    )


def _qwen3(layers: int, hidden: int, heads: int, width: int, tied: bool) -> dict[str, Any]:
    return _dense(
        "qwen3", layers, hidden, heads, 8, width, 151936,
        head_dim=128, tie_word_embeddings=tied, max_position_embeddings=40960,
    )  # fmt: skip


def _qwen3_moe(layers: int, hidden: int, heads: int, width: int, expert_width: int) -> dict[str, Any]:
    return _dense(
        "qwen3_moe", layers, hidden, heads, 4, width, 151936,
        head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=expert_width,
        max_position_embeddings=40960,
    )  # fmt: skip


def _llama3(layers: int, hidden: int, heads: int, width: int, tied: bool = False, **rest: Any) -> dict[str, Any]:
    return _dense(
        "llama", layers, hidden, heads, 8, width, 128256,
        tie_word_embeddings=tied, max_position_embeddings=131072, **rest,
    )  # fmt: skip


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return _dense(
        "gpt_oss", layers, 2880, 64, 8, 2880, 201088,
        head_dim=64, num_local_experts=experts, num_experts_per_tok=4, attention_bias=True,
        sliding_window=128, layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        max_position_embeddings=131072, quantization_config={"quant_method": "mxfp4"},
    )  # fmt: skip


_DEEPSEEK_V3 = _dense(
    "deepseek_v3", 61, 7168, 128, 128, 18432, 129280,
    kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, q_lora_rank=1536,
    n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048, n_shared_experts=1,
    first_k_dense_replace=3, max_position_embeddings=163840,
    quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
)  # fmt: skip

_TABLE: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": _qwen25(24, 896, 14, 2, 4864, 151936, True),
    "Qwen/Qwen2.5-1.5B": _qwen25(28, 1536, 12, 2, 8960, 151936, True),
    "Qwen/Qwen2.5-3B": _qwen25(36, 2048, 16, 2, 11008, 151936, True),
    "Qwen/Qwen2.5-7B": _qwen25(28, 3584, 28, 4, 18944, 152064, False),
    "Qwen/Qwen2.5-14B": _qwen25(48, 5120, 40, 8, 13824, 152064, False),
    "Qwen/Qwen2.5-32B": _qwen25(64, 5120, 40, 8, 27648, 152064, False),
    "Qwen/Qwen2.5-72B": _qwen25(80, 8192, 64, 8, 29568, 152064, False),
    "Qwen/Qwen2.5-Coder-7B": _qwen25(28, 3584, 28, 4, 18944, 152064, False),
    "Qwen/Qwen2.5-Coder-32B": _qwen25(64, 5120, 40, 8, 27648, 152064, False),
    "Qwen/QwQ-32B": _qwen25(64, 5120, 40, 8, 27648, 152064, False),
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 16, 3072, True),
    "Qwen/Qwen3-1.7B": _qwen3(28, 2048, 16, 6144, True),
    "Qwen/Qwen3-4B": _qwen3(36, 2560, 32, 9728, True),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 32, 12288, False),
    "Qwen/Qwen3-14B": _qwen3(40, 5120, 40, 17408, False),
    "Qwen/Qwen3-32B": _qwen3(64, 5120, 64, 25600, False),
    "Qwen/Qwen3-30B-A3B": _qwen3_moe(48, 2048, 32, 6144, 768),
    "Qwen/Qwen3-235B-A22B": _qwen3_moe(94, 4096, 64, 12288, 1536),
    "meta-llama/Llama-3.1-8B": _llama3(32, 4096, 32, 14336),
    "meta-llama/Llama-3.1-70B": _llama3(80, 8192, 64, 28672),
    "meta-llama/Llama-3.1-405B": _llama3(126, 16384, 128, 53248),
    "meta-llama/Llama-3.2-1B": _llama3(16, 2048, 32, 8192, True, head_dim=64),
    "meta-llama/Llama-3.2-3B": _llama3(28, 3072, 24, 8192, True, head_dim=128),
    "meta-llama/Llama-3.3-70B": _llama3(80, 8192, 64, 28672),
    "meta-llama/Llama-2-7b": _dense("llama", 32, 4096, 32, 32, 11008, 32000, max_position_embeddings=4096),
    "meta-llama/Llama-2-13b": _dense("llama", 40, 5120, 40, 40, 13824, 32000, max_position_embeddings=4096),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _qwen25(28, 3584, 28, 4, 18944, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": _qwen25(64, 5120, 40, 8, 27648, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": _llama3(32, 4096, 32, 14336),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": _llama3(80, 8192, 64, 28672),
    "deepseek-ai/DeepSeek-V3": _DEEPSEEK_V3,
    "deepseek-ai/DeepSeek-R1": _DEEPSEEK_V3,
    "deepseek-ai/DeepSeek-V2-Lite": _dense(
        "deepseek_v2", 27, 2048, 16, 16, 10944, 102400,
        kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
        n_routed_experts=64, num_experts_per_tok=6, moe_intermediate_size=1408, n_shared_experts=2,
        first_k_dense_replace=1, max_position_embeddings=163840,
    ),
    "mistralai/Mistral-7B-v0.1": _dense(
        "mistral", 32, 4096, 32, 8, 14336, 32000, sliding_window=4096, max_position_embeddings=32768
    ),
    "mistralai/Mistral-7B-v0.2": _dense("mistral", 32, 4096, 32, 8, 14336, 32000, max_position_embeddings=32768),
    "mistralai/Mistral-7B-v0.3": _dense("mistral", 32, 4096, 32, 8, 14336, 32768, max_position_embeddings=32768),
    "mistralai/Mistral-Nemo-2407": _dense(
        "mistral", 40, 5120, 32, 8, 14336, 131072, head_dim=128, max_position_embeddings=131072
    ),
    "mistralai/Mistral-Small-24B-2501": _dense(
        "mistral", 40, 5120, 32, 8, 32768, 131072, head_dim=128, max_position_embeddings=32768
    ),
    "mistralai/Mixtral-8x7B-v0.1": _dense(
        "mixtral", 32, 4096, 32, 8, 14336, 32000,
        num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=32768,
    ),
    "mistralai/Mixtral-8x22B-v0.1": _dense(
        "mixtral", 56, 6144, 48, 8, 16384, 32768,
        num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=65536,
    ),
    "openai/gpt-oss-20b": _gpt_oss(24, 32),
    "openai/gpt-oss-120b": _gpt_oss(36, 128),
    "google/gemma-2-2b": _dense(
        "gemma2", 26, 2304, 8, 4, 9216, 256000, head_dim=256, sliding_window=4096, max_position_embeddings=8192
    ),
    "google/gemma-2-9b": _dense(
        "gemma2", 42, 3584, 16, 8, 14336, 256000, head_dim=256, sliding_window=4096, max_position_embeddings=8192
    ),
    "google/gemma-2-27b": _dense(
        "gemma2", 46, 4608, 32, 16, 36864, 256000, head_dim=128, sliding_window=4096, max_position_embeddings=8192
    ),
    "microsoft/Phi-3-mini-4k": _dense("phi3", 32, 3072, 32, 32, 8192, 32064, max_position_embeddings=4096),
    "microsoft/phi-4": _dense("phi3", 40, 5120, 40, 10, 17920, 100352, max_position_embeddings=16384),
    "TinyLlama/TinyLlama-1.1B": _dense("llama", 22, 2048, 32, 4, 5632, 32000, max_position_embeddings=2048),
    "HuggingFaceTB/SmolLM2-135M": _dense(
        "llama", 30, 576, 9, 3, 1536, 49152, tie_word_embeddings=True, max_position_embeddings=8192
    ),
    "HuggingFaceTB/SmolLM2-1.7B": _dense(
        "llama", 24, 2048, 32, 32, 8192, 49152, tie_word_embeddings=True, max_position_embeddings=8192
    ),
}  # fmt: skip

_QUANTIZED_NAME = re.compile(
    r"[-._](?:(?P<awq>awq)|(?P<gptq>gptq|w4a16|int4)|(?P<nvfp4>nvfp4|fp4)|(?P<int8>w8a8|int8)|(?P<fp8>fp8)"
    r"|(?P<bitsandbytes>bnb|bitsandbytes))(?=$|[-._])"
)
_SUFFIX = re.compile(
    r"[-._](?:instruct|chat|hf|it|base|awq|gptq|int4|int8|fp8|w8a8|w4a16|nvfp4|fp4|4bit|8bit|g128|dynamic|quantized"
    r"|bnb|bitsandbytes|marlin|1t-3t|v1\.0|\d{4}|0528|0324)(?=$|[-._])"
)


def _key(name: str) -> str:
    tail = name.rstrip("/").replace("\\", "/").rsplit("/", 1)[-1].lower().replace("_", "-")
    tail = tail.removeprefix("meta-").replace("llama3", "llama-3")
    previous = ""
    while previous != tail:
        previous = tail
        tail = _SUFFIX.sub("", tail)
    return tail


_VERSION = re.compile(r"-v\d\.\d$")
_BY_KEY = {_VERSION.sub("", _key(name)): name for name in _TABLE} | {_key(name): name for name in _TABLE}
"""The newest version of a model also answers to the name without a version."""


def quantization_in_name(name: str) -> Quantization | None:
    """The scheme that a checkpoint's name states (`-AWQ`, `-GPTQ-Int4`, `-FP8`, `-quantized.w8a8`), or None."""
    lowered = name.rsplit("/", 1)[-1].lower()
    if "gptq" in lowered and "int8" in lowered:
        return quantization_named("int8_per_channel_weight_only")
    match = _QUANTIZED_NAME.search(lowered)
    return quantization_named(match.lastgroup) if match and match.lastgroup else None


def known_shape(name: str) -> ModelShape | None:
    """The shape of a model by hub id, by the end of a path or by a served name; None where it is not in the table.

    Endings that do not change the shape (`-Instruct`, `-AWQ`, a date) are ignored; a quantization in the name is used.
    """
    hub_id = _BY_KEY.get(_key(name))
    if hub_id is None:
        return None
    shape = shape_from_config(_TABLE[hub_id], name=name, source=_HUB + hub_id)
    stated = quantization_in_name(name)
    return replace(shape, quantization=stated) if stated is not None else shape


def find_shape(model: str) -> ModelShape | None:
    """The shape of a model: from its folder where `model` is one, else from the built-in table.

    Raises:
        VtopError: there is a config.json and it cannot be used.
    """
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return shape_from_directory(folder)
    return known_shape(model)


def known_model_names() -> tuple[str, ...]:
    """Hub ids of the table."""
    return tuple(_TABLE)
