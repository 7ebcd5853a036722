"""How the screen is drawn: what the user chose, and what is sensible where nothing was chosen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

PAINT_RATES_HZ = (0.25, 0.5, 1.0, 2.0, 4.0)
"""What `+` and `-` step through; measuring goes on at its own rate."""

WINDOWS_S = (10.0, 30.0, 60.0, 300.0)
"""What `w` steps through: the window of every live rate and percentile."""

DEFAULT_PAINT_HZ = 2.0
"""Paints a second on a local terminal."""

SSH_PAINT_HZ = 1.0
"""Paints a second over SSH, where the link may be slow."""

SSH_FPS = 15
"""Cap on all painting over SSH: a key echoes within 67 ms, and held keys do not fill a slow link. Elsewhere Textual's
own 60: its first frame waits for one such interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplaySettings:
    """The part of the settings that the screen reads. None: decide by where the terminal is."""

    theme: str = "vtop-dark"
    """Any Textual theme: `vtop-dark`, `vtop-light`, `ansi-dark`, `ansi-light`, `nord`, ..."""
    ascii: bool = False
    """No braille, blocks or box lines."""
    paint_hz: float | None = None
    window_s: float = 10.0
    keys: Mapping[str, str] = field(default_factory=dict)
    """Action id -> key or comma-separated keys: {"load": "f5"}."""
    bell: bool = False
    """Ring when a start, a load test or a comparison ends."""
    large: bool = False
    """The three numbers in large type, for projectors."""

    def resolved(self, environ: Mapping[str, str] = os.environ) -> DisplaySettings:
        """The same with the paint rate decided: slower over SSH."""
        if self.paint_hz is not None:
            return self
        return replace(self, paint_hz=SSH_PAINT_HZ if over_ssh(environ) else DEFAULT_PAINT_HZ)


def over_ssh(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this terminal is at the other end of an SSH connection."""
    return bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"))


def terminal_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What Textual must find in the environment when it is imported, without overriding the user's own choice."""
    wanted = {"TEXTUAL_SMOOTH_SCROLL": "0"}
    if over_ssh(environ):
        wanted |= {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_FPS": str(SSH_FPS)}
    return {key: value for key, value in wanted.items() if key not in environ}
