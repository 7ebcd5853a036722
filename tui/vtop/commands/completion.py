"""`vtop completion SHELL`: the script that completes verbs, options and names; names are asked for at each TAB."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from vtop.commands.console import say

OFFERED: dict[tuple[str, str], str] = {
    ("start", "preset"): "presets",
    ("presets", "name"): "presets",
    ("compare", "presets"): "presets",
    ("fit", "what"): "presets",
    ("logs", "name"): "servers",
    ("stop", "names"): "running",
    ("load", "server"): "running",
    ("load", "workload"): "workloads",
    ("load", "shape"): "shapes",
    ("compare", "workload"): "workloads",
    ("compare", "shape"): "shapes",
    ("compare", "resume"): "runs",
    ("report", "runs"): "runs",
    ("experiment", "name"): "experiments",
    ("demo", "gpu"): "cards",
    ("start", "gpu"): "cards",
    ("compare", "gpu"): "cards",
    ("experiment", "gpu"): "cards",
    ("fit", "gpu"): "cards",
}
"""(verb, argument) -> the kind of names that `vtop _complete` prints for it."""
PATHS = {"FILE", "PEM", "PATH", "logfile", "file"}
"""Arguments with these words for a value are files."""


def _names(kind: str) -> dict[str, str | dict[str, str]]:
    """How each shell asks for names of a kind, when TAB is pressed and not when the script is read."""
    ask = f"vtop _complete {kind} 2>/dev/null"
    return {
        "bash": f"_vtop_{kind}",
        "zsh": f"_vtop_{kind}",
        "fish": f"({ask})",
        "preamble": {
            "bash": f'_vtop_{kind}() {{ compgen -W "$({ask})" -- "$1"; }}',
            "zsh": f'_vtop_{kind}() {{ compadd -- ${{(f)"$({ask})"}}; }}',
        },
    }


def arguments_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Every argument with its verb; "" for those that stand before one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                for _, found in arguments_of(below):
                    yield verb, found
        else:
            yield "", action


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion script of a shell (`bash`, `zsh` or `fish`) for a whole command line."""
    for verb, action in arguments_of(parser):
        if kind := OFFERED.get((verb, action.dest)):
            action.complete = _names(kind)  # type: ignore[attr-defined]
        elif PATHS & {action.metavar, action.dest}:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def run_completion(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    say(script(arguments.shell, arguments.parser))
    return 0
