"""Quantization names and KV cache types by vLLM release: which came, which went, which moved into a plugin.

Ranges are inclusive and between releases of `flag_table.json`, extracted from their sources. Where an installation
declares its words itself, those count and the ranges only explain a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from vtop.errors import VtopError
from vtop.vllm.install import Installation, release
from vtop.vllm.versions import known_versions

Span = tuple[str, str | None]
"""First and last release; None: still there."""

Flag = tuple[str, ...]
"""A flag and its values."""

_SINCE: Mapping[str, str] = MappingProxyType(
    {
        "0.6.0": "awq awq_marlin gptq gptq_marlin fp8 fbgemm_fp8 compressed-tensors experts_int8",
        "0.6.3.post1": "modelopt",
        "0.7.0": "moe_wna16 quark",
        "0.8.5.post1": "torchao",
        "0.9.0": "modelopt_fp4",
        "0.10.0": "inc",
        "0.10.2": "mxfp4",
        "0.16.0": "modelopt_mxfp8",
        "0.17.1": "modelopt_mixed",
        "0.19.1": "mxfp8",
        "0.20.2": "fp8_per_tensor fp8_per_block int8_per_channel_weight_only",
        "0.22.1": "auto_gptq",
        "0.24.0": "auto_awq fp8_per_channel",
        "0.26.0": "nvfp4_per_token",
    }
)
_GONE: Mapping[str, Span] = MappingProxyType(
    {
        "squeezellm": ("0.6.0", "0.6.0"),
        "marlin": ("0.6.0", "0.10.0"),
        "aqlm": ("0.6.0", "0.10.0"),
        "qqq": ("0.6.0", "0.10.0"),
        "hqq": ("0.6.6.post1", "0.14.1"),
        "gptq_marlin_24": ("0.6.0", "0.14.1"),
        "bitblas": ("0.8.5.post1", "0.14.1"),
        "ipex": ("0.6.4.post1", "0.14.1"),
        "rtn": ("0.9.2", "0.14.1"),
        "auto-round": ("0.9.0", "0.14.1"),
        "gguf": ("0.6.0", "0.23.0"),
        "bitsandbytes": ("0.6.0", "0.27.1"),
        "deepspeedfp": ("0.6.0", "0.31.0"),
        "ptpc_fp8": ("0.7.0", "0.31.0"),
    }
)
QUANTIZATIONS: Mapping[str, Span] = MappingProxyType(
    {**_GONE, **{name: (since, None) for since, names in _SINCE.items() for name in names.split()}}
)
"""Names of `--quantization`."""

PLUGINS: Mapping[str, str] = MappingProxyType({"gguf": "vllm-gguf-plugin", "bitsandbytes": "vllm-bnb-plugin"})
"""Names that only a plugin brings once vLLM itself has dropped them."""

_DEPRECATED = frozenset({"fbgemm_fp8", "fp_quant"})
"""Refused without `--allow-deprecated-quantization` (0.14 and newer)."""

KV_CACHE_DTYPES: Mapping[str, Span] = MappingProxyType(
    {
        "auto": ("0.6.0", None),
        "fp8": ("0.6.0", None),
        "fp8_e5m2": ("0.6.0", None),
        "fp8_e4m3": ("0.6.0", None),
        "fp8_inc": ("0.10.0", None),
        "bfloat16": ("0.11.0", None),
        "fp8_ds_mla": ("0.11.2", None),
        "float16": ("0.18.1", None),
        "int8_per_token_head": ("0.20.2", None),
        "fp8_per_token_head": ("0.20.2", None),
        "nvfp4": ("0.20.2", None),
        "turboquant_k8v4": ("0.20.2", None),
        "turboquant_4bit_nc": ("0.20.2", None),
        "turboquant_k3v4_nc": ("0.20.2", None),
        "turboquant_3bit_nc": ("0.20.2", None),
        "int4_per_token_head": ("0.25.1", None),
        "nvfp4_4over6": ("0.28.0", None),
        "ultraquant_4bit": ("0.32.0", None),
    }
)
"""Values of `--kv-cache-dtype`."""


def in_span(at: tuple[int, int, int], span: Span) -> bool:
    """Whether a version lies in a range of releases; between two of them it counts as the earlier."""
    at = max((known for known in map(release, known_versions()) if known <= at), default=at)
    first, last = span
    return release(first) <= at and (last is None or at <= release(last))


def describe_span(span: Span) -> str:
    """A range of releases in words: `0.6.0 to 0.23.0`, `0.20.2 and newer`."""
    first, last = span
    if last is None:
        return f"{first} and newer"
    return first if first == last else f"{first} to {last}"


def quantization_words(name: str, installation: Installation) -> tuple[list[Flag], list[str]]:
    """The flags for `--quantization NAME`, and notes.

    Raises:
        VtopError: this vLLM does not know the name.
    """
    notes: list[str] = []
    if not _known(name, QUANTIZATIONS, installation.quantizations, installation):
        plugin = PLUGINS.get(name)
        if plugin is None:
            raise _refusal("quantization", name, QUANTIZATIONS, installation.quantizations, installation)
        notes.append(f"{name} needs the plugin {plugin} from this vLLM on{_whether_there(plugin, installation)}")
    flags: list[Flag] = [("--quantization", name)]
    if name in _DEPRECATED and installation.has("--allow-deprecated-quantization"):
        flags.append(("--allow-deprecated-quantization",))
        notes.append(f"{name} is deprecated in this vLLM and will go")
    return flags, notes


def check_kv_cache_dtype(name: str, installation: Installation) -> None:
    """Accepts a KV cache type.

    Raises:
        VtopError: this vLLM does not know it.
    """
    if not _known(name, KV_CACHE_DTYPES, installation.kv_cache_dtypes, installation):
        raise _refusal("KV cache type", name, KV_CACHE_DTYPES, installation.kv_cache_dtypes, installation)


def _known(name: str, table: Mapping[str, Span], declared: frozenset[str], installation: Installation) -> bool:
    """By the installation's own words, else by the table; what neither knows is left to vLLM."""
    if declared:
        return name in declared
    return name not in table or in_span(installation.release, table[name])


def _whether_there(plugin: str, installation: Installation) -> str:
    if installation.plugins is None:
        return f" (pip install {plugin})"
    return "" if plugin in installation.plugins else f"; it is not in that environment (pip install {plugin})"


def _refusal(
    what: str, name: str, table: Mapping[str, Span], declared: frozenset[str], installation: Installation
) -> VtopError:
    span = table.get(name)
    when = f" (vLLM {describe_span(span)} has it)" if span else ""
    known = declared or {word for word, its in table.items() if in_span(installation.release, its)}
    near = get_close_matches(name, sorted(known), n=3, cutoff=0.4) or sorted(known)[:8]
    return VtopError(f"vLLM {installation.version} has no {what} {name}{when}", f"It has {', '.join(near)}.")
