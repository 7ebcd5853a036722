"""`vtop presets` and `vtop presets show NAME`."""

from __future__ import annotations

import argparse

from vtop.commands.console import note, say, say_json, table
from vtop.errors import UsageError
from vtop.preset_files import Catalog, load_catalog, parse_set, with_overrides
from vtop.presets import Preset
from vtop.vllm.dialect import commands, display
from vtop.vllm.install import Installation, find_installation
from vtop.vllm.versions import hypothetical_installation


def _as_json(preset: Preset) -> dict[str, object]:
    return {
        "name": preset.name,
        "title": preset.title,
        "optimization": preset.optimization,
        "summary": preset.summary,
        "model": preset.server.model,
        "compare_with": preset.compare_with,
        "shows_off": preset.shows_off,
        "and_does_not_help": preset.and_does_not_help,
        "source": preset.source,
    }


def _list(catalog: Catalog, as_json: bool) -> int:
    if as_json:
        problems = [{"file": p.file, "what": p.what, "remedy": p.remedy} for p in catalog.problems]
        say_json({"presets": [_as_json(p) for p in catalog.presets.values()], "problems": problems})
    else:
        rows = [(p.name, p.optimization, p.server.model, p.summary) for p in catalog.presets.values()]
        say(table(rows, ("PRESET", "OPTIMIZATION", "MODEL", "WHAT IT DOES")))
        for problem in catalog.problems:
            note(f"vtop: {problem.file}: {problem.what}\n  {problem.remedy}")
    return 1 if catalog.problems else 0


def _show(arguments: argparse.Namespace, catalog: Catalog) -> int:
    if not arguments.name:
        raise UsageError("`vtop presets show` needs a name", "`vtop presets` lists them.")
    preset = with_overrides(catalog.find(arguments.name), parse_set(arguments.set))
    installation: Installation | None = None
    if arguments.vllm_version:
        installation = hypothetical_installation(arguments.vllm_version)
    elif preset.server.command is None:
        installation = find_installation(preset.server, arguments.vllm)
    port = preset.server.port if isinstance(preset.server.port, int) else 8000
    launch = commands(preset, installation, port=port, name=preset.name)
    if arguments.json:
        say_json(
            {
                **_as_json(preset),
                "vllm_version": launch[0].version,
                "commands": [
                    {"role": c.role, "argv": list(c.argv), "env": dict(c.env), "notes": list(c.notes)} for c in launch
                ],
            }
        )
        return 0
    where = f"vLLM {launch[0].version}, {installation.source}" if installation else "a command of its own"
    say(f"# {preset.title} ({where})")
    for command in launch:
        say(display(command))
        for remark in command.notes:
            say(f"# note: {remark}")
    return 0


def run_presets(arguments: argparse.Namespace) -> int:
    """Lists presets, or shows exactly what one would run."""
    catalog = load_catalog()
    if arguments.action == "show":
        return _show(arguments, catalog)
    return _list(catalog, arguments.json)
