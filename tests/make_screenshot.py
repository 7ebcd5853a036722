"""Draws the README's picture, docs/screenshot.svg, from a fixed state: `python tests/make_screenshot.py`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tui")]

PICTURE = ROOT / "docs" / "screenshot.svg"
SIZE = (120, 36)


async def picture() -> str:
    """The dashboard with a server at work, one starting, one that failed and a foreign one."""
    from ui.looks import app_for, settle
    from vtop.ui.screenshot import export_svg

    app = app_for("busy")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        return export_svg(app)


def main() -> None:
    """Writes the file."""
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(asyncio.run(picture()), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
