"""Will it fit, in a few lines for the start screen."""

from __future__ import annotations

from vtop import units
from vtop.errors import VtopError
from vtop.fit import fit
from vtop.hardware import Card
from vtop.service.launching import Launch


def fit_lines(launch: Launch, card: Card | None) -> tuple[tuple[str, str], ...]:
    """Label and text of each line; empty where model or card is not known."""
    if card is None:
        return ()
    try:
        report = fit(None, launch.preset.server, card)
    except VtopError as error:
        return (("fit", error.what),)
    certain = "" if report.sure == report.fits else ", but it is close"
    lines = [
        ("fits", f"{'yes' if report.fits else 'no'}{certain} ({card.name})"),
        ("weights", f"{units.gib(report.weights_bytes)} per GPU of {units.gib(report.memory_bytes)}"),
        ("KV capacity", f"{units.count(report.kv_capacity_tokens)} tokens"),
        ("TPOT floor", units.duration(report.tpot_floor_alone_s)),
    ]
    lines += [("warning", text) for text in report.warnings]
    return tuple(lines)
