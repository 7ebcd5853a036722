"""Speculative decoding in the three spellings of vLLM 0.6 to 0.33.

To 0.8.2: `--speculative-model M --num-speculative-tokens K` (0.6 also wants `--use-v2-block-manager`); from 0.8.2:
`--speculative-config '{...}'`. The short forms of 0.22 and newer say nothing that the JSON does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vtop.errors import VtopError
from vtop.presets import Speculative
from vtop.vllm.install import Installation
from vtop.vllm.number_formats import Flag, Span, describe_span, in_span

METHODS: Mapping[str, Span] = MappingProxyType(
    {
        "ngram": ("0.6.0", None),
        "draft_model": ("0.6.0", None),
        "eagle": ("0.6.0", None),
        "eagle3": ("0.8.3", None),
        "mtp": ("0.8.3", None),
        "medusa": ("0.6.0", "0.32.0"),
        "mlp_speculator": ("0.6.0", "0.32.0"),
        "suffix": ("0.11.2", None),
    }
)
"""Releases that have a method; draft models have a gap besides, see `_DRAFT_GAP`."""

_DRAFT_GAP = ((0, 10, 0), (0, 15, 0))
"""V1 began without draft models: refused (or silently ignored) from the first of these to before the second."""
_NAMED_DRAFT = (0, 12, 0)
"""From here on the word `draft_model` is understood; before, a model without a method is one."""
_NAMED_MTP = (0, 11, 1)
"""From here on `mtp` is one word for all models; before, each model had its own, found by vLLM from the model."""
_NEEDS_V2_BLOCKS = (0, 7, 0)
_LOOKUP_MAX = 4
"""The old flags refuse n-gram speculation without a longest match; the later default is close to this."""


def speculation_words(plan: Speculative, installation: Installation) -> tuple[list[Flag], list[str]]:
    """The flags, and notes.

    Raises:
        VtopError: this vLLM cannot do it.
    """
    _check_method(plan, installation)
    notes = _notes(plan, installation)
    if installation.has("--speculative-config"):
        return [("--speculative-config", json.dumps(_table(plan, installation)))], notes
    return _old_words(plan, installation), notes


def _check_method(plan: Speculative, installation: Installation) -> None:
    version, release = installation.version, installation.release
    if plan.method == "draft_model" and _DRAFT_GAP[0] <= release < _DRAFT_GAP[1]:
        raise VtopError(
            f"vLLM {version} cannot speculate with a draft model (0.10.0 to 0.14.1 cannot)",
            "Use vLLM 0.15 or newer, or 0.9.2 or older; or method = ngram or eagle3 (presets spec-ngram, spec-eagle3).",
        )
    declared = installation.speculative_methods
    if declared:
        there = plan.method in declared or (plan.method == "draft_model" and release < _NAMED_DRAFT)
        there = there or (plan.method == "mtp" and any(word.endswith("mtp") for word in declared))
    else:
        there = in_span(release, METHODS[plan.method])
    if not there:
        raise VtopError(
            f"vLLM {version} has no speculation method {plan.method} "
            f"(vLLM {describe_span(METHODS[plan.method])} has it)",
            "ngram works in every version: --set speculative.method=ngram --set speculative.model=none",
        )


def _notes(plan: Speculative, installation: Installation) -> list[str]:
    notes = []
    if plan.method == "suffix":
        missing = installation.plugins is None or "arctic-inference" not in installation.plugins
        notes.append("suffix speculation needs pip install arctic-inference" if missing else "")
    if plan.method == "ngram" and installation.release >= (0, 32, 0):
        notes.append("n-gram speculation switches vLLM's asynchronous scheduling off")
    return [note for note in notes if note]


def _table(plan: Speculative, installation: Installation) -> dict[str, Any]:
    release = installation.release
    named = not (
        (plan.method == "draft_model" and release < _NAMED_DRAFT) or (plan.method == "mtp" and release < _NAMED_MTP)
    )
    table = {
        "method": plan.method if named else None,
        "model": plan.model,
        "num_speculative_tokens": plan.num_tokens,
        "prompt_lookup_max": plan.prompt_lookup_max,
        "prompt_lookup_min": plan.prompt_lookup_min,
        "draft_tensor_parallel_size": plan.draft_tensor_parallel_size,
    }
    return {key: value for key, value in table.items() if value is not None}


def _old_words(plan: Speculative, installation: Installation) -> list[Flag]:
    ngram = plan.method == "ngram"
    values: dict[str, object] = {
        "--speculative-model": "[ngram]" if ngram else plan.model,
        "--num-speculative-tokens": plan.num_tokens,
        "--ngram-prompt-lookup-max": (plan.prompt_lookup_max or _LOOKUP_MAX) if ngram else None,
        "--ngram-prompt-lookup-min": plan.prompt_lookup_min if ngram else None,
        "--speculative-draft-tensor-parallel-size": plan.draft_tensor_parallel_size,
    }
    flags: list[Flag] = [(flag, str(value)) for flag, value in values.items() if value is not None]
    if installation.release < _NEEDS_V2_BLOCKS and installation.has("--use-v2-block-manager"):
        flags.append(("--use-v2-block-manager",))
    return flags
