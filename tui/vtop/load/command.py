"""A load request as the command line that repeats it."""

from __future__ import annotations

import shlex

from vtop.load.progress import CONSTANT, LoadRequest

_FLAGS: tuple[tuple[str, str], ...] = (
    ("server", "--server"),
    ("url", "--url"),
    ("model", "--model"),
    ("api_key", "--api-key"),
    ("ca_file", "--ca-file"),
    ("concurrency", "-c"),
    ("requests", "-n"),
    ("rate", "--rate"),
    ("burstiness", "--burstiness"),
    ("duration_s", "--duration"),
    ("ramp_s", "--ramp"),
    ("arrival", "--arrival"),
    ("max_tokens", "--max-tokens"),
    ("prompt_tokens", "--prompt-tokens"),
    ("prefix_tokens", "--prefix-tokens"),
    ("prefixes", "--prefixes"),
    ("temperature", "--temperature"),
    ("choices", "--choices"),
    ("endpoint", "--endpoint"),
    ("warmup", "--warmup"),
    ("seed", "--seed"),
    ("file", "--file"),
    ("processes", "--processes"),
    ("timeout_s", "--timeout"),
    ("slo_ttft_s", "--slo-ttft"),
    ("slo_tpot_s", "--slo-tpot"),
    ("slo_e2e_s", "--slo-e2e"),
    ("label", "--label"),
)


def command_line(request: LoadRequest) -> str:
    """The exact `vtop load` command of a request.

    The seed is in it only if it was asked for: a repeat with the same prompts would be served from the prefix cache.
    """
    return shlex.join(["vtop", "load", request.workload or "demo", *options_of(request)])


def options_of(request: LoadRequest) -> list[str]:
    """The words of the command line for everything but the workload."""
    words: list[str] = []
    for name, flag in _FLAGS:
        value = getattr(request, name)
        if value is None or value == "" or (name in ("url", "model") and request.server is not None):
            continue
        if isinstance(value, float):
            value = "inf" if name == "burstiness" and value >= CONSTANT else repr(value).removesuffix(".0")
        text = str(value)
        # A text that begins like an option would be read as one.
        words += [f"{flag}={text}"] if isinstance(value, str) and text.startswith("-") else [flag, text]
    if request.ignore_eos is not None:
        words.append("--ignore-eos" if request.ignore_eos else "--no-ignore-eos")
    if request.search:
        words.append("--search")
    return words
