"""A form of rows with values that left and right change; no text fields, so every key keeps its meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line

Value = TypeVar("Value")


@dataclass(slots=True)
class Choice(Generic[Value]):
    """One row: a label and one of several values."""

    key: str
    label: str
    values: Sequence[Value]
    at: int = 0
    write: Callable[[Value], str] = str
    note: Callable[[Value], str] = lambda _: ""

    @property
    def value(self) -> Value:
        """The chosen one."""
        return self.values[self.at]

    def change(self, by: int) -> None:
        """The next or the previous value; it stops at the ends."""
        self.at = max(0, min(len(self.values) - 1, self.at + by))

    def row(self, chosen: bool, width: int, glyphs: Glyphs) -> Line:
        """The row as it is drawn."""
        line = Line(f" {glyphs.cursor} " if chosen else "   ", "key").add(f"{self.label:<16}", "dim")
        left = "<" if self.at > 0 else " "
        right = ">" if self.at < len(self.values) - 1 else " "
        line.add(f"{left} ", "key").add(self.write(self.value), "strong").add(f" {right}", "key")
        note = self.note(self.value)
        if note and line.width + len(note) + 3 <= width:
            line.add("   " + note, "dim")
        return line


def number_or_own(value: int | float | None) -> str:
    """A number, or that the workload decides."""
    return "as the workload says" if value is None else f"{value:,}"
