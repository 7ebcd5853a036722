"""A metrics page, plain Prometheus text or OpenMetrics, to samples: pure, fast, and only the names that are wanted.

The label part of a line hardly ever changes between two scrapes, so it is parsed once and looked up after that; a 68 KB
page then costs one pass of a regular expression and one dictionary look-up a line.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection
from dataclasses import dataclass

from vtop.vllm.samples import Layout, Series

_NAME = re.compile(rb"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*')
_REST = re.compile(rb"[ \t]*([^ \t]+)(?:[ \t]+[-+0-9.eE]+)?[ \t]*(?:#.*)?")
_FAMILY = re.compile(
    rb"^[ \t]*(?:#[ \t]*TYPE[ \t]+([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]|"
    rb"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:[ \t]*\{|[ \t]+[-+.0-9NI]))",
    re.MULTILINE,
)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_UNESCAPED = {b"n": b"\n", b"\\": b"\\", b'"': b'"'}
_SPARE_KEYS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """The wanted samples of one page."""

    layout: Layout
    values: array[float]
    """In the order of the layout; NaN and infinities as the page says them."""
    bad_lines: int
    """Lines that begin like a wanted one and cannot be read."""
    complete: bool
    """False: the page was cut off: last line without its end, OpenMetrics without EOF, buckets without a count."""


class PageParser:
    """Parses pages of one server; remembers label texts between them.

    Args:
        names: exact names to keep; everything else, `_created` gauges too, is dropped.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        # A line is looked at only if its name can be a wanted one: the part up to the first separator decides cheaply.
        heads = sorted({re.match(r"[a-zA-Z]+[:_]?", name).group() for name in self._names})  # type: ignore[union-attr]
        pattern = "|".join(re.escape(head) for head in heads)
        self._lines = re.compile(rb"^[ \t]*(?:" + pattern.encode() + rb")[^\n]*", re.MULTILINE)
        self._known: dict[bytes, Series | None] = {}
        self._layout = Layout(())
        self._whole = True

    def parse(self, body: bytes, openmetrics: bool = False) -> Page:
        """Reads a page.

        Args:
            body: the page as it came.
            openmetrics: the server called it OpenMetrics, so that it must end in `# EOF`.
        """
        if len(self._known) > _SPARE_KEYS + 4 * len(self._layout.series):
            self._known.clear()
        known = self._known
        keys: list[Series] = []
        values: list[float] = []
        bad = 0
        for line in self._lines.findall(body):
            key, _, text = line.rpartition(b" ")
            try:
                series = known[key]
            except KeyError:
                parsed = self._slow(line, key)
                if parsed is not None:
                    keys.append(parsed[0])
                    values.append(parsed[1])
                elif key not in known:
                    bad += 1
                continue
            if series is None:
                continue
            try:
                values.append(float(text))
            except ValueError:
                bad += 1
            else:
                keys.append(series)
        layout, numbers = self._laid_out(keys, values)
        return Page(layout, numbers, bad, self._whole and _ends_well(body, openmetrics))

    def _laid_out(self, keys: list[Series], values: list[float]) -> tuple[Layout, array[float]]:
        if len(keys) == len(self._layout.series) and all(map(_same, keys, self._layout.series)):
            return self._layout, array("d", values)
        # A series twice on one page breaks the format; the later line wins, as it does in a dictionary.
        merged = dict(zip(keys, values, strict=True))
        series = tuple(merged)
        if series != self._layout.series:
            self._layout = Layout(series)
            self._whole = _histograms_whole(self._layout)
        return self._layout, array("d", merged.values())

    def _slow(self, line: bytes, key: bytes) -> tuple[Series, float] | None:
        """One line by the book. None: unreadable, or unwanted and remembered as such."""
        head = _NAME.match(line)
        if head is not None and head.group(1).decode("ascii") not in self._names:
            # Everything before the last blank begins with the name, so an equal beginning is unwanted as well.
            self._known[key] = None
            return None
        found = None if head is None else _split(line, head)
        if found is None:
            return None
        series, end, rest = found
        text = rest.group(1)
        try:
            value = float(text)
        except ValueError:
            return None
        if line[end:] == b" " + text:
            # Only then is everything before the last blank the name and labels, and may be remembered.
            self._known[line[:end]] = series
        return series, value


def family_names(body: bytes, limit: int = 200) -> tuple[str, ...]:
    """The first names on a page, of samples and TYPE comments alike, to say what kind of server wrote it."""
    seen: dict[str, None] = {}
    for match in _FAMILY.finditer(body):
        seen[(match.group(1) or match.group(2)).decode("ascii")] = None
        if len(seen) >= limit:
            break
    return tuple(seen)


def _same(left: Series, right: Series) -> bool:
    return left is right


def _split(line: bytes, head: re.Match[bytes]) -> tuple[Series, int, re.Match[bytes]] | None:
    """Name and labels, where they end, and the value after them; None where the line breaks the format."""
    line = line.rstrip(b"\r")
    end = head.end(1)
    labels: dict[str, str] = {}
    position = head.end()
    if line[position : position + 1] == b"{":
        position += 1
        while (label := _LABEL.match(line, position)) is not None:
            labels[label.group(1).decode("ascii")] = _text(label.group(2))
            position = label.end()
            if line[position : position + 1] != b",":
                break
            position += 1
        while line[position : position + 1] in (b" ", b"\t"):
            position += 1
        if line[position : position + 1] != b"}":
            return None
        end = position + 1
    elif head.end() == head.end(1):
        return None
    rest = _REST.fullmatch(line, end)
    if rest is None:
        return None
    return Series(head.group(1).decode("ascii"), tuple(sorted(labels.items()))), end, rest


def _text(raw: bytes) -> str:
    if b"\\" in raw:
        raw = _ESCAPE.sub(lambda match: _UNESCAPED.get(match.group(1), match.group(0)), raw)
    return raw.decode("utf-8", "replace")


def _ends_well(body: bytes, openmetrics: bool) -> bool:
    if openmetrics:
        return body.rstrip().endswith(b"# EOF")
    return not body or body.endswith(b"\n")


def _histograms_whole(layout: Layout) -> bool:
    """Whether each histogram has its count: a page cut between two lines has buckets that lack it."""
    names = {series.name for series in layout.series}
    return all(
        f"{name[:-7]}_count" in names and f"{name[:-7]}_sum" in names for name in names if name.endswith("_bucket")
    )
