"""`vtop doctor`: what works here, what does not, and the remedy of each."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

from vtop import paths
from vtop.clock import SystemClock
from vtop.commands.console import note, say, say_json
from vtop.commands.session import options_from, with_service
from vtop.errors import VtopError
from vtop.preset_files import load_catalog
from vtop.servers.ports import port_is_free, port_owner
from vtop.service import VtopService
from vtop.telemetry.gpu.nvml import NvmlSource
from vtop.vllm.install import find_installation
from vtop.vllm.router import find_router, own_router_environment

ROUTER = "vllm-router"
_GPU_LOOK_S = 0.5
"""So long the driver is asked which memory the leftovers hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check."""

    what: str
    ok: bool
    found: str
    remedy: str = ""


def _gpu() -> Finding:
    source = NvmlSource(SystemClock())
    source.open()
    try:
        frame = source.read()
    finally:
        source.close()
    if not frame.gpus:
        return Finding(
            "GPU", False, frame.status.message or "no GPU", "Without one: `vtop demo`, --sim, or a CPU build of vLLM."
        )
    sources = {gpu.bandwidth.source for gpu in frame.gpus if gpu.bandwidth is not None}
    measured = ", ".join(sorted(sources)) or "nothing yet"
    words = f"{', '.join(gpu.name for gpu in frame.gpus)}, driver {frame.status.driver}, bandwidth by {measured}"
    return Finding("GPU", True, words)


def _vllm(explicit: str | None) -> Finding:
    try:
        found = find_installation(None, explicit)
    except VtopError as error:
        return Finding("vLLM", False, error.what, error.remedy)
    return Finding(
        "vLLM", True, f"{found.version} ({found.distribution}, {found.device}) at {found.python}, by {found.source}"
    )


def _router() -> Finding:
    try:
        return Finding("P/D router", True, str(find_router(None)))
    except VtopError as error:
        return Finding("P/D router", False, error.what, "Only for P/D disaggregation: `vtop doctor --install-router`.")


def _presets() -> Finding:
    catalog = load_catalog()
    if catalog.problems:
        first = catalog.problems[0]
        return Finding("presets", False, f"{len(catalog.problems)} broken: {first.file}: {first.what}", first.remedy)
    return Finding("presets", True, f"{len(catalog.presets)} usable")


def _port() -> Finding:
    if port_is_free("127.0.0.1", 8000):
        return Finding("port 8000", True, "free")
    return Finding(
        "port 8000", True, f"taken: {port_owner(8000) or 'by somebody else'} (presets can use --set port=auto)"
    )


def _folders() -> Finding:
    try:
        folders = (paths.state_dir(), paths.runs_dir(), paths.cache_dir())
    except VtopError as error:
        return Finding("folders", False, error.what, error.remedy)
    for folder in folders:
        if not os.access(folder, os.W_OK):
            return Finding("folders", False, f"{folder} cannot be written", f"chown or chmod {folder}")
    return Finding("folders", True, f"state in {paths.state_dir()}, runs in {paths.runs_dir()}")


def _leftovers(arguments: argparse.Namespace) -> list[Finding]:
    async def use(service: VtopService) -> list[Finding]:
        await service.supervisor.settle()
        await service.hub.once(_GPU_LOOK_S)
        found = []
        for left in await service.remains():
            what = f"server {left.name}" if left.name else "a vLLM of others"
            found.append(Finding(what, False, left.text, left.remedy))
        for problem in service.supervisor.problems():
            found.append(Finding("state files", False, problem.what, problem.remedy))
        return found or [Finding("leftovers", True, "none")]

    try:
        return with_service(options_from(arguments, discover=False), use)
    except VtopError as error:
        return [Finding("leftovers", False, f"not looked for: {error.what}", error.remedy)]


def install_router() -> str:
    """Installs the router into an environment of vtop's own; returns its path.

    Raises:
        VtopError: pip failed.
    """
    place = own_router_environment()
    note(f"installing {ROUTER} into {place}")
    venv.EnvBuilder(with_pip=True, clear=True).create(place)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", ROUTER], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise VtopError(f"{ROUTER} could not be installed: {words}", f"Try by hand: {python} -m pip install {ROUTER}")
    return str(Path(place))


def run_doctor(arguments: argparse.Namespace) -> int:
    """Prints every check; exit 1 when one failed that servers need."""
    if arguments.install_router:
        say(f"installed in {install_router()}")
    python = Finding("Python", sys.version_info >= (3, 11), sys.version.split()[0], "vtop needs 3.11 or newer.")
    found = [python, _gpu(), _vllm(arguments.vllm), _router(), _presets(), _port(), _folders(), *_leftovers(arguments)]
    if arguments.json:
        say_json([asdict(finding) for finding in found])
    else:
        for finding in found:
            say(f"{'ok     ' if finding.ok else 'MISSING'} {finding.what}: {finding.found}")
            if not finding.ok and finding.remedy:
                say(f"        {finding.remedy}")
    needed = {"Python", "presets", "folders"}
    return 0 if all(f.ok for f in found if f.what in needed or f.what.startswith("server ")) else 1
