"""Preset files: found, read strictly, changed by `--set`; errors name the file, the key and the nearest valid key."""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, TypeVar

import msgspec

from vtop import paths, secrets
from vtop.errors import UsageError, VtopError
from vtop.presets import Preset, ServerSpec
from vtop.strict_toml import alternatives, build, hints_of, nearest, parse, structs_in

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Preset names become names of servers and of their folders."""
_LOADERS_OWN = ("name", "source")
_SET_APART = {"model": "server.model", "host": "server.host", "port": "server.port",
              "served-model-name": "server.served_name"}  # fmt: skip
"""Flags that vtop must know, so they have keys of their own."""
_FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_KNOWN_KEYS = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,})\b|://[^/\s:@]+:[^/\s:@]+@")
"""Tokens of Hugging Face, keys of OpenAI's form, and URLs with a password in them."""
_OPEN_HOSTS = {"", "*", "0"}
"""Every interface, beside the addresses that say so themselves (0.0.0.0, ::)."""
_WITHOUT_DRAFT = {"ngram", "suffix"}
_WITH_DRAFT = {"draft_model", "eagle", "eagle3", "medusa", "mlp_speculator"}


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
        raise UsageError(f"no preset is called {name}", nearest(name, self.presets, "`vtop presets` lists them."))


def load_catalog(user_dir: Path | None = None, shipped_dir: Path | None = None) -> Catalog:
    """Reads shipped presets, then the user's, which shadow shipped ones of the same name.

    A broken file of the user's keeps its shadow: starting another preset than the one meant would be worse than none.

    Raises:
        VtopError: the installation has lost its shipped presets.
    """
    try:
        shipped = shipped_dir or paths.shipped_presets_dir()
    except FileNotFoundError as error:
        raise VtopError(str(error), "Install vtop again: pip install --force-reinstall vllm-vtop") from error
    presets, problems = read_folders((shipped, user_dir or paths.user_presets_dir()), parse_preset)
    return Catalog(MappingProxyType(presets), problems)


def read_folders(
    directories: Sequence[Path], parse_text: Callable[[str, str, str], T]
) -> tuple[dict[str, T], tuple[PresetFileProblem, ...]]:
    """What the TOML files of several folders say, by name; a later folder's file shadows an earlier one's.

    Args:
        directories: they need not exist.
        parse_text: (text, name, file) to what it describes, or a `VtopError` that begins with the file.
    """
    found: dict[str, T] = {}
    problems: list[PresetFileProblem] = []
    for directory in directories:
        for file in _files(directory):
            found.pop(file.stem, None)
            try:
                found[file.stem] = parse_text(file.read_text(encoding="utf-8"), file.stem, str(file))
            except UnicodeDecodeError:
                problems.append(PresetFileProblem(str(file), "is not UTF-8 text", "Save it as UTF-8."))
            except OSError as error:
                problems.append(PresetFileProblem(str(file), f"cannot be read: {error.strerror}", "Check the file."))
            except VtopError as error:
                what = error.what.removeprefix(str(file)).lstrip(":, ")
                problems.append(PresetFileProblem(str(file), what, error.remedy))
    return dict(sorted(found.items())), tuple(problems)


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(file for file in directory.glob("*.toml") if _is_preset(file))
    except OSError:
        return []


def _is_preset(file: Path) -> bool:
    """A link to nothing counts, so that it is told and keeps its shadow like any other broken file."""
    return not file.name.startswith(".") and (file.is_file() or (file.is_symlink() and not file.exists()))


def parse_preset(text: str, name: str, source: str = "") -> Preset:
    """One preset from the text of its file.

    Args:
        text: TOML.
        name: the file's name without its ending.
        source: the file, for errors.

    Raises:
        UsageError: broken TOML, an unknown key, a value of the wrong kind, contradicting words, or a secret
            where only a reference may stand.
    """
    where = source or name
    check_name(name, where)
    table = parse(text, where)
    refuse_loaders_own(table, where)
    preset = build(Preset, {**table, "name": name, "source": source}, where, text=text)
    _check(preset, where)
    return preset


def check_name(name: str, where: str) -> None:
    """Refuses what cannot name a preset.

    Raises:
        UsageError: other characters than letters, digits, dot, dash and underscore, or more than 64.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{where}: {name!r} cannot be a preset's name", "Use letters, digits, dot, dash and underscore, 64 at most."
        )


def refuse_loaders_own(table: Mapping[str, Any], where: str) -> None:
    """Refuses keys that the loader sets itself.

    Raises:
        UsageError: the file sets one.
    """
    for key in _LOADERS_OWN:
        if key in table:
            raise UsageError(f"{where}: {key} is set by vtop", "Take it out: a preset is called as its file is.")


def parse_set(words: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` words as a mapping; the last word for a key counts.

    Raises:
        UsageError: a word has no `=`.
    """
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {word} is not KEY=VALUE", "For example --set max_model_len=4096.")
        pairs[key.strip()] = value.strip()
    return pairs


def with_overrides(preset: Preset, overrides: Mapping[str, str]) -> Preset:
    """The preset with keys changed, as `--set` says them: `max_model_len=4096`, `args.enforce-eager=true`.

    Values are read as the key's type says; `none` leaves an optional key out; lists are JSON or `0,1`.

    Raises:
        UsageError: an unknown key, or a value of the wrong kind.
    """
    if not overrides:
        return preset
    table: dict[str, Any] = msgspec.to_builtins(preset)
    for key, value in overrides.items():
        _apply(table, key, value)
    changed = build(Preset, table, "--set", strict=False)
    _check(changed, "--set")
    return changed


def _apply(table: dict[str, Any], key: str, value: str) -> None:
    """Sets one dotted key in the table of a preset."""
    parts = key.removeprefix("server.").split(".")
    kind: type[msgspec.Struct] = ServerSpec
    inner: dict[str, Any] = table["server"]
    if parts[0] not in ServerSpec.__struct_fields__:
        words = [word for word in Preset.__struct_fields__ if word not in {*_LOADERS_OWN, "server"}]
        if key.startswith("server.") or parts[0] not in words:
            known = [*ServerSpec.__struct_fields__, *words]
            raise UsageError(
                f"--set {key}: there is no such key", nearest(parts[0], known, f"Keys: {', '.join(known)}.")
            )
        kind, inner = Preset, table
    while True:
        head, rest = parts[0], parts[1:]
        hint = hints_of(kind).get(head)
        if head not in kind.__struct_fields__:
            known = list(kind.__struct_fields__)
            raise UsageError(f"--set {key}: there is no such key", nearest(head, known, f"Keys: {', '.join(known)}."))
        if not rest:
            inner[head] = _typed(value, hint)
            return
        structs = structs_in(hint)
        if structs:
            kind = structs[0]
            inner[head] = dict(inner.get(head) or {})
            inner, parts = inner[head], rest
        elif any(getattr(part, "__origin__", None) is dict for part in alternatives(hint)):
            inner[head] = _with_entry(inner.get(head) or {}, ".".join(rest), value, text_only=head == "env")
            return
        else:
            raise UsageError(f"--set {key}: {head} has no keys of its own", f"Write --set {head}=VALUE.")


_NOTHING = {"", "none", "null"}


def _with_entry(entries: Mapping[str, Any], name: str, value: str, *, text_only: bool) -> dict[str, Any]:
    """A free table with one entry changed; `none` removes it. Dashes and underscores in flags are the same."""
    same = name if text_only else name.replace("_", "-")
    kept = {key: old for key, old in entries.items() if (key if text_only else key.replace("_", "-")) != same}
    if value.lower() not in _NOTHING:
        kept[name] = value if text_only else _guess(value)
    return kept


def _typed(value: str, hint: Any) -> Any:
    """A value as far as text does not say it all; the rest is the decoder's."""
    kinds = alternatives(hint)
    if NoneType in kinds and value.lower() in _NOTHING:
        return None
    if value[:1] in "[{" and value:
        return _guess(value)
    if str in kinds:
        return value
    if bool in kinds and value.lower() in {"yes", "on", "no", "off"}:
        return value.lower() in {"yes", "on"}
    if any(getattr(kind, "__origin__", None) is list for kind in kinds) and not value.isdigit():
        return [_guess(part.strip()) for part in value.split(",")]
    return value


def _guess(value: str) -> Any:
    """JSON as what it says (numbers, true, false, lists, tables); anything else as text.

    A number that would be written differently (a branch called 1.10, a commit 12e4) is text.
    """
    try:
        said = json.loads(value, parse_constant=str)
    except (ValueError, RecursionError):
        return value
    is_number = isinstance(said, int | float) and not isinstance(said, bool)
    return value if is_number and str(said) != value else said


def warnings(preset: Preset) -> tuple[str, ...]:
    """What a person should know before this preset starts."""
    spec = preset.server
    said = []
    if _listens_everywhere(spec.host) and spec.api_key is None:
        said.append(
            "listens on every network interface without an API key: anybody who reaches this machine can use it"
        )
    elif _listens_everywhere(spec.host):
        said.append("listens on every network interface: the API key guards /v1 only, /metrics and the like stay open")
    if spec.disaggregated is not None and spec.api_key is not None:
        said.append("the router adds the API key for whoever asks: the pair is open to all who reach its port")
    if spec.trust_remote_code:
        said.append("trust_remote_code runs Python code that comes with the model")
    return tuple(said)


def _listens_everywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host in _OPEN_HOSTS


def _check(preset: Preset, where: str) -> None:
    spec = preset.server
    try:
        for field in Preset.__struct_fields__:
            _check_passable(field, getattr(preset, field), where)
    except RecursionError as error:
        raise UsageError(f"{where}: nested too deeply", "Write it with fewer levels.") from error
    for field in ("model", "served_name"):
        _check_model_name(field, getattr(spec, field), where)
    if spec.api_key is not None:
        try:
            secrets.check_reference(spec.api_key)
        except UsageError as error:
            raise UsageError(f"{where}: server.api_key: {error.what}", error.remedy) from None
    for table, entries in _free_tables(spec):
        for key, value in entries.items():
            if table == "server.env":
                _check_env(key, value, where)
            else:
                _check_flag(table, key, where)
            _check_text(f"{table}.{key}", value, where)
    for field in ("command", "stop_command"):
        for word in getattr(spec, field) or ():
            _check_command_word(field, word, where)
    _check_together(spec, where)


def _check_passable(place: str, value: object, where: str, *, in_json: bool = False) -> None:
    """Refuses what no command line, environment or JSON text can carry, so that it is no surprise at the start."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        inside = in_json or place.count(".") >= 2  # a table that is a flag's value goes out as JSON
        for key, inner in value.items():
            _check_passable(place, str(key), where)
            _check_passable(f"{place}.{key}", inner, where, in_json=inside)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_passable(place, inner, where, in_json=in_json)
    elif isinstance(value, str):
        if not _is_text(value):
            raise UsageError(f"{where}: {place!r} holds a byte that is no text", "Write it as UTF-8, without NUL.")
    elif isinstance(value, float):
        if in_json and not math.isfinite(value):
            raise UsageError(f"{where}: {place} is {value}, which JSON cannot say", "Give a finite number.")
    elif value is not None and not isinstance(value, int):
        raise UsageError(f"{where}: {place} is a date or time, which no flag takes", 'Put it in quotes: "...".')


def _is_text(value: str) -> bool:
    """False with a NUL, or with bytes of an argument that were not UTF-8 (Python carries these as lone surrogates)."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _check_model_name(field: str, value: str | None, where: str) -> None:
    if value is None:
        return
    if not value.strip():
        raise UsageError(f"{where}: server.{field} is empty", "Write a name, or leave it out.")
    if value.startswith("-"):
        raise UsageError(
            f"{where}: server.{field}: {value} looks like a flag", "Flags belong in [server.args], without dashes."
        )


def _free_tables(spec: ServerSpec) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "server.args", spec.args
    yield "server.env", spec.env
    if spec.disaggregated is not None:
        yield "server.disaggregated.prefill_args", spec.disaggregated.prefill_args
        yield "server.disaggregated.decode_args", spec.disaggregated.decode_args


def _check_flag(table: str, key: str, where: str) -> None:
    flag = key.lstrip("-").replace("_", "-")
    if flag in {"api-key", "hf-token"}:
        raise UsageError(
            f"{where}: {table}.{key} would put a secret on the command line",
            'Use api_key = "env:NAME", or export HF_TOKEN in your shell: the server inherits it.',
        )
    if key.startswith("-"):
        raise UsageError(f"{where}: {table}: {key} is written without the dashes", f"Write {key.lstrip('-')} = ...")
    if not _FLAG.fullmatch(key):
        raise UsageError(f"{where}: {table}: {key!r} is no flag", "Write a flag of vLLM without the dashes.")
    if flag in _SET_APART and not (flag == "host" and table == "server.args"):
        raise UsageError(f"{where}: {table}.{key} has a key of its own", f"Use {_SET_APART[flag]}.")


def _check_env(key: str, value: str, where: str) -> None:
    if not key or "=" in key:
        raise UsageError(f"{where}: server.env: {key!r} is no variable's name", 'Write NAME = "value".')
    if secrets.looks_secret(key) and value:
        raise UsageError(
            f"{where}: server.env.{key} looks like a secret in a file",
            f"export {key} in your own shell: the server inherits it.",
        )


def _check_command_word(field: str, word: str, where: str) -> None:
    name, equals, value = word.lstrip("-").partition("=")
    if equals and value and not value.startswith("{") and secrets.looks_secret(name):
        raise UsageError(
            f"{where}: server.{field} holds a secret ({name})",
            f'Pass the variable on by its name alone (docker: -e {name}); api_key = "env:NAME" sets VLLM_API_KEY.',
        )
    if field == "command" and name in {"api-key", "hf-token"}:
        raise UsageError(f"{where}: server.command would put a secret on the command line", "Use api_key instead.")
    _check_text(f"server.{field}", word, where)


def _check_text(place: str, value: object, where: str) -> None:
    if isinstance(value, Mapping):
        for inner in value.values():
            _check_text(place, inner, where)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_text(place, inner, where)
    elif isinstance(value, str) and _KNOWN_KEYS.search(value):
        raise UsageError(f"{where}: {place} holds a secret", "Keep it in a variable of your shell, not in a file.")


def _check_together(spec: ServerSpec, where: str) -> None:
    plan = spec.speculative
    if plan is not None and plan.method in _WITHOUT_DRAFT and plan.model is not None:
        raise UsageError(
            f"{where}: server.speculative: {plan.method} has no draft model",
            "Leave speculative.model out, or choose method draft_model.",
        )
    if plan is not None and plan.method in _WITH_DRAFT and plan.model is None:
        raise UsageError(f"{where}: server.speculative: {plan.method} needs a model", "Set speculative.model.")
    several = "disaggregated" if spec.disaggregated is not None else "replicas" if spec.replicas > 1 else ""
    if spec.command is not None and several:
        raise UsageError(f"{where}: server.command starts one process, server.{several} several", "Use one of the two.")
    if spec.disaggregated is not None and spec.replicas > 1:
        raise UsageError(
            f"{where}: server.replicas does not go together with server.disaggregated",
            "Use disaggregated.prefill and disaggregated.decode: how many servers of each.",
        )
    if spec.command is None and "host" in spec.args:
        raise UsageError(f"{where}: server.args.host has a key of its own", "Use server.host.")
    for field in ("stop_command", "vllm_version"):
        if spec.command is None and getattr(spec, field) is not None:
            raise UsageError(
                f"{where}: server.{field} is only for a command of the preset's own", "Set server.command."
            )
