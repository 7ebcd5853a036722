"""The README shows the screen as it is."""

from __future__ import annotations

import make_screenshot


async def test_the_readme_picture_is_the_real_screen() -> None:
    """Drawn again, it is the same: `python tests/make_screenshot.py` after a change that was looked at."""
    assert make_screenshot.PICTURE.read_text(encoding="utf-8") == await make_screenshot.picture()


async def test_the_picture_stands_alone() -> None:
    text = make_screenshot.PICTURE.read_text(encoding="utf-8")
    assert "url(http" not in text
    assert "@font-face" not in text
