"""Which vLLM release has which flag, for a version that is not installed (`vtop presets show NAME --vllm-version V`).

`flag_table.json` beside this file was extracted from the sources of 43 releases, 0.6.0 to 0.33.0: for each flag of
`vllm serve` the first and the last of those releases that have it, and the flags that have a `--no-` twin. A change can
lie between two of these releases; a version in between is read as the release before it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from vtop.errors import UsageError
from vtop.vllm.install import Installation, release

_TWINS_SINCE = "0.8.5.post1"
_TWIN_SINCE_OF = {"enable-prefix-caching": "0.6.6.post1"}
"""Boolean flags that had a `--no-` twin before the others."""


@dataclass(frozen=True, slots=True)
class _Table:
    versions: tuple[str, ...]
    booleans: frozenset[str]
    flags: dict[str, tuple[str, str]]


@functools.cache
def _table() -> _Table:
    raw = json.loads((Path(__file__).with_name("flag_table.json")).read_text(encoding="utf-8"))
    flags = {name: (first, last) for name, (first, last) in raw["flags"].items()}
    return _Table(tuple(raw["versions"]), frozenset(raw["booleans"]), flags)


def known_versions() -> tuple[str, ...]:
    """The releases of the table, oldest first."""
    return _table().versions


def nearest_release(version: str) -> str:
    """The release of the table that a version is read as: itself, or the last one before it.

    Raises:
        UsageError: it is no version, or older than the table.
    """
    versions = _table().versions
    if version in versions:
        return version
    wanted = release(version)
    older = [known for known in versions if release(known) <= wanted]
    if not older:
        raise UsageError(
            f"{version} is not a vLLM version that vtop speaks",
            f"Give one from {versions[0]} to {versions[-1]} or newer.",
        )
    return older[-1]


def lifetime(flag: str) -> tuple[str, str | None] | None:
    """The first and the last release that have a flag (None: the newest still has it), or None for a stranger."""
    table = _table()
    known = table.flags.get(flag.removeprefix("--"))
    if known is None:
        return None
    first, last = known
    return first, None if last == table.versions[-1] else last


@functools.cache
def flags_of(version: str) -> frozenset[str]:
    """The flags that a release declares, with `--no-` twins.

    Raises:
        UsageError: see `nearest_release`.
    """
    table = _table()
    order = {known: position for position, known in enumerate(table.versions)}
    at = order[nearest_release(version)]
    flags = set()
    for name, (first, last) in table.flags.items():
        if order[first] <= at <= order[last]:
            flags.add(f"--{name}")
            if name in table.booleans and at >= order[_TWIN_SINCE_OF.get(name, _TWINS_SINCE)]:
                flags.add(f"--no-{name}")
    return frozenset(flags)


def hypothetical_installation(version: str, device: str = "cuda") -> Installation:
    """An installation that is not there, to show what that version would be started with.

    Raises:
        UsageError: see `nearest_release`.
    """
    return Installation(
        python="python",
        version=version,
        flags=flags_of(version),
        vllm_command="vllm",
        command_works=True,
        device=device,
        source="not installed: flags by table",
        plugins=None,
    )
