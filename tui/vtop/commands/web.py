"""`vtop web`: the dashboard in a browser, on this machine only."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from vtop.commands.console import note
from vtop.errors import UsageError

HOST = "127.0.0.1"


def command_for(arguments: argparse.Namespace) -> str:
    """What each browser tab runs."""
    words = [sys.executable, "-m", "vtop"]
    if arguments.demo:
        words.append("demo")
    if arguments.readonly:
        words.append("--readonly")
    return shlex.join(words)


def own_hosts(port: int) -> frozenset[str]:
    """The names under which a browser of this machine may know the page."""
    return frozenset({f"{HOST}:{port}", f"localhost:{port}"})


def content_policy(port: int) -> str:
    """What the page may load: its own files and its own socket, nothing from the internet, and in nobody's frame."""
    sockets = " ".join(f"ws://{host}" for host in sorted(own_hosts(port)))
    files = " ".join(f"http://{host}" for host in sorted(own_hosts(port)))
    return (
        f"default-src 'self' {files}; script-src 'self' 'unsafe-inline' {files}; "
        f"style-src 'self' 'unsafe-inline' {files}; img-src 'self' data: {files}; "
        f"connect-src 'self' {files} {sockets}; frame-ancestors 'none'"
    )


def build_server(arguments: argparse.Namespace) -> Any:
    """The web server, which answers only pages that came from itself.

    Loopback alone does not keep other web pages out: a browser on this machine lets any page open a socket to it, and a
    name that resolves to 127.0.0.1 makes it the page's own. So both the host asked for and the origin are checked.

    Raises:
        UsageError: the extra `web` is missing.
    """
    try:
        from aiohttp import web
        from textual_serve.server import Server
    except ImportError as error:
        raise UsageError("`vtop web` needs the extra `web`", 'pip install "vllm-vtop[web]"') from error
    port: int = arguments.port
    hosts = own_hosts(port)
    origins = {f"http://{host}" for host in hosts}
    policy = content_policy(port)

    @web.middleware
    async def only_own_page(request: web.Request, handler: Any) -> Any:
        origin = request.headers.get("Origin")
        from_elsewhere = origin is not None and origin not in origins
        # Browsers always send an origin with a socket; what sends none is not a page, and is not let in either.
        if request.host not in hosts or from_elsewhere or (request.path == "/ws" and origin is None):
            raise web.HTTPForbidden(text=f"vtop: open http://{HOST}:{port} itself; other pages may not use it.\n")
        return await handler(request)

    async def add_policy(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Content-Security-Policy"] = policy

    class LocalServer(Server):
        """As textual-serve's, for this machine's own page alone."""

        async def _make_app(self) -> web.Application:
            app: web.Application = await super()._make_app()
            app.middlewares.append(only_own_page)
            app.on_response_prepare.append(add_policy)
            return app

        async def on_startup(self, app: web.Application) -> None:
            """Says nothing: `run_web` has said what is open and to whom."""

    return LocalServer(command_for(arguments), host=HOST, port=port, title="vtop")


def run_web(arguments: argparse.Namespace) -> int:
    """Serves until interrupted."""
    from vtop.servers.ports import port_is_free

    if not 0 < arguments.port < 65536:
        raise UsageError(f"{arguments.port} is no port", "Give one from 1 to 65535 with --port.")
    server = build_server(arguments)
    if not port_is_free(HOST, arguments.port):
        raise UsageError(f"port {arguments.port} is taken", "Give another with --port.")
    what = "watch" if arguments.readonly else "watch, START AND STOP servers"
    note(f"Whoever can open http://{HOST}:{arguments.port} on this machine can {what}. There is no password.")
    if not arguments.readonly:
        note("--readonly leaves only watching. For another machine use an SSH tunnel; never open this port.")
    note("ctrl+c ends it; servers that were started keep running.")
    server.serve()
    return 0
