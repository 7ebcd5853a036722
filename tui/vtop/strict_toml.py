"""Reads TOML into a struct strictly; errors name the file, the line, the key and the nearest valid key."""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from vtop.errors import UsageError

T = TypeVar("T", bound=msgspec.Struct)

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
    "null": "nothing",
}
_PROBLEM = re.compile(r"(?P<reason>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)


def parse(text: str, where: str) -> dict[str, Any]:
    """The table in a TOML text.

    Raises:
        UsageError: broken TOML, with the line.
    """
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).partition(" (at ")
        at = f", {place.rstrip(')')}" if place else ""
        remedy = (
            "That key is there twice." if "overwrite" in reason else 'Mend that line; text needs quotes: key = "value".'
        )
        raise UsageError(f"{where}{at}: not valid TOML: {reason}", remedy) from error
    except RecursionError as error:
        raise UsageError(f"{where}: nested too deeply", "Write it with fewer levels.") from error


def build(kind: type[T], table: Mapping[str, Any], where: str, *, text: str = "", strict: bool = True) -> T:
    """The struct from a table.

    Args:
        kind: the struct.
        table: what was read.
        where: the file, for errors.
        text: what it was read from, to find lines in.
        strict: False also takes numbers and truth values that are written as text.

    Raises:
        UsageError: an unknown or missing key, or a value of the wrong kind.
    """
    try:
        return msgspec.convert(table, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _explained(str(error), kind, table, where, text) from error


def nearest(word: str, known: Iterable[str], otherwise: str) -> str:
    """A remedy: the nearest known word, or else another sentence."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"Did you mean {close[0]}?" if close else otherwise


def structs_in(hint: Any) -> list[type[msgspec.Struct]]:
    """The structs that a type allows: `Speculative | None` -> [Speculative]."""
    return [part for part in alternatives(hint) if isinstance(part, type) and issubclass(part, msgspec.Struct)]


def alternatives(hint: Any) -> list[Any]:
    """The members of a union, without annotations."""
    if typing.get_origin(hint) is typing.Annotated:
        return alternatives(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [member for part in typing.get_args(hint) for member in alternatives(part)]
    return [hint]


def hints_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Types of a struct's fields by name."""
    return typing.get_type_hints(kind, include_extras=True)


def _explained(message: str, kind: type[msgspec.Struct], table: Mapping[str, Any], where: str, text: str) -> UsageError:
    match = _PROBLEM.fullmatch(message)
    assert match is not None
    reason = match["reason"]
    path = [part for part in re.split(r"[.\[\]]+", match["path"] or "") if part]
    named = re.search(r"field `(.+?)`", reason)
    if named is not None:
        return _wrong_key(reason, named[1], path, kind, where, text)
    key = ".".join(path)
    return UsageError(
        f"{where}{_line(text, path)}: {key + ': ' if key else ''}{_wrong_value(reason, path, kind, table)}",
        _remedy(reason, path, kind, table, in_file=bool(text)),
    )


def _wrong_key(
    reason: str, key: str, path: Sequence[str], kind: type[msgspec.Struct], where: str, text: str
) -> UsageError:
    place = _table_name(".".join(path))
    inner = _struct_at(kind, path)
    valid = [name for name in inner.__struct_fields__ if not name.startswith("_")] if inner is not None else []
    if "missing" in reason:
        is_table = inner is not None and structs_in(hints_of(inner).get(key))
        return UsageError(
            f"{where}{_line(text, path)}: {key} is missing {place}", f"Add [{key}]." if is_table else f"Add {key} = ..."
        )
    elsewhere = [
        owner for owner, struct in _nested(kind) if key in struct.__struct_fields__ and owner != ".".join(path)
    ]
    otherwise = f"Valid keys there: {', '.join(valid)}."
    remedy = f"It belongs {_table_name(elsewhere[0])}." if elsewhere else nearest(key, valid, otherwise)
    return UsageError(f"{where}{_line(text, [*path, key])}: there is no key {key} {place}", remedy)


def _table_name(path: str) -> str:
    return f"in [{path}]" if path else "at the top, before any [table]"


def _nested(kind: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    yield path, kind
    for name, hint in hints_of(kind).items():
        for inner in structs_in(hint):
            yield from _nested(inner, f"{path}.{name}".lstrip("."))


def _struct_at(kind: type[msgspec.Struct], path: Sequence[str]) -> type[msgspec.Struct] | None:
    for part in path:
        found = structs_in(hints_of(kind).get(part))
        if not found:
            return None
        kind = found[0]
    return kind


def _value_at(table: Any, path: Sequence[str]) -> Any:
    for part in path:
        if not isinstance(table, Mapping):
            return None
        table = table.get(part)
    return table


def _wrong_value(reason: str, path: Sequence[str], kind: type[msgspec.Struct], table: Mapping[str, Any]) -> str:
    choices, value = _choices(kind, path), _value_at(table, path)
    if reason.startswith("Invalid enum value"):
        others = [_WORDS[part.__name__] for part in _kinds(kind, path) if getattr(part, "__name__", "") in _WORDS]
        return f"must be {' or '.join([*others, _one_of(choices)])}, not {value!r}"
    expected = _EXPECTED.fullmatch(reason)
    if expected is None:
        return reason
    words = [word for word in expected["kinds"].split(" | ") if word != "null"]
    allowed = [_one_of(choices) if word == "str" and choices else _WORDS.get(word, word) for word in words]
    limit = f" {expected['limit']}, not {value}" if expected["limit"] else ""
    if expected["length"]:
        return f"must be {' or '.join(allowed)} with {expected['length']} or more entries"
    got = f", not {_WORDS.get(expected['got'], expected['got'])}" if expected["got"] else ""
    return f"must be {' or '.join(dict.fromkeys(allowed))}{limit}{got}"


def _one_of(choices: Sequence[str]) -> str:
    return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]


def _kinds(kind: type[msgspec.Struct], path: Sequence[str]) -> list[Any]:
    owner = _struct_at(kind, path[:-1]) if path else None
    return alternatives(hints_of(owner).get(path[-1])) if owner is not None else []


def _choices(kind: type[msgspec.Struct], path: Sequence[str]) -> list[str]:
    """The words that a key may be, where they are a list."""
    literals = [part for part in _kinds(kind, path) if typing.get_origin(part) is typing.Literal]
    return [str(word) for part in literals for word in typing.get_args(part)]


def _remedy(
    reason: str, path: Sequence[str], kind: type[msgspec.Struct], table: Mapping[str, Any], *, in_file: bool
) -> str:
    choices, value = _choices(kind, path), _value_at(table, path)
    if choices and isinstance(value, str):
        return nearest(value, choices, "")
    expected = _EXPECTED.fullmatch(reason)
    if in_file and expected is not None:
        if expected["got"] == "str" and {"int", "float", "bool"} & set(expected["kinds"].split(" | ")):
            return "Write it without quotes."
        if expected["got"] in {"int", "float", "bool"} and expected["kinds"].startswith("str"):
            return "Write it in quotes."
    return ""


_EXPECTED = re.compile(
    r"Expected `(?P<kinds>.+?)`(?: of length >= (?P<length>\d+))?(?: (?P<limit>.+?))?(?:, got `(?P<got>.+)`)?"
)
_HEADER = re.compile(r"\s*\[+\s*([^\[\]]+?)\s*\]+\s*(?:#.*)?")


def _line(text: str, path: Sequence[str]) -> str:
    """`, line 7` where exactly one line sets that key (or opens that table); "" where none or several may."""
    wanted = [part for part in path if part != "..." and not part.isdigit()]
    if not text or not wanted:
        return ""
    found = []
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.fullmatch(line)
        if header is not None:
            table = [part.strip().strip("\"'") for part in header[1].split(".")]
            if table == wanted:
                found.append(number)
            continue
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if key is None:
            continue
        place = [*table, *(part.strip("\"'") for part in key[1].split("."))]
        inline = place == wanted[: len(place)] and re.search(rf"[{{,]\s*{re.escape(wanted[-1])}\s*=", line)
        if place == wanted or inline:
            found.append(number)
    return f", line {found[0]}" if len(found) == 1 else ""
