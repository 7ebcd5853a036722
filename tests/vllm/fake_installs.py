"""Environments on disk that look like vLLM's of several eras: metadata and a few lines of source, nothing that runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

OLD_ENGINE = """
class StoreBoolean(argparse.Action):
    pass

class EngineArgs:
    model: str = "m"
    enable_prefix_caching: bool = False

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument('--model', type=str, default='m')
        parser.add_argument('--tensor-parallel-size', '-tp', type=int, default=1)
        parser.add_argument('--enable-prefix-caching', action='store_true')
        parser.add_argument('--enable-chunked-prefill', action=StoreBoolean, nargs="?", const="True")
        parser.add_argument("--disable-log-requests", action="store_true")
        parser.add_argument("--speculative-model", type=nullable_str)
"""
"""Each flag written out, as up to 0.8."""

MIDDLE_ENGINE = OLD_ENGINE.replace("action='store_true'", "action=argparse.BooleanOptionalAction")
"""With Boolean flags that have a twin, as about 0.6.6."""

NEW_ENGINE = """
def get_kwargs(cls):
    return {name: {"action": argparse.BooleanOptionalAction} for name in cls}

@dataclass
class EngineArgs:
    model: str = ModelConfig.model
    enforce_eager: bool = ModelConfig.enforce_eager
    enable_prefix_caching: bool | None = None
    trust_remote_code: Optional[bool] = False
    max_model_len: int | None = None

    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="ModelConfig")
        group.add_argument("--model", **model_kwargs["model"])
        group.add_argument("--enforce-eager", **model_kwargs["enforce_eager"])
        group.add_argument(
            "--enable-prefix-caching", **{**model_kwargs["enable_prefix_caching"], "default": None}
        )
        group.add_argument("--trust-remote-code", **model_kwargs["trust_remote_code"])
        group.add_argument("--max-model-len", "--longest", **model_kwargs["max_model_len"])
        group.add_argument("--speculative-config", type=json.loads)
"""
"""Flags generated from config classes, as from 0.8.5 on."""

OLD_FRONTEND = """
parser.add_argument("--host", type=str)
parser.add_argument("--port", type=int)
"""

NEW_FRONTEND = """
class BaseFrontendArgs:
    chat_template: str | None = None
    enable_log_outputs: bool = False
    _counter: ClassVar[int] = 0

class FrontendArgs(BaseFrontendArgs):
    host: str | None = None
    disable_uvicorn_access_log: bool = False

def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--headless", action="store_true")
"""

SPECULATIVE = """
MTPModelTypes = Literal["deepseek_mtp", "mtp"]
EagleModelTypes = Literal["eagle", "eagle3", MTPModelTypes]
SpeculativeMethod = Literal["ngram", "suffix", EagleModelTypes]
"""
CACHE = 'CacheDType = Literal["auto", "fp8", "nvfp4"]\n'
QUANTIZATION = """
QuantizationMethods = Literal["awq", "fp8"]  # "gone" is not there any more
QUANTIZATION_METHODS: list[str] = list(get_args(QuantizationMethods))
"""
OLD_QUANTIZATION = (
    'QUANTIZATION_METHODS: Dict[str, Type[QuantizationConfig]] = {"aqlm": AQLMConfig, "awq": AWQConfig}\n'
)

OLD_SOURCES: Mapping[str, str] = {
    "engine/arg_utils.py": OLD_ENGINE,
    "entrypoints/openai/cli_args.py": OLD_FRONTEND,
    "model_executor/layers/quantization/__init__.py": OLD_QUANTIZATION,
}
NEW_SOURCES: Mapping[str, str] = {
    "engine/arg_utils.py": NEW_ENGINE,
    "entrypoints/launchers/cli_args.py": NEW_FRONTEND,
    "model_executor/layers/quantization/__init__.py": QUANTIZATION,
    "config/speculative.py": SPECULATIVE,
    "config/cache.py": CACHE,
}


def write_package(package: Path, sources: Mapping[str, str]) -> Path:
    """The `vllm` folder with some source files."""
    for name, text in sources.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return package


def write_metadata(site: Path, name: str, version: str) -> Path:
    """A distribution's metadata folder."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\nName: not-this\n")
    return info


def make_environment(
    prefix: Path,
    distributions: Mapping[str, str],
    sources: Mapping[str, str] = NEW_SOURCES,
    *,
    command: bool = True,
    venv: bool = True,
    torch: str | None = None,
) -> Path:
    """A virtual (or conda) environment; returns its site-packages."""
    site = prefix / "lib" / "python3.11" / "site-packages"
    write_package(site / "vllm", sources)
    for name, version in distributions.items():
        write_metadata(site, name, version)
    binaries = prefix / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    (binaries / "python").write_text("#!/bin/sh\nexit 3\n")
    (binaries / "python").chmod(0o755)
    if command:
        (binaries / "vllm").write_text(f"#!{binaries / 'python'}\nimport sys\n")
        (binaries / "vllm").chmod(0o755)
    if venv:
        (prefix / "pyvenv.cfg").write_text("home = /nowhere\ninclude-system-site-packages = false\n")
    if torch is not None:
        (site / "torch").mkdir()
        (site / "torch" / "version.py").write_text(torch)
    return site
