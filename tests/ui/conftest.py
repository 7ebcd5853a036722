"""The screen is drawn the same everywhere: no animations, no user's theme, a fixed terminal."""

from __future__ import annotations

import os

import pytest

# Read by Textual when it is imported, so before any fixture runs.
os.environ["TEXTUAL_ANIMATIONS"] = "none"
os.environ.pop("NO_COLOR", None)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the surroundings changes a picture."""
    for name in ("NO_COLOR", "TEXTUAL_THEME", "SSH_CONNECTION", "SSH_TTY", "EDITOR", "VISUAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setattr("vtop.ui.screens.start.PLAN_AFTER_S", 0.001)
    monkeypatch.setattr("vtop.ui.screens.compare.PLAN_AFTER_S", 0.001)
