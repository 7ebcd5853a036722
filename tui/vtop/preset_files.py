"""Preset files: found, read strictly, changed by `--set`; errors name the file, the key and the nearest valid key."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from vtop import paths, secrets
from vtop.errors import UsageError, VtopError
from vtop.presets import Disaggregated, Preset, ServerSpec, Speculative

SECRET_ARGS = {"api-key", "hf-token"}
"""vLLM flags that would put a secret into `ps`."""
_SECRET_ENV = re.compile(r"(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)", re.IGNORECASE)
_OPEN_HOSTS = {"0.0.0.0", "::", ""}
_FREE_TABLES = {"args", "env", "prefill_args", "decode_args"}
_TABLES: Mapping[str, type[msgspec.Struct]] = MappingProxyType(
    {"": Preset, "server": ServerSpec, "server.speculative": Speculative, "server.disaggregated": Disaggregated}
)


@dataclass(frozen=True, slots=True)
class PresetFileProblem:
    """A file that cannot be used; the others can."""

    file: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every preset by name, and the files that are broken."""

    presets: Mapping[str, Preset]
    problems: tuple[PresetFileProblem, ...] = ()

    def find(self, name: str) -> Preset:
        """One preset.

        Raises:
            UsageError: there is none of that name, or its file is broken.
        """
        if name in self.presets:
            return self.presets[name]
        for problem in self.problems:
            if Path(problem.file).stem == name:
                raise UsageError(f"{problem.file}: {problem.what}", problem.remedy)
        raise UsageError(f"no preset is called {name}", _nearest(name, self.presets, "`vtop presets` lists them."))


def _nearest(word: str, known: Iterable[str], otherwise: str) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"Did you mean {close[0]}?" if close else otherwise


def load_catalog(user_dir: Path | None = None, shipped_dir: Path | None = None) -> Catalog:
    """Reads shipped presets, then the user's, which shadow shipped ones of the same name."""
    presets: dict[str, Preset] = {}
    problems: list[PresetFileProblem] = []
    for directory in (shipped_dir or paths.shipped_presets_dir(), user_dir or paths.user_presets_dir()):
        for file in sorted(directory.glob("*.toml")) if directory.is_dir() else ():
            try:
                presets[file.stem] = parse_preset(file.read_text(encoding="utf-8"), file.stem, str(file))
            except (OSError, UnicodeDecodeError) as error:
                problems.append(PresetFileProblem(str(file), f"cannot be read: {error}", "Check the file."))
            except VtopError as error:
                presets.pop(file.stem, None)
                problems.append(PresetFileProblem(str(file), error.what.removeprefix(f"{file}: "), error.remedy))
    return Catalog(MappingProxyType(presets), tuple(problems))


def parse_preset(text: str, name: str, source: str = "") -> Preset:
    """One preset from the text of its file.

    Raises:
        UsageError: broken TOML, an unknown key, a value of the wrong kind, or a literal secret.
    """
    where = source or name
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: not valid TOML: {error}", "Mend the line that it names.") from error
    return _decode({**table, "name": name, "source": source}, where)


def _decode(table: Mapping[str, Any], where: str) -> Preset:
    _check_keys(table, where)
    try:
        preset = msgspec.convert(table, Preset)
    except msgspec.ValidationError as error:
        text = str(error)
        path = text.rpartition(" - at `$")[2].rstrip("`").lstrip(".")
        reason = text.partition(" - at ")[0]
        key = f"key {path}: " if path else ""
        raise UsageError(f"{where}: {key}{reason}", "`vtop presets show NAME` prints a valid one.") from error
    _check_values(preset, where)
    return preset


def _check_keys(table: Mapping[str, Any], where: str) -> None:
    for path, kind in _TABLES.items():
        inner: Any = table
        for part in filter(None, path.split(".")):
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        if not isinstance(inner, Mapping):
            continue
        valid = [field.name for field in msgspec.structs.fields(kind)]
        for key in inner:
            if key not in valid:
                place = f"in [{path}]" if path else "at the top"
                shown = [word for word in valid if word not in {"name", "source"}]
                misplaced = "" if path or key not in ServerSpec.__struct_fields__ else f"{key} belongs into [server]."
                remedy = misplaced or _nearest(key, shown, f"Valid keys: {', '.join(shown)}.")
                raise UsageError(f"{where}: unknown key {key} {place}", remedy)


def _check_values(preset: Preset, where: str) -> None:
    spec = preset.server
    if spec.api_key is not None:
        try:
            secrets.check_reference(spec.api_key)
        except UsageError as error:
            raise UsageError(f"{where}: key server.api_key: {error.what}", error.remedy) from None
    for key in spec.args:
        if key.lstrip("-").replace("_", "-") in SECRET_ARGS:
            raise UsageError(
                f"{where}: key server.args.{key} would put a secret on the command line",
                'Use api_key = "env:NAME", or set the variable in your own environment.',
            )
    for key in spec.env:
        if _SECRET_ENV.search(key):
            raise UsageError(
                f"{where}: key server.env.{key} looks like a secret in a file",
                f"export {key} in your own environment; the server inherits it.",
            )
    if isinstance(spec.port, int) and not 1 <= spec.port <= 65535:
        raise UsageError(f"{where}: key server.port: {spec.port} is no port", 'Use 1 to 65535, or "auto".')
    share = spec.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"{where}: key server.gpu_memory_utilization: {share} is no share", "Use 0.1 to 1.")
    if spec.speculative is not None and spec.speculative.num_tokens < 1:
        raise UsageError(f"{where}: key server.speculative.num_tokens must be at least 1", "3 to 5 is usual.")


def warnings(preset: Preset) -> tuple[str, ...]:
    """What a person should know before this preset starts."""
    said = []
    if preset.server.host in _OPEN_HOSTS and preset.server.api_key is None:
        said.append(
            "listens on every network interface without an API key: anybody who reaches this machine can use it"
        )
    return tuple(said)


def parse_set(words: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` words as a mapping.

    Raises:
        UsageError: a word has no `=`.
    """
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {word} is not KEY=VALUE", "For example --set max_model_len=4096.")
        pairs[key.strip()] = value
    return pairs


def with_overrides(preset: Preset, overrides: Mapping[str, str]) -> Preset:
    """The preset with keys changed, as `--set` says them: `max_model_len=4096`, `speculative.num_tokens=3`.

    Raises:
        UsageError: an unknown key, or a value of the wrong kind.
    """
    if not overrides:
        return preset
    table: dict[str, Any] = msgspec.to_builtins(preset)
    for key, value in overrides.items():
        _apply(table, key, value)
    return _decode(table, "--set")


def _apply(table: dict[str, Any], key: str, value: str) -> None:
    parts = key.removeprefix("server.").split(".", 1)
    head = parts[0]
    server: dict[str, Any] = table["server"]
    if head not in ServerSpec.__struct_fields__:
        raise UsageError(
            f"--set {key}: no such key",
            _nearest(head, ServerSpec.__struct_fields__, f"Keys: {', '.join(ServerSpec.__struct_fields__)}."),
        )
    if len(parts) == 1:
        server[head] = _value(head, value)
        return
    if head in _FREE_TABLES:
        server.setdefault(head, {})
        server[head] = {**server[head], parts[1]: value if head == "env" else _guess(value)}
        return
    kind = {"speculative": Speculative, "disaggregated": Disaggregated}.get(head)
    if kind is None:
        raise UsageError(f"--set {key}: {head} has no keys of its own", f"Write --set {head}=VALUE.")
    inner, _, rest = parts[1].partition(".")
    if inner not in kind.__struct_fields__:
        raise UsageError(
            f"--set {key}: no such key",
            _nearest(inner, kind.__struct_fields__, f"Keys of {head}: {', '.join(kind.__struct_fields__)}."),
        )
    changed = dict(server.get(head) or {})
    if rest:
        changed[inner] = {**changed.get(inner, {}), rest: _guess(value)}
    else:
        changed[inner] = None if value in _NOTHING else _guess(value)
    server[head] = changed


_NOTHING = {"", "none", "null"}
_STRINGS = {
    "model",
    "served_name",
    "host",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "load_format",
    "python",
    "api_key",
}


def _value(key: str, value: str) -> Any:
    if value.lower() in _NOTHING and key not in {"model", "host"}:
        return None
    return value if key in _STRINGS else _guess(value)


def _guess(value: str) -> Any:
    """Numbers, booleans, JSON lists and tables as themselves; anything else as text."""
    lowered = value.strip().lower()
    if lowered in {"true", "yes", "on"}:
        return True
    if lowered in {"false", "no", "off"}:
        return False
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
