"""`vtop` with its own words, but it watches only the servers that `--url` names, not what else runs on the machine."""

from __future__ import annotations

from dataclasses import replace

from vtop.cli import build_parser
from vtop.commands.dashboard import show
from vtop.commands.session import options_from

if __name__ == "__main__":
    arguments = build_parser().parse_args()
    show(replace(options_from(arguments), discover=False), arguments)
