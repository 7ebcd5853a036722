"""TTFT, TPOT and output: as titles of charts, and as the strip of three numbers where only one chart fits."""

from __future__ import annotations

from vtop import units
from vtop.telemetry.snapshot import ServerView, Snapshot
from vtop.ui.charts.plotext_chart import ChartSpec
from vtop.ui.charts.series import has_room, history_spec
from vtop.ui.ink import Field, Line, field, pack, wrap
from vtop.ui.words import bucket_range, latency_age, latency_mean, server_is_stale, stale_text
from vtop.vllm.metrics import NEEDS
from vtop.vllm.reading import MEASURING, NOTHING_FINISHED, EngineReading, Latency

CHARTS = ("TTFT", "TPOT", "Output")
"""In the order of the keys 1, 2, 3."""

ROLES = ("ttft", "tpot", "output")

MARKED_EVENTS = ("restart", "load-start", "load-end", "throttle", "gpu-lost")
"""Events that are drawn on the charts."""


def shown_latency(engine: EngineReading, chart: int) -> tuple[str, Latency | None]:
    """The latency of the first two charts, and what it is: the time between tokens (ITL) where TPOT is not known."""
    if chart == 0:
        return "TTFT", engine.ttft
    return ("ITL", engine.itl) if engine.tpot is None and engine.itl is not None else ("TPOT", engine.tpot)


def number_name(server: ServerView | None, chart: int) -> str:
    """What the number to read first is, where it is not what the chart is named after; else ""."""
    if server is None or server.engine is None or chart != 1:
        return ""
    name, _ = shown_latency(server.engine, chart)
    return name if name != CHARTS[chart] else ""


def main_number(server: ServerView | None, chart: int) -> tuple[str, str]:
    """The number to read first, and its role: dim where it is from before the window."""
    engine = server.engine if server else None
    if engine is None:
        return units.DASH, "dim"
    if chart == 2:
        gone = server is not None and server_is_stale(server)
        return units.rate(engine.generation_tokens_per_s, "tok/s"), "dim" if gone else "strong"
    _, latency = shown_latency(engine, chart)
    stale = (latency is not None and latency.age_s > 0) or (server is not None and server_is_stale(server))
    return latency_mean(latency), "dim" if stale or latency is None else "strong"


def second_number(server: ServerView | None, chart: int) -> str:
    """What stands beside it: the percentile as its bucket, the floor, the request rate, or the age."""
    engine = server.engine if server else None
    if engine is None:
        return ""
    if server is not None and server_is_stale(server):
        return stale_text(server)
    if chart == 2:
        return units.rate(engine.requests_per_s, "req/s") if engine.requests_per_s is not None else ""
    _, latency = shown_latency(engine, chart)
    if latency is None:
        return _why_none(engine.missing.get(("ttft", "tpot")[chart], NOTHING_FINISHED))
    age = latency_age(latency)
    if age:
        return age
    floor = server.verdict.tpot_floor_s if server and server.verdict else None
    if chart == 1 and floor is not None:
        return f"floor {units.duration(floor)}"
    return f"p95 {bucket_range(latency.p95)}" if latency.p95 else ""


def _why_none(reason: str) -> str:
    if reason == NOTHING_FINISHED:
        return "none since vtop watches"
    if reason == MEASURING:
        return "measuring"
    return "not said by this server" if reason in NEEDS.values() else "e says why"


def chart_title(server: ServerView | None, chart: int, width: int) -> Line:
    """`1 TTFT  mean 84 ms  p95 100–250 ms`; what does not fit is left out whole."""
    number, role = main_number(server, chart)
    fields = [Field(Line(f"{chart + 1} ", "key").add(CHARTS[chart], "title"))]
    name = number_name(server, chart)
    value = Line(f"{name} ".lstrip() + ("mean " if chart != 2 and number != units.DASH else ""), "dim").add(
        number, role
    )
    fields.append(Field(value, 9))
    second = second_number(server, chart)
    if second:
        fields.append(field(second, "floor" if second.startswith("floor") else "dim", 5))
    room = width - 6
    return pack(fields, room, 2 if sum(item.line.width + 2 for item in fields) - 2 <= room else 1)


def numbers_strip(server: ServerView | None, chosen: int, width: int, height: int) -> list[Line]:
    """Three numbers in three columns, two rows; one row and less where there is no room."""
    column = width // 3
    if width < 60:
        row = Line()
        for chart in range(3):
            number, role = main_number(server, chart)
            row.join(Line(f"{chart + 1} " if chart != chosen else f"[{chart + 1}]", "key").add(number, role).add("  "))
        return [row.fit(width)][:height]
    top, bottom = Line(), Line()
    for chart in range(3):
        number, role = main_number(server, chart)
        cell = Line(f"[{chart + 1}]" if chart == chosen else f" {chart + 1} ", "key")
        cell.add(CHARTS[chart], ROLES[chart] if chart == chosen else "title").add(" ")
        if chart != 2 and number != units.DASH:
            cell.add(f"{number_name(server, chart) or 'mean'} ", "dim")
        cell.add(number, role)
        top.join(cell.fit(column))
        second = second_number(server, chart)
        bottom.join(Line("   ").add(second, "floor" if second.startswith("floor") else "dim").fit(column))
    return [top.fit(width), bottom.fit(width)][:height]


def chart_spec(snapshot: Snapshot, server: ServerView | None, chart: int, width: int, height: int) -> ChartSpec | None:
    """The history of one of the three, with the floor and the marks of events; None where nothing was measured."""
    if server is None:
        return None
    name = server.status.name
    span = max(120.0, 12 * snapshot.window_s)
    history = snapshot.history
    keys = ("ttft_mean_s", "tpot_mean_s", "generation_tokens_per_s")
    floor = server.verdict.tpot_floor_s if chart == 1 and server.verdict else None
    scale = 1.0 if chart == 2 else 1000.0
    times, values = history.series(f"server/{name}/{keys[chart]}", span)
    series = (times, [None if value is None else value * scale for value in values])
    uuids = server.status.gpu_uuids or ()
    marks = [
        event.at_s
        for event in snapshot.events
        if event.kind in MARKED_EVENTS and (event.subject == name or event.subject in uuids)
    ]
    return history_spec(
        [(series, ROLES[chart])],
        now=snapshot.at_s,
        span_s=span,
        width=width,
        height=height,
        unit=(lambda v: f"{units.significant(v, 3)}") if chart == 2 else (lambda v: f"{units.significant(v, 3)} ms"),
        floor=None if floor is None else floor * 1000,
        marks=marks,
        least_top=10.0 if chart == 2 else 0.0,
    )


def empty_chart(server: ServerView | None, chart: int, width: int, height: int) -> list[Line]:
    """Why a chart is empty, in the middle of it."""
    if server is None:
        text = "no server"
    elif server.engine is None:
        text = server.scrape.message or "waiting for the first numbers"
    elif not has_room(width, height) and main_number(server, chart)[0] != units.DASH:
        text = "no room for the chart here"
    elif chart == 2:
        text = "no tokens yet: l runs a load test"
    elif main_number(server, chart)[0] != units.DASH:
        text = "no request finished in these minutes: l runs a load test"
    else:
        text = "no request has finished yet: l runs a load test"
    lines = wrap(text, max(8, width - 4), "dim")
    rows = [Line() for _ in range(max(0, (height - len(lines)) // 2))]
    return rows + [Line(" " * max(0, (width - line.width) // 2)).join(line) for line in lines]
