"""Load shapes: named load tests in TOML files, read as strictly as the presets of servers.

`presets/load/NAME.toml` ships with vtop; the user's own lie in `presets/load/` of the config folder and shadow shipped
ones of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from vtop import paths
from vtop.errors import UsageError, VtopError
from vtop.load.progress import LoadRequest
from vtop.load.workload import WORKLOADS, resolve
from vtop.preset_files import PresetFileProblem, check_name, read_folders, refuse_loaders_own
from vtop.strict_toml import build, nearest, parse

Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
NoneOrMore = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]


class LoadTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[load]` table: fields of `LoadRequest`. None: the workload's own value.

    There is no seed: a shape with one would send the same prompts each time, and measure the prefix cache.
    """

    workload: str = ""
    """A built-in workload; may be left out beside `file`."""
    concurrency: Count | None = None
    requests: Count | None = None
    duration_s: Positive | None = None
    rate: Positive | None = None
    """Requests a second (open loop)."""
    burstiness: Positive | None = None
    arrival: Literal["burst"] | None = None
    ramp_s: Positive | None = None
    prompt_tokens: Count | None = None
    prefix_tokens: Count | None = None
    prefixes: Count | None = None
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    ignore_eos: bool | None = None
    choices: Count | None = None
    endpoint: Literal["chat", "completions"] | None = None
    warmup: NoneOrMore | None = None
    file: str | None = None
    """Prompts from a file; a relative path begins at the folder of the shape's own file."""
    timeout_s: Positive | None = None
    processes: Count | None = None
    slo_ttft_s: Positive | None = None
    slo_tpot_s: Positive | None = None
    slo_e2e_s: Positive | None = None
    search: bool = False
    """Find the highest rate that holds the limits."""


class LoadShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file."""

    title: str
    load: LoadTable
    summary: str = ""
    name: str = ""
    """The file's name without `.toml`; set by the loader."""
    source: str = ""
    """The file it came from; set by the loader."""

    def request(self) -> LoadRequest:
        """The load test it describes, without a server."""
        fields = msgspec.structs.asdict(self.load)
        fields["workload"] = self.load.workload or "file"
        if self.load.file is not None:
            fields["file"] = str(Path(self.source).parent / Path(self.load.file).expanduser())
        return LoadRequest(**fields, shape=self.name)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Every load shape by name, and the files that are broken."""

    shapes: Mapping[str, LoadShape]
    problems: tuple[PresetFileProblem, ...] = ()

    def find(self, name: str) -> LoadShape:
        """One shape.

        Raises:
            UsageError: there is none of that name, or its file is broken.
        """
        if name in self.shapes:
            return self.shapes[name]
        for problem in self.problems:
            if Path(problem.file).stem == name:
                raise UsageError(f"{problem.file}: {problem.what}", problem.remedy)
        if name in WORKLOADS:
            raise UsageError(f"{name} is a workload, not a load shape", f"Run it: vtop load {name}.")
        raise UsageError(
            f"no load shape is called {name}", nearest(name, self.shapes, "`vtop presets --load` lists them.")
        )


def load_shapes(user_dir: Path | None = None, shipped_dir: Path | None = None) -> Shapes:
    """Reads shipped shapes, then the user's, which shadow shipped ones of the same name.

    Raises:
        VtopError: the installation has lost its shipped presets.
    """
    try:
        shipped = shipped_dir or paths.shipped_presets_dir() / "load"
    except FileNotFoundError as error:
        raise VtopError(str(error), "Install vtop again: pip install --force-reinstall vllm-vtop") from error
    shapes, problems = read_folders((shipped, user_dir or paths.user_presets_dir() / "load"), parse_shape)
    return Shapes(MappingProxyType(shapes), problems)


def parse_shape(text: str, name: str, source: str = "") -> LoadShape:
    """One shape from the text of its file.

    Args:
        text: TOML.
        name: the file's name without its ending.
        source: the file, for errors.

    Raises:
        UsageError: broken TOML, an unknown key, a value of the wrong kind, or values that make no test.
    """
    where = source or name
    check_name(name, where)
    table = parse(text, where)
    refuse_loaders_own(table, where)
    shape = build(LoadShape, {**table, "name": name, "source": source}, where, text=text)
    if not shape.load.workload and shape.load.file is None:
        raise UsageError(f"{where}: workload is missing in [load]", f"One of: {', '.join(WORKLOADS)}; or set file.")
    try:
        resolve(shape.request())
    except UsageError as error:
        raise UsageError(f"{where}: {error.what}", error.remedy) from None
    if shape.load.search and shape.load.slo_ttft_s is shape.load.slo_tpot_s is shape.load.slo_e2e_s is None:
        raise UsageError(f"{where}: a search needs limits to hold", "Set slo_ttft_s or slo_tpot_s, in seconds.")
    return shape


_REPLACES = {
    "requests": ("duration_s",),
    "duration_s": ("requests",),
    "rate": ("arrival",),
    "arrival": ("rate", "burstiness", "duration_s"),
}
"""A wish for the one takes the place of the shape's other: `-n 50` over a shape of ten minutes means 50 requests."""


def changed(request: LoadRequest, wishes: Mapping[str, Any]) -> LoadRequest:
    """A shape's request with single values changed; None (or an empty text) among the wishes changes nothing."""
    wanted = {name: value for name, value in wishes.items() if value is not None and value != ""}
    replaced = {other: None for name in wanted for other in _REPLACES.get(name, ()) if other not in wanted}
    values: dict[str, Any] = {**replaced, **wanted}
    return replace(request, **values)
