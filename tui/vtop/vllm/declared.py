"""What an installed vLLM declares: its flags and allowed words, read from its source text without importing it.

Importing vLLM costs 15 to 30 s and a GPU context; reading two files costs 0.1 s, and the result is cached.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vtop import paths

_NO_WORDS: frozenset[str] = frozenset()
_CACHE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Declared:
    """The words that one installation understands. An empty set: it could not be read."""

    flags: frozenset[str] = _NO_WORDS
    """With the dashes; Boolean flags also with their `--no-` twin."""
    quantizations: frozenset[str] = _NO_WORDS
    kv_cache_dtypes: frozenset[str] = _NO_WORDS
    speculative_methods: frozenset[str] = _NO_WORDS


def read_declared(package: Path) -> Declared:
    """Reads (or takes from the cache) what the `vllm` package folder declares.

    Args:
        package: the folder that holds `engine/arg_utils.py`.
    """
    files = _sources(package)
    stamp = _stamp(files)
    place: Path | None = None
    with contextlib.suppress(OSError):  # without a cache it is read again each time
        place = paths.cache_dir() / f"flags-{hashlib.sha256(str(package).encode()).hexdigest()[:16]}.json"
    known = _cached(place, stamp) if place is not None else None
    if known is not None:
        return known
    declared = Declared(
        flags=frozenset(flag for file in files["flags"] for flag in _flags(_text(file))),
        quantizations=_words(files["quantization"], ("QuantizationMethods", "QUANTIZATION_METHODS")),
        kv_cache_dtypes=_words(files["config"], ("CacheDType",)),
        speculative_methods=_words(files["config"], ("SpeculativeMethod",)),
    )
    if place is not None:
        _remember(place, stamp, declared)
    return declared


def _sources(package: Path) -> Mapping[str, list[Path]]:
    """The files that matter, wherever this version keeps them."""
    groups = {
        "flags": [package / "engine" / "arg_utils.py", *sorted((package / "entrypoints").rglob("cli_args.py"))],
        "quantization": [package / "model_executor" / "layers" / "quantization" / "__init__.py"],
        "config": [
            package / "config.py",
            *(package / "config" / f"{n}.py" for n in ("cache", "speculative", "__init__")),
        ],
    }
    return {group: [file for file in files if file.is_file()] for group, files in groups.items()}


def _stamp(files: Mapping[str, list[Path]]) -> list[list[object]]:
    stamp: list[list[object]] = [[_CACHE_FORMAT]]
    for group in files.values():
        for file in group:
            seen = file.stat()
            stamp.append([str(file), seen.st_mtime_ns, seen.st_size])
    return stamp


def _cached(place: Path, stamp: list[list[object]]) -> Declared | None:
    try:
        saved = json.loads(place.read_text(encoding="utf-8"))
        if saved["stamp"] != stamp:
            return None
        return Declared(**{name: frozenset(words) for name, words in saved["declared"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _remember(place: Path, stamp: list[list[object]], declared: Declared) -> None:
    words = {name: sorted(getattr(declared, name)) for name in Declared.__slots__}
    part = place.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):  # a full disk must not keep a server from starting
        part.write_text(json.dumps({"stamp": stamp, "declared": words}), encoding="utf-8")
        part.replace(place)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _flags(source: str) -> Iterator[str]:
    """Flags of one source file: `add_argument("--x")`, and the fields of the `*FrontendArgs` classes."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    generated_twins = "BooleanOptionalAction" in source
    booleans = {
        name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for name, is_bool in _fields(node) if is_bool
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
            for name, is_bool in _fields(node):
                yield from _with_twin("--" + name.replace("_", "-"), is_bool)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            twin = _is_boolean_optional(node) or (generated_twins and _config_field(node) in booleans)
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    yield from _with_twin(str(argument.value), twin)


def _with_twin(flag: str, twin: bool) -> Iterator[str]:
    yield flag
    if twin:
        yield f"--no-{flag[2:]}"


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """Annotated fields of a class, and whether each is a truth value."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            kind = ast.unparse(item.annotation).replace("Optional[bool]", "bool")
            if not kind.startswith("ClassVar"):
                yield item.target.id, {part.strip() for part in kind.split("|")} <= {"bool", "None"}


def _is_boolean_optional(call: ast.Call) -> bool:
    return any(
        word.arg == "action" and ast.unparse(word.value).endswith("BooleanOptionalAction") for word in call.keywords
    )


def _config_field(call: ast.Call) -> str:
    """The field in `**model_kwargs["enforce_eager"]` (also inside `**{**kwargs["x"], "default": None}`), or ""."""
    for word in call.keywords:
        for node in ast.walk(word.value) if word.arg is None else ():
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                return str(node.slice.value)
    return ""


def _words(files: list[Path], names: tuple[str, ...]) -> frozenset[str]:
    """Words of a module's `Name = Literal["a", Other, ...]`, list or table; names inside it are followed."""
    lists: dict[str, ast.expr] = {}
    for file in files:
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.parse(_text(file)).body:
                target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
                value = getattr(node, "value", None)
                if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                    lists.setdefault(target.id, value)

    def expand(value: ast.expr | None, depth: int) -> Iterator[str]:
        for node in ast.walk(value) if value is not None else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.Name) and depth:
                yield from expand(lists.get(node.id), depth - 1)

    return frozenset(word for name in names for word in expand(lists.get(name), 3))
