"""`vtop web`: the dashboard in a browser, on this machine only."""

from __future__ import annotations

import argparse
import shlex
import sys

from vtop.commands.console import note
from vtop.errors import UsageError

HOST = "127.0.0.1"


def command_for(arguments: argparse.Namespace) -> str:
    """What each browser tab runs."""
    words = [sys.executable, "-m", "vtop"]
    if arguments.readonly:
        words.append("--readonly")
    if arguments.demo:
        words.append("demo")
    return shlex.join(words)


def run_web(arguments: argparse.Namespace) -> int:
    """Serves until interrupted."""
    try:
        from textual_serve.server import Server
    except ImportError as error:
        raise UsageError("`vtop web` needs the extra `web`", 'pip install "vllm-vtop[web]"') from error
    from vtop.servers.ports import port_is_free

    if not port_is_free(HOST, arguments.port):
        raise UsageError(f"port {arguments.port} is taken", "Give another with --port.")
    what = "watch" if arguments.readonly else "watch, START AND STOP servers"
    note(f"Whoever can open http://{HOST}:{arguments.port} on this machine can {what}. There is no password.")
    if not arguments.readonly:
        note("--readonly leaves only watching. For another machine use an SSH tunnel; never open this port.")
    Server(command_for(arguments), host=HOST, port=arguments.port, title="vtop").serve()
    return 0
