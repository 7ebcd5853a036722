"""A model as it is served, from a preset or from the words of vLLM's command line."""

from __future__ import annotations

from vtop.known_models import find_shape
from vtop.model_shapes import UNQUANTIZED, ModelShape, Quantization, quantization_named
from vtop.presets import ServerSpec
from vtop.roofline import Setup, draft_head

LOOK_UP_FREE = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Speculation that guesses from the request's own tokens and runs no model for it."""


def setup_for(
    model: str,
    *,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
) -> Setup | None:
    """A model as served, from its name or folder and vLLM's words; None where its shape or scheme is not known.

    Raises:
        VtopError: the folder's config.json cannot be used.
    """
    shape = find_shape(model)
    if shape is None:
        return None
    scheme = scheme_of(shape, quantization)
    if scheme is None:
        return None
    return Setup(
        shape,
        scheme,
        kv_value_bytes=kv_value_bytes(kv_cache_dtype),
        tensor_parallel=tensor_parallel or 1,
        pipeline_parallel=pipeline_parallel or 1,
    )


def scheme_of(shape: ModelShape, asked: str | None) -> Quantization | None:
    """The checkpoint's own scheme, else the one asked for on the command line; None where it is not understood."""
    if asked and shape.quantization is not None and shape.quantization.name == UNQUANTIZED.name:
        return quantization_named(asked)
    return shape.quantization


def setup_for_spec(spec: ServerSpec) -> Setup | None:
    """A preset's `[server]` table as served; see `setup_for`."""
    return setup_for(
        spec.model,
        quantization=spec.quantization,
        kv_cache_dtype=spec.kv_cache_dtype,
        tensor_parallel=spec.tensor_parallel,
        pipeline_parallel=spec.pipeline_parallel,
    )


_PACKED_KV_BYTES = {
    "turboquant_k8v4": (1.0 + 0.5) / 2,
    "turboquant_4bit_nc": 0.5,
    "turboquant_k3v4_nc": (3 + 4) / 2 / 8,
    "turboquant_3bit_nc": 3 / 8,
    "ultraquant_4bit": 0.5,
}
"""Types whose name gives the bits of keys and values; their scales, a few bytes a head and token, are left out."""


def kv_value_bytes(dtype: str | None) -> float:
    """Bytes of one cached value by vLLM's `--kv-cache-dtype` word."""
    word = (dtype or "auto").lower()
    if word in _PACKED_KV_BYTES:
        return _PACKED_KV_BYTES[word]
    if word.startswith(("fp8", "int8")):
        return 1.0
    if word.startswith(("nvfp4", "int4")):
        return 0.5
    return 2.0


def draft_setup(setup: Setup, method: str, model: str | None = None) -> Setup | None:
    """The drafter beside a model; None where guessing is free or the draft model's shape is not known.

    Raises:
        VtopError: the draft model is a folder whose config.json cannot be used.
    """
    if method in LOOK_UP_FREE:
        return None
    if method == "draft_model":
        shape = find_shape(model) if model else None
        return Setup(shape, tensor_parallel=setup.tensor_parallel) if shape is not None else None
    return Setup(draft_head(setup.shape, method), tensor_parallel=setup.tensor_parallel)
