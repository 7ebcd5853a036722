"""The shape of a model from its config.json: what its parameters, its KV cache and its quantization weigh."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtop.errors import VtopError

Config = Mapping[str, Any]

_UNGATED_MLP = {"opt", "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "bloom", "falcon", "phi", "starcoder2", "mpt"}
"""Model types whose MLP has two matrices; every other type known here has a gate beside them, so three."""

_QK_NORM = {"qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2"}
_QKV_BIAS = {"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights of the linear layers are stored and what multiplies them."""

    name: str
    bytes_per_weight: float
    """Scales and zero points included."""
    compute: str = "bf16"
    """What the tensor cores multiply: `bf16`, `fp8` or `int8`. Weight-only schemes unpack to 16 bit first."""
    experts_only: bool = False
    """Only the routed experts are quantized; attention stays 16 bit (gpt-oss)."""
    head: bool = False
    """The output head is quantized too; usually it stays 16 bit, as the embedding always does."""


UNQUANTIZED = Quantization("bf16", 2.0)


def grouped(name: str, bits: int, group: int, *, scale_bytes: float = 2.0, zeros: bool = True) -> Quantization:
    """A weight-only scheme: `bits` a weight, one scale and (AWQ, GPTQ) one zero point of `bits` a group."""
    overhead = (scale_bytes + (bits / 8 if zeros else 0.0)) / group if group > 0 else 0.0
    return Quantization(name, bits / 8 + overhead)


def quantization_named(name: str | None) -> Quantization | None:
    """The scheme behind a `--quantization` word, or None where the word alone does not say (compressed-tensors, gguf).

    Group sizes are the defaults of the published checkpoints: 128 for AWQ and GPTQ, 64 for bitsandbytes NF4, 32 for
    MXFP4, 16 for NVFP4.
    """
    if name is None:
        return None
    word = name.lower().replace("-", "_")
    if word in {"none", "auto", "bf16", "bfloat16", "fp16", "float16", "half"}:
        return UNQUANTIZED
    if word.startswith(("awq", "auto_awq")):
        return grouped("awq", 4, 128)
    if word.startswith(("gptq", "auto_gptq", "w4a16", "int4", "marlin")):
        return grouped("gptq", 4, 128)
    if word in {"mxfp4", "gpt_oss_mxfp4"}:
        return Quantization("mxfp4", 0.5 + 1 / 32, experts_only=True)
    if word in {"nvfp4", "modelopt_fp4", "modelopt_nvfp4"} or word.startswith("nvfp4"):
        return Quantization("nvfp4", 0.5 + 1 / 16)
    if word in {"int8", "w8a8", "w8a8_int8", "experts_int8"}:
        return Quantization("int8", 1.0, compute="int8", experts_only=word == "experts_int8")
    if word == "int8_per_channel_weight_only":
        return Quantization("int8-weights", 1.0)
    if "fp8" in word or word == "modelopt":
        return Quantization("fp8", 1.0, compute="fp8")
    if word.startswith(("bitsandbytes", "bnb")):
        # NF4: a 4-byte scale for 64 weights, itself quantized to about half a bit a weight.
        return Quantization("bitsandbytes", 0.5 + 1 / 64)
    return None


def quantization_from_config(config: Config) -> Quantization | None:
    """Reads `quantization_config` (or compressed-tensors' older `compression_config`).

    Returns:
        The scheme, `UNQUANTIZED` where the config has none, None where it has one that is not understood.
    """
    table = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(table, Mapping):
        return UNQUANTIZED
    method = str(table.get("quant_method", "")).lower().replace("-", "_")
    if method == "compressed_tensors":
        return _compressed_tensors(table)
    if method in {"awq", "gptq"}:
        bits = int(table.get("bits") or table.get("w_bit") or 4)
        group = int(table.get("group_size") or table.get("q_group_size") or 128)
        scheme = grouped(method, bits, group)
        return replace(scheme, head=bool(table.get("lm_head", False)))
    if method == "bitsandbytes":
        if table.get("load_in_8bit"):
            return Quantization("bitsandbytes", 1.0)
        return quantization_named("bitsandbytes")
    return quantization_named(method)


def _compressed_tensors(table: Config) -> Quantization | None:
    groups = table.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        return None
    first = next(iter(groups.values()))
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    bits = int(weights.get("num_bits") or 16)
    floating = weights.get("type") == "float"
    activations = first.get("input_activations")
    if bits == 8:
        if floating:
            return Quantization("fp8", 1.0, compute="fp8" if activations else "bf16")
        return Quantization("int8", 1.0, compute="int8" if activations else "bf16")
    if bits == 4 and floating:
        return quantization_named("nvfp4")
    group = int(weights.get("group_size") or 128)
    return grouped("w4a16" if bits == 4 else f"w{bits}a16", bits, group, zeros=not weights.get("symmetric", True))


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The dimensions that decide what a model weighs and what a token costs.

    Names in the formulas: L layers, D hidden, H heads, KV key/value heads, d head size, I intermediate, V vocabulary.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool = False
    max_positions: int | None = None
    mlp_matrices: int = 3
    """3 with a gate (SwiGLU and kin), 2 without."""
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    """Width of all always-active (shared) experts together."""
    moe_layers: int = 0
    kv_lora_rank: int = 0
    """Multi-head latent attention (MLA) where greater than 0; then the four below hold."""
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    q_lora_rank: int = 0
    sliding_window: int | None = None
    sliding_layers: int = 0
    """Layers that look back only `sliding_window` tokens."""
    state_layers: int = 0
    """Linear-attention or Mamba layers: a constant state a request instead of a cache that grows."""
    small_parameters: int = 0
    """Norms and biases."""
    quantization: Quantization | None = UNQUANTIZED
    """As the checkpoint stores it; None where its scheme is not understood."""
    source: str = ""
    """Where the shape was read."""

    @property
    def is_mla(self) -> bool:
        """Multi-head latent attention: one compressed KV vector a token and layer."""
        return self.kv_lora_rank > 0

    @property
    def is_moe(self) -> bool:
        """Mixture of experts."""
        return self.moe_layers > 0 and self.experts > 0

    @property
    def attention_parameters(self) -> int:
        """All layers: D·d·(H+2KV) + H·d·D; with MLA the low-rank factors."""
        if not self.is_mla:
            return self.layers * self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        qk = self.qk_nope_head_dim + self.qk_rope_head_dim
        query = (
            self.hidden * self.q_lora_rank + self.q_lora_rank * self.heads * qk
            if self.q_lora_rank
            else self.hidden * self.heads * qk
        )
        latent = self.hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
        expand = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
        return self.layers * (query + latent + expand + self.heads * self.v_head_dim * self.hidden)

    @property
    def dense_mlp_parameters(self) -> int:
        """MLPs of the dense layers and the shared experts of the others."""
        dense = (self.layers - self.moe_layers) * self.mlp_matrices * self.hidden * self.intermediate
        return dense + self.moe_layers * self.mlp_matrices * self.hidden * self.shared_intermediate

    @property
    def one_expert_parameters(self) -> int:
        """One routed expert in one layer."""
        return self.mlp_matrices * self.hidden * self.expert_intermediate

    @property
    def expert_parameters(self) -> int:
        """All routed experts of all layers."""
        return self.moe_layers * self.experts * self.one_expert_parameters

    @property
    def router_parameters(self) -> int:
        """The layers that choose experts; they stay 16 bit."""
        return self.moe_layers * self.experts * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """The input embedding, V·D; a step looks up rows and does not read it whole."""
        return self.vocab * self.hidden

    @property
    def head_parameters(self) -> int:
        """The output head, V·D, read whole in every step (the embedding itself where the two are tied)."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters that are stored."""
        embeddings = self.embedding_parameters * (1 if self.tied_embeddings else 2)
        return (
            self.attention_parameters
            + self.dense_mlp_parameters
            + self.expert_parameters
            + self.router_parameters
            + embeddings
            + self.small_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Parameters that one token multiplies, without embedding and head."""
        routed = self.moe_layers * self.experts_per_token * self.one_expert_parameters
        return (
            self.attention_parameters
            + self.dense_mlp_parameters
            + routed
            + self.router_parameters
            + self.small_parameters
        )


def shape_from_config(config: Config, name: str = "", source: str = "config.json") -> ModelShape:
    """Reads a `config.json` (its `text_config` where the model is multimodal).

    Args:
        config: the parsed file.
        name: what to call the model; the config's own `_name_or_path` otherwise.
        source: where the config came from, for the screen.

    Raises:
        VtopError: a dimension that everything else needs is not there, or makes no sense.
    """
    try:
        return _read_shape(config, name, source)
    except (ValueError, TypeError, OverflowError) as error:
        raise VtopError(
            f"the configuration of {name or source} has a dimension that is no whole number ({error})",
            "Use the config.json of a decoder language model.",
        ) from error


def _read_shape(config: Config, name: str, source: str) -> ModelShape:
    text = config.get("text_config")
    table: dict[str, Any] = {**config, **text} if isinstance(text, Mapping) else dict(config)
    label = name or str(config.get("_name_or_path") or config.get("model_type") or "model")
    layers = _dimension(table, label, "num_hidden_layers", "n_layer", "num_layers")
    hidden = _dimension(table, label, "hidden_size", "n_embd", "d_model")
    heads = _dimension(table, label, "num_attention_heads", "n_head")
    vocab = _dimension(table, label, "vocab_size")
    kind = str(table.get("model_type") or "")
    head_dim = int(table.get("head_dim") or hidden // heads)
    kv_heads = int(table.get("num_key_value_heads") or heads)
    intermediate = int(table.get("intermediate_size") or table.get("n_inner") or table.get("ffn_dim") or 4 * hidden)
    moe = _moe(table, kind, label, layers, intermediate)
    if kind.startswith("llama4"):
        # `intermediate_size` is an expert's there; the dense layers between have a width of their own.
        intermediate = int(table.get("intermediate_size_mlp") or intermediate)
    window, sliding_layers, state_layers = _attention_kinds(table, kind, layers)
    shape = ModelShape(
        name=label,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=vocab,
        tied_embeddings=bool(table.get("tie_word_embeddings", kind.startswith("gemma"))),
        max_positions=int(table["max_position_embeddings"]) if table.get("max_position_embeddings") else None,
        mlp_matrices=2 if kind in _UNGATED_MLP else 3,
        kv_lora_rank=int(table.get("kv_lora_rank") or 0),
        qk_rope_head_dim=int(table.get("qk_rope_head_dim") or 0),
        qk_nope_head_dim=int(table.get("qk_nope_head_dim") or 0),
        v_head_dim=int(table.get("v_head_dim") or 0),
        q_lora_rank=int(table.get("q_lora_rank") or 0),
        sliding_window=window,
        sliding_layers=sliding_layers,
        state_layers=state_layers,
        quantization=quantization_from_config(table),
        source=source,
        **moe,
    )
    return replace(shape, small_parameters=_small_parameters(shape, table, kind))


def _dimension(table: Config, label: str, *keys: str) -> int:
    for key in keys:
        value = table.get(key)
        if isinstance(value, int) and value > 0:
            return value
    raise VtopError(
        f"the configuration of {label} has no {keys[0]}", "Use the config.json of a decoder language model."
    )


def _moe(table: Config, kind: str, label: str, layers: int, intermediate: int) -> dict[str, int]:
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    experts = int(next((table[key] for key in names if table.get(key)), 0))
    per_token = int(next((table[key] for key in ("num_experts_per_tok", "experts_per_token") if table.get(key)), 0))
    if experts <= 1:
        return {}
    if not 0 < per_token <= experts:
        raise VtopError(
            f"the configuration of {label} does not say how many of its {experts} experts a token uses",
            "Such a mixture of experts is not understood: its size and speed would be guessed.",
        )
    width = int(table.get("moe_intermediate_size") or intermediate)
    # Llama 4 has one shared expert of the same width, unsaid.
    shared = int(table.get("shared_expert_intermediate_size") or (width if kind.startswith("llama4") else 0))
    shared = shared or int(table.get("n_shared_experts") or 0) * width
    dense = int(table.get("first_k_dense_replace") or 0)
    only_dense = table.get("mlp_only_layers")
    if isinstance(only_dense, Sequence):
        dense += len(only_dense)
    every = table.get("moe_layer_freq")
    if isinstance(every, Sequence) and not isinstance(every, str):  # one entry a layer
        dense, every = layers - sum(1 for entry in every if entry), 1
    step = int(table.get("decoder_sparse_step") or table.get("interleave_moe_layer_step") or every or 1)
    return {
        "experts": experts,
        "experts_per_token": per_token,
        "expert_intermediate": width,
        "shared_intermediate": shared,
        "moe_layers": max(0, layers - dense) // max(1, step),
    }


def _attention_kinds(table: Config, kind: str, layers: int) -> tuple[int | None, int, int]:
    """The window, how many layers have it, and how many layers keep a constant state."""
    raw = table.get("sliding_window")
    window = int(raw) if isinstance(raw, int) and raw > 0 and table.get("use_sliding_window", True) else None
    types = table.get("layer_types")
    if isinstance(types, Sequence) and not isinstance(types, str):
        sliding = sum(1 for item in types if "sliding" in str(item) or "chunked" in str(item))
        state = sum(1 for item in types if "linear" in str(item) or "mamba" in str(item))
        return (window if sliding else None), (sliding if window else 0), state
    if window is None:
        return None, 0, 0
    if kind == "gemma2":
        return window, layers // 2, 0
    if kind in {"gemma3", "gemma3_text"}:
        return window, layers - layers // int(table.get("sliding_window_pattern") or 6), 0
    return window, layers, 0


def _small_parameters(shape: ModelShape, table: Config, kind: str) -> int:
    norms = (2 * shape.layers + 1) * shape.hidden
    if kind in _QK_NORM:
        norms += 2 * shape.layers * shape.head_dim
    if shape.is_mla:
        norms += shape.layers * (shape.q_lora_rank + shape.kv_lora_rank)
    bias = 0
    if kind in _QKV_BIAS or table.get("attention_bias"):
        bias += shape.layers * shape.head_dim * (shape.heads + 2 * shape.kv_heads)
    if table.get("attention_bias") and kind not in _QKV_BIAS:
        bias += shape.layers * shape.hidden
    if kind == "gpt_oss":
        experts = shape.moe_layers * shape.experts
        bias += experts * (2 * shape.expert_intermediate + shape.hidden + 1) + shape.layers * shape.heads
    return norms + bias


def shape_from_directory(path: str | Path) -> ModelShape:
    """Reads the `config.json` of a checkpoint on disk.

    Raises:
        VtopError: the file is missing, not JSON, or not a language model's.
    """
    directory = Path(path)
    file = directory / "config.json" if directory.is_dir() else directory
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise VtopError(f"cannot read {file}: {error.strerror}", "Give the folder that holds config.json.") from error
    except ValueError as error:
        raise VtopError(f"{file} is not valid JSON: {error}", "Give the config.json of a model.") from error
    if not isinstance(config, dict):
        raise VtopError(f"{file} holds no table", "Give the config.json of a model.")
    return shape_from_config(
        config, name=directory.name if directory.is_dir() else directory.parent.name, source=str(file)
    )
