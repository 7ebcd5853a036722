"""Two themes of vtop's own; all of Textual's work too, since the style sheet names only theme variables.

Their colours (blue, orange, teal) are told apart with any kind of colour vision.
"""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="vtop-dark",
    primary="#56b4e9",
    secondary="#9a8cf0",
    accent="#f0b429",
    warning="#e69f00",
    error="#f2777a",
    success="#2fbf9b",
    foreground="#d6dbe3",
    background="#0e1116",
    surface="#141923",
    panel="#1c2330",
    dark=True,
    variables={"block-cursor-background": "#24405c", "block-cursor-foreground": "#ffffff"},
)
"""The default."""

LIGHT = Theme(
    name="vtop-light",
    primary="#0060a8",
    secondary="#5a4bc4",
    accent="#8a5a00",
    warning="#a35200",
    error="#b3261e",
    success="#00705a",
    foreground="#1d2430",
    background="#fbfbf9",
    surface="#f1f2f0",
    panel="#e4e7ea",
    dark=False,
    variables={"block-cursor-background": "#cfe3f5", "block-cursor-foreground": "#0b1016"},
)
"""For light terminals."""
