"""`vtop fit`: does it fit, where is the floor, which optimization pays."""

from __future__ import annotations

import argparse
import asyncio
import textwrap
from dataclasses import asdict

from vtop import units
from vtop.clock import SystemClock
from vtop.commands.console import say, say_json, table
from vtop.errors import UsageError, VtopError
from vtop.fit import FitReport, fit
from vtop.hardware import Card, find_card
from vtop.known_models import find_shape, known_model_names
from vtop.preset_files import load_catalog, parse_set, with_overrides
from vtop.presets import Preset, ServerSpec
from vtop.service.fitting import ask_server
from vtop.service.remembering import recall_preset
from vtop.strict_toml import nearest
from vtop.telemetry.gpu.nvml import NvmlSource

EXAMPLE_CARDS = "RTX 4090, H100, L40S, A100"


def card_here() -> Card:
    """The first card of this machine.

    Raises:
        UsageError: there is none, or vtop does not know it.
    """
    source = NvmlSource(SystemClock())
    source.open()
    try:
        frame = source.read()
    finally:
        source.close()
    if not frame.gpus:
        raise UsageError(f"no GPU here: {frame.status.message}", f"Name a card with --gpu: {EXAMPLE_CARDS}.")
    card = find_card(frame.gpus[0].name)
    if card is None:
        raise UsageError(f"vtop has no datasheet of {frame.gpus[0].name}", f"Name a card with --gpu: {EXAMPLE_CARDS}.")
    return card


def _named_card(name: str) -> Card:
    card = find_card(name)
    if card is None:
        raise UsageError(f"no card is called {name}", f"For example: {EXAMPLE_CARDS}.")
    return card


def _subject(what: str, overrides: dict[str, str]) -> Preset:
    catalog = load_catalog()
    if what in catalog.presets:
        return with_overrides(catalog.find(what), overrides)
    if (served := recall_preset(what)) is not None:
        return with_overrides(served, overrides)
    if find_shape(what) is None:
        known = [*known_model_names(), *catalog.presets]
        raise UsageError(
            f"{what} is neither a preset, a server of vtop, nor a model that vtop knows",
            nearest(what, known, "Give a folder with a config.json, the URL of a running server, or a model such as "
                    f"{', '.join(known_model_names()[:5])}."),
        )  # fmt: skip
    return with_overrides(Preset(title=what, server=ServerSpec(model=what), name=what), overrides)


def _served(url: str, overrides: dict[str, str]) -> tuple[Preset, str]:
    """What a running server serves, as a preset, and what it says of its own cache."""
    served = asyncio.run(ask_server(url))
    dtype = served.kv_cache_dtype if served.kv_cache_dtype not in (None, "auto") else None
    spec = ServerSpec(model=served.model, max_model_len=served.max_model_len, kv_cache_dtype=dtype)
    said = "the server does not say how much its KV cache holds"
    if served.kv_capacity_tokens:
        said = f"the server itself says: its KV cache holds {units.count(served.kv_capacity_tokens)} tokens"
    return with_overrides(Preset(title=url, server=spec, name=url), overrides), said


def _yes(value: bool | None) -> str:
    return {True: "pays", False: "does not pay", None: "depends"}[value]


def _wrapped(name: str, why: str) -> list[str]:
    return textwrap.wrap(f"{name}: {why}", width=100, initial_indent="  ", subsequent_indent="    ")


def describe(report: FitReport, arithmetic: bool) -> str:
    """The report as text."""
    sure = "" if report.sure else " (close: the uncertainty decides)"
    together = "1 request" if report.batch == 1 else f"{report.batch:.3g} requests"
    if report.requests_at_once < 1:
        together += ", if they fitted"
    lines = [
        f"{report.setup.shape.name} on {report.card.name}: {'fits' if report.fits else 'does NOT fit'}{sure}",
        table(
            [
                ("weights", units.gib(report.weights_bytes), "per GPU"),
                (
                    "KV wanted",
                    units.gib(report.kv_wanted_bytes),
                    f"{report.concurrency} x {report.context} tokens",
                ),
                (
                    "overhead",
                    units.gib(report.overhead_bytes),
                    f"activations, CUDA graphs, driver: {units.gib(report.overhead_low_bytes)} to "
                    f"{units.gib(report.overhead_high_bytes)}",
                ),
                ("of", units.gib(report.memory_bytes), "that vLLM may use"),
                (
                    "KV capacity",
                    f"{units.count(report.kv_capacity_tokens)} tokens",
                    f"{units.count(report.kv_capacity_low_tokens)} to {units.count(report.kv_capacity_high_tokens)}; "
                    f"{report.requests_at_once:.1f} requests of {report.context} tokens",
                ),
                ("TPOT floor", units.duration(report.tpot_floor_s), f"with {together}"),
                ("", units.duration(report.tpot_floor_alone_s), "alone"),
                ("TTFT floor", units.duration(report.ttft_floor_s), f"for {report.context} prompt tokens"),
                ("output ceiling", units.rate(report.output_ceiling_tokens_per_s, "tok/s"), "at the floor"),
            ]
        ),
        "",
        table(
            [(a.name, _yes(a.pays), units.DASH if a.gain is None else f"{a.gain:.2f}x", a.flag) for a in report.advice],
            ("OPTIMIZATION", "HERE", "PREDICTED", "FLAG"),
        ),
        "",
        *(line for a in report.advice for line in _wrapped(a.name, a.why)),
        "",
        *report.selection,
        *(f"warning: {text}" for text in report.warnings),
    ]
    if arithmetic:
        lines += ["", table(report.arithmetic)]
    return "\n".join(lines)


def run_fit(arguments: argparse.Namespace) -> int:
    """Prints the report; exit 1 when it does not fit."""
    for name in ("context", "concurrency"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: must be at least 1")
    said = ""
    if arguments.what.startswith(("http://", "https://")):
        preset, said = _served(arguments.what, parse_set(arguments.set))
    else:
        preset = _subject(arguments.what, parse_set(arguments.set))
    card = _named_card(arguments.gpu) if arguments.gpu else card_here()
    try:
        report = fit(None, preset.server, card, arguments.context, arguments.concurrency)
    except VtopError as error:
        raise UsageError(error.what, error.remedy) from error
    if arguments.json:
        say_json(asdict(report))
    else:
        say(describe(report, arguments.arithmetic))
        if said:
            say(said)
    return 0 if report.fits else 1
