"""Who gets how many rows of the dashboard, from the size of the terminal and how much there is to show."""

from __future__ import annotations

from dataclasses import dataclass

FRAMED_WIDTH = 100
FRAMED_HEIGHT = 28
"""From this size on panels stand side by side in frames; below it they are stacked without frames."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows of each part; 0: not shown."""

    framed: bool
    servers: int
    gpus: int
    numbers: int
    chart: int
    engine: int
    """Rows of the engine panel: in frames with the verdict and the borders."""
    verdict: int


def plan(width: int, height: int, servers: int, gpus: int, maximised: str = "", large: bool = False) -> Layout:
    """The rows of each part.

    Args:
        width: cells of the terminal.
        height: rows of the terminal.
        servers: rows that the server list would like.
        gpus: how many cards there are.
        maximised: `chart`, `gpus`, `servers`, `engine` or "".
        large: the three numbers in large type.
    """
    framed = width >= FRAMED_WIDTH and height >= FRAMED_HEIGHT
    room = height - 2
    if maximised:
        verdict = min(3, max(0, room - 6))
        body = room - verdict
        return Layout(
            framed=False,
            servers=body if maximised == "servers" else 0,
            gpus=body if maximised == "gpus" else 0,
            numbers=0,
            chart=body if maximised == "chart" else 0,
            engine=body if maximised == "engine" else 0,
            verdict=verdict,
        )
    big = 5 if large and height >= 20 else 0
    if framed:
        wanted = max(servers + 2, (5 if gpus == 1 else gpus) + 2, 9 + (height - 40) // 5)
        top = max(6, min(wanted, room // 3))
        engine = 8
        return Layout(True, top, top, big, max(0, room - top - engine - big), engine, 0)
    verdict = 3 if height >= 20 else 2 if height >= 12 else 1
    engine = 2 if height >= 18 else 1 if height >= 12 else 0
    numbers = 2 if height >= 18 and width >= 60 else 1
    numbers = big or numbers
    room -= verdict + engine + numbers
    least_chart = 5 if height >= 20 else 0
    cards = 4 if gpus == 1 and room - min(servers, 3) - 4 >= 8 else max(1, gpus)
    if gpus == 0 and height >= 20 and width >= 60:
        cards = 2  # the reason is a sentence
    server_rows = max(1, min(servers, room - 1, 4 if gpus > 4 else max(1, room // 3)))
    gpu_rows = min(cards, 9, max(1, room - server_rows - least_chart))
    if gpu_rows < min(cards, 9) and verdict == 3:
        verdict, room = 2, room + 1
        gpu_rows = min(cards, 9, max(1, room - server_rows - least_chart))
    if gpu_rows < min(cards, 9):
        # Every card's numbers come before a chart of a few rows.
        gpu_rows = min(cards, 9, max(1, room - server_rows))
    chart = room - server_rows - gpu_rows
    if 0 < chart < 4:
        server_rows += max(0, min(chart, servers - server_rows))
        chart = room - server_rows - gpu_rows
    return Layout(False, server_rows, gpu_rows, numbers, max(0, chart), engine, verdict)
