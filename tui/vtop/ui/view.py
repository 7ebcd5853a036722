"""What the person at the keyboard has chosen to look at; the same on every screen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class View:
    """Choices of the viewer, and facts about the drawing itself."""

    server: str | None = None
    """Name of the selected server; None: the first that runs."""
    chart: int = 0
    """Which of TTFT, TPOT and output is shown where only one fits."""
    maximised: str = ""
    """The panel that has the whole screen: `chart`, `gpus`, `servers`, `engine`, or "" for none."""
    gpu_scroll: int = 0
    paused: bool = False
    """Painting stands still; measuring goes on."""
    readonly: bool = False
    large: bool = False
    paint_hz: float = 2.0
    window_s: float = 10.0
    data_age_s: float = 0.0
    """Age of the newest snapshot: more than a few seconds means that vtop itself gets no data."""
    demo_caption: str = ""
    load_line: str = ""
    """A running load test or comparison in a few words, for the dashboard."""
