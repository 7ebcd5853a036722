"""A report as a list of blocks, before it is Markdown or HTML."""

from __future__ import annotations

from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Heading:
    """A title; level 1 begins a report."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; `loud` for what must not be overlooked."""

    text: str
    loud: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A command line to copy."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; the first column is the name, the `wide` ones hold words, all others numbers."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    wide: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar a name, with the ends of its interval where there is one."""

    title: str
    unit: str
    names: tuple[str, ...]
    values: tuple[float | None, ...]
    intervals: tuple[tuple[float, float] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """Curves or clouds of points over one axis."""

    title: str
    x_title: str
    y_title: str
    series: tuple[tuple[str, tuple[Point, ...]], ...]
    dots_only: bool = False


Block = Heading | Text | Bullets | Command | Table | Bars | Lines
