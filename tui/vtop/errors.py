"""Errors that a person reads: what happened, why, and what to do."""

from __future__ import annotations


class VtopError(Exception):
    """A failure with a cause and a remedy, shown without a traceback.

    Attributes:
        what: one line that says what happened and why.
        remedy: one line that says what to do, or "" where there is nothing to advise.
        exit_code: 1 when the thing asked for failed, 2 for wrong usage.
    """

    exit_code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  {self.remedy}" if self.remedy else self.what


class UsageError(VtopError):
    """The command or a file given to it is wrong; nothing was started."""

    exit_code = 2
