"""`vtop presets` and `vtop presets show NAME`: presets of servers, and load shapes."""

from __future__ import annotations

import argparse
import math

import msgspec

from vtop.commands.console import note, say, say_json, table
from vtop.errors import UsageError
from vtop.load.command import command_line
from vtop.load.shapes import LoadShape, Shapes, load_shapes
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


def _shape_as_json(shape: LoadShape) -> dict[str, object]:
    asked = {key: value for key, value in msgspec.structs.asdict(shape.load).items() if value not in (None, "", False)}
    return {
        "name": shape.name,
        "title": shape.title,
        "summary": shape.summary,
        "load": {key: _number(value) for key, value in asked.items()},
        "source": shape.source,
    }


def _number(value: object) -> object:
    """JSON has no infinity; vLLM's benchmark writes the word."""
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _list(catalog: Catalog | None, shapes: Shapes, as_json: bool) -> int:
    problems = [*(catalog.problems if catalog is not None else ()), *shapes.problems]
    if as_json:
        said: dict[str, object] = (
            {} if catalog is None else {"presets": [_as_json(p) for p in catalog.presets.values()]}
        )
        said["load_shapes"] = [_shape_as_json(shape) for shape in shapes.shapes.values()]
        say_json({**said, "problems": [{"file": p.file, "what": p.what, "remedy": p.remedy} for p in problems]})
    else:
        if catalog is not None:
            rows = [(p.name, p.optimization, p.server.model, p.summary) for p in catalog.presets.values()]
            say(table(rows, ("PRESET", "OPTIMIZATION", "MODEL", "WHAT IT DOES")) + "\n")
        loads = [(shape.name, shape.summary) for shape in shapes.shapes.values()]
        say(table(loads, ("LOAD SHAPE", "WHAT IT SENDS (vtop load --shape NAME)")))
        for problem in problems:
            note(f"vtop: {problem.file}: {problem.what}\n  {problem.remedy}")
    return 1 if problems else 0


def _show_shape(shape: LoadShape, as_json: bool) -> int:
    command = command_line(shape.request())
    if as_json:
        say_json({**_shape_as_json(shape), "command": command})
    else:
        say(f"# {shape.title}: {shape.summary}")
        say(command)
    return 0


def _show(arguments: argparse.Namespace, catalog: Catalog) -> int:
    if not arguments.name:
        raise UsageError("`vtop presets show` needs a name", "`vtop presets` lists them.")
    shapes = load_shapes()
    if arguments.load or (arguments.name in shapes.shapes and arguments.name not in catalog.presets):
        return _show_shape(shapes.find(arguments.name), arguments.json)
    preset = with_overrides(catalog.find(arguments.name), parse_set(arguments.set))
    installation: Installation | None = None
    if arguments.vllm_version:
        installation = hypothetical_installation(arguments.vllm_version)
    elif preset.server.command is None:
        installation = find_installation(preset.server, arguments.vllm)
    port = preset.server.port if isinstance(preset.server.port, int) else 8000
    named = preset.server.gpus if isinstance(preset.server.gpus, list) else None
    on_cpu = installation is not None and installation.device == "cpu"
    gpus = tuple(map(str, named)) if named is not None and not on_cpu else None
    launch = commands(preset, installation, port=port, gpus=gpus, name=preset.name)
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
    return _list(None if arguments.load else catalog, load_shapes(), arguments.json)
