"""Pictures of the screen as SVG, from the running program or from a test."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from textual.app import App

_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_UNIQUE = re.compile(r"terminal-\d+-")


def export_svg(app: App[Any], title: str = "vtop") -> str:
    """The screen as it is, as SVG text that stands alone: no fonts from elsewhere, and the same for the same screen.

    Needs no terminal: works in tests too.
    """
    svg = _FONT_FACE.sub("", app.export_screenshot(title=title))
    return _UNIQUE.sub("vtop-", svg)


def save_picture(app: App[Any], directory: Path | None = None) -> Path:
    """Writes the screen to `vtop-DATE-TIME.svg` and returns the path.

    Raises:
        OSError: the directory cannot be written.
    """
    base = directory or Path.cwd()
    path = base / time.strftime("vtop-%Y%m%d-%H%M%S.svg")
    path.write_text(export_svg(app), encoding="utf-8")
    return path
