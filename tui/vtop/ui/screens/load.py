"""A load test while it runs: numbers of the client, and a chart of every finished request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult

from vtop import units
from vtop.load.progress import LoadProgress, Percentiles
from vtop.telemetry.snapshot import ServerView, Snapshot
from vtop.ui.canvas import Canvas
from vtop.ui.charts.bars import bar
from vtop.ui.charts.binning import Bin, nice_top
from vtop.ui.charts.plotext_chart import ChartSpec, Trace, level, trace
from vtop.ui.charts.series import Chart, elapsed_ticks, value_ticks
from vtop.ui.frame import framed
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Field, Line, field, pack, spread, wrap
from vtop.ui.page import Page
from vtop.ui.panels.latency import shown_latency
from vtop.ui.panels.load_steps import step_lines, steps_spec, steps_title
from vtop.ui.words import latency_mean

AXIS_CELLS = 7
"""Width of the labels of the value axes, the same for all three, so that their time axes are in line."""

NUMBER_CELLS = 34
"""Width of the numbers beside each chart where there is room for both."""


def percentile_line(name: str, values: Percentiles, role: str) -> Line:
    """`TTFT  p50 82 ms  p95 143 ms`."""
    line = Line(f"{name:<7}", role)
    line.add("p50 ", "dim").add(f"{units.duration(values.p50):<9}", "strong")
    return line.add("p95 ", "dim").add(f"{units.duration(values.p95)}")


def headline(progress: LoadProgress, width: int, glyphs: Glyphs) -> list[Line]:
    """What runs, how far it is, what failed."""
    request = progress.request
    done = f"{progress.finished}" + (f" of {progress.total}" if progress.total else "")
    fields = [
        field(f"{request.workload}", "strong"),
        field(f"{progress.concurrency or request.concurrency or units.DASH} concurrent", "", 6),
        field(f"{done} done", "strong"),
        field(f"{progress.failed} failed", "bad" if progress.failed else "dim", 9),
        field(f"{progress.in_flight} in flight", "dim", 4),
    ]
    if progress.phase:
        fields.append(field(progress.phase, "second", 5))
    first = Line(" ").join(pack(fields, width - 2, 3))
    share = None
    elapsed_s = progress.elapsed_s
    if progress.state == "warming-up":
        share = progress.warmup_done / progress.warmup_total if progress.warmup_total else 0.0
        elapsed_s = progress.warmup_elapsed_s
    elif progress.total:
        share = progress.finished / progress.total
    elif progress.request.duration_s:
        share = min(1.0, progress.elapsed_s / progress.request.duration_s)
    left = f"{units.elapsed(progress.remaining_s)} left" if progress.remaining_s is not None else ""
    right = Line(f"{units.elapsed(elapsed_s)}", "").add(f"  {left} " if left else " ", "dim")
    words = {
        "preparing": f"Preparing: {progress.message or 'checking the server and this client'}",
        "warming-up": warm_up_words(progress),
        "running": "Running",
        "stopping": "Stopping",
        "finished": "Finished",
        "cancelled": "Stopped; what was measured is kept",
        "failed": "Failed",
    }
    role = {"failed": "bad", "finished": "good"}.get(progress.state, "warn" if progress.state != "running" else "")
    word = Line(" " + words.get(progress.state, progress.state), role)
    middle = max(0, width - word.width - right.width - 3)
    if middle >= 10:
        word.add(" ").join(bar(share, min(60, middle), glyphs, "good" if progress.state == "finished" else "bar"))
    rows = [first, spread(word, right, width)]
    if progress.message and progress.state in ("failed", "cancelled", "stopping"):
        rows += [Line(" ").join(line) for line in wrap(progress.message, width - 2, "bad")][:2]
    return rows


def warm_up_words(progress: LoadProgress) -> str:
    """How far the warm-up is, and that it is not the test yet."""
    if not progress.warmup_total:
        return "Warming up: these requests are not counted"
    return f"Warming up {progress.warmup_done} of {progress.warmup_total}, not counted"


def empty_rows(progress: LoadProgress, width: int, height: int) -> list[Line]:
    """Why there is no chart yet, in its middle."""
    waiting = progress.state in ("preparing", "warming-up")
    text = "begins after the warm-up" if waiting else "no request has finished yet"
    if progress.state in ("finished", "cancelled", "failed"):
        text = "no request was answered"
    if width < len(text) + 2 or height < 1:
        return []
    return [Line()] * ((height - 1) // 2) + [Line(" " * ((width - len(text)) // 2)).add(text, "dim")]


def client_rows(progress: LoadProgress, server: ServerView | None, width: int) -> list[Line]:
    """Whether the client itself is honest, and what the server says of the same time."""
    fields: list[Field] = []
    if progress.client_overhead_s is not None:
        fields.append(field(f"client adds {units.duration(progress.client_overhead_s)}", "", 5))
    if progress.client_capacity_tokens_per_s is not None:
        fields.append(field(f"can read {units.rate(progress.client_capacity_tokens_per_s, 'tok/s')}", "dim", 3))
    if progress.client_bound:
        fields.append(field("THE CLIENT IS THE BOTTLENECK: these are not the server's numbers", "bad", 9))
    elif progress.client_overhead_s is not None:
        fields.append(field("not the bottleneck", "good", 4))
    rows = [Line(" ").join(pack(fields, width - 2, 3))] if fields else []
    engine = server.engine if server else None
    if engine is not None:
        said = [Field(Line("server says  ", "dim").add("TTFT ", "dim").add(latency_mean(engine.ttft)), 9)]
        name, between = shown_latency(engine, 1)
        said.append(Field(Line(f"{name} ", "dim").add(latency_mean(between)), 8))
        said.append(Field(Line("batch ", "dim").add(f"{units.count(engine.running)}"), 6))
        said.append(Field(Line("prefix cache hits ", "dim").add(units.percent(engine.prefix_hit_rate)), 4))
        rows.append(Line(" ").join(pack(said, width - 2, 3)))
    for cause, count in progress.failures[:2]:
        rows.append(Line(f" {count} failed: ", "bad").add(cause))
    return rows


def chart_specs(
    progress: LoadProgress, width: int, height: int
) -> tuple[ChartSpec | None, ChartSpec | None, ChartSpec | None]:
    """TTFT and TPOT of every finished request, and the output, over the test's own time; of a ladder its steps."""
    if width < 16 or height < 4:
        return (None, None, None)
    span = _span(progress)
    ttft = [(p.at_s, p.ttft_s * 1000) for p in progress.points if p.ok and p.ttft_s is not None]
    tpot = [(p.at_s, p.tpot_s * 1000) for p in progress.points if p.ok and p.tpot_s is not None]
    milliseconds: Callable[[float], str] = lambda v: f"{units.significant(v, 3)} ms".rjust(AXIS_CELLS)  # noqa: E731
    slo_ttft, slo_tpot = progress.request.slo_ttft_s, progress.request.slo_tpot_s
    steady = progress.steady_tokens_per_s
    third = (
        steps_spec(progress, width, height)
        if progress.steps
        else _line(progress.output_points, steady, span, width, height)
    )
    return (
        _dots(ttft, progress.ttft.p50, slo_ttft, span, width, height, "ttft", milliseconds),
        _dots(tpot, progress.tpot.p50, slo_tpot, span, width, height, "tpot", milliseconds),
        third,
    )


def _span(progress: LoadProgress) -> float:
    """The right end of the time axis: moves in steps, so that a chart is not new at each paint."""
    known = progress.elapsed_s + (progress.remaining_s or 0.0)
    return max(10.0, nice_top(max(progress.elapsed_s, min(known, 2 * progress.elapsed_s + 5))))


def _binned(points: Sequence[tuple[float, float]], span: float, bins: int) -> list[Bin]:
    found: dict[int, Bin] = {}
    width = span / bins
    for at, value in points:
        index = int(at / width)
        before = found.get(index)
        low = value if before is None else min(before.low, value)
        high = value if before is None else max(before.high, value)
        found[index] = Bin((index + 0.5) * width, low, high)
    return [found[index] for index in sorted(found)]


def _dots(
    points: Sequence[tuple[float, float]],
    p50_s: float | None,
    slo_s: float | None,
    span: float,
    width: int,
    height: int,
    role: str,
    unit: Callable[[float], str],
) -> ChartSpec | None:
    if not points:
        return None
    bins = _binned(points, span, max(8, width - 8))
    top = nice_top(max(item.high for item in bins) * 1.02)
    traces: list[Trace] = [trace([bins], role, dots=True)]
    if p50_s is not None:
        traces.insert(0, level(p50_s * 1000, 0.0, span, "dim"))
    if slo_s is not None:
        top = max(top, nice_top(slo_s * 1000))
        traces.insert(0, level(slo_s * 1000, 0.0, span, "floor"))
    ticks = elapsed_ticks(span, width)
    return ChartSpec(width, height, tuple(traces), 0.0, span, top, ticks, value_ticks(top, height, unit))


def _line(
    points: Sequence[tuple[float, float]], steady: float | None, span: float, width: int, height: int
) -> ChartSpec | None:
    if len(points) < 2:
        return None
    bins = _binned(points, span, 2 * max(8, width - 8))
    top = nice_top(max(max(item.high for item in bins), steady or 0.0) * 1.02)
    traces: list[Trace] = [trace([bins], "output")]
    if steady is not None:
        traces.insert(0, level(steady, 0.0, span, "dim"))
    ticks = value_ticks(top, height, lambda v: units.significant(v, 3).rjust(AXIS_CELLS))
    return ChartSpec(width, height, tuple(traces), 0.0, span, top, elapsed_ticks(span, width), ticks)


class LoadScreen(Page):
    """Three charts below one another, each with its numbers at the left; at small sizes the numbers and one chart."""

    NAME = "load"
    HEADING = "Load test"

    def __init__(self) -> None:
        super().__init__()
        self._charts = (Chart(), Chart(), Chart())

    def compose_body(self) -> ComposeResult:
        """Everything in one canvas."""
        yield Canvas(id="body")

    def pulse(self) -> object:
        """The progress object changes while it runs."""
        progress = self.vtop.service.load_progress()
        return (id(progress), self.vtop.view.chart)

    def has_item(self) -> bool:
        """Whether there is a result to open."""
        progress = self.vtop.service.load_progress()
        return progress is not None and progress.state in ("finished", "cancelled")

    def paint_body(self, snapshot: Snapshot) -> None:
        """The numbers and the charts."""
        progress = self.vtop.service.load_progress()
        server = self.vtop.server_in(snapshot)
        glyphs = self.glyphs
        canvas = self.query_one("#body", Canvas)
        if progress is None:
            canvas.show(lambda width, height: [Line(), Line(" No load test has run yet: l starts one.", "dim")])
            return
        chosen = self.vtop.view.chart

        def draw(width: int, height: int) -> list[Line]:
            inner = width - 2
            rows = headline(progress, inner, glyphs)
            tail = client_rows(progress, server, inner)
            body = height - 2 - len(rows) - len(tail)
            rows += self._middle(progress, inner, body, chosen, glyphs)
            rows += [Line()] * (height - 2 - len(rows) - len(tail))
            title = Line("Load test", "title")
            if progress.request.simulated:
                title.add(" SIMULATED ", "badge")
            return framed(rows + tail, width, height, glyphs, title, Line(progress.run_id, "dim"))

        canvas.show(draw)

    def _middle(self, progress: LoadProgress, width: int, height: int, chosen: int, glyphs: Glyphs) -> list[Line]:
        numbers = [
            [percentile_line("TTFT", progress.ttft, "ttft"), *_more(progress.ttft)],
            [percentile_line("TPOT", progress.tpot, "tpot"), *_more(progress.tpot)],
            [
                Line(f"{'Output':<7}", "output").add(units.rate(progress.output_tokens_per_s, "tok/s"), "strong"),
                Line("steady ", "dim").add(units.rate(progress.steady_tokens_per_s, "tok/s")),
                Line("dashes: steady", "dim"),
            ],
        ]
        if progress.steps:
            # Of several stages the last one's output is a detail; how they compare is what was asked for.
            numbers[2] = [steps_title(progress), *step_lines(progress.steps, max(1, height // 3 - 1))]
        if height >= 15 and width >= 90:
            return self._three(progress, width, height, numbers, glyphs)
        rows = [Line(" ").join(lines[0]) for lines in numbers]
        if not progress.steps:
            rows[2].add("   steady ", "dim").add(units.rate(progress.steady_tokens_per_s, "tok/s"))
        rows[chosen] = Line(glyphs.cursor, "key").join(numbers[chosen][0])
        if chosen == 2 and not progress.steps:
            rows[2].add("   steady ", "dim").add(units.rate(progress.steady_tokens_per_s, "tok/s"))
        spec = chart_specs(progress, width, height - 3)[chosen]
        if spec is not None:
            rows += self._charts[chosen].render(spec, glyphs)
        else:
            rows += empty_rows(progress, width, height - 3)
        return rows[: max(0, height)]

    def _three(
        self, progress: LoadProgress, width: int, height: int, numbers: list[list[Line]], glyphs: Glyphs
    ) -> list[Line]:
        each = height // 3
        rows: list[Line] = []
        for index in range(3):
            tall = each if index < 2 else height - 2 * each
            spec = chart_specs(progress, width - NUMBER_CELLS, tall)[index]
            drawn = self._charts[index].render(spec, glyphs) if spec is not None else None
            if drawn is None:
                drawn = empty_rows(progress, width - NUMBER_CELLS, tall)
            for y in range(tall):
                left = numbers[index][y] if y < len(numbers[index]) else Line()
                row = Line(" ").join(left).fit(NUMBER_CELLS)
                rows.append(row.join(drawn[y]) if y < len(drawn) else row)
        return rows

    def do_stop(self) -> None:
        """Stops the test and keeps what was measured; elsewhere `x` stops the server."""
        if self.vtop.load_running():
            self.vtop.call(self.vtop.service.stop_load(), "stop the load test")
        else:
            self.vtop.deeds.do_stop()

    def do_open(self) -> None:
        """The result of the finished test."""
        from vtop.ui.screens.result import ResultScreen

        progress = self.vtop.service.load_progress()
        if progress is not None and self.has_item():
            self.vtop.open_page(ResultScreen(progress.run_id))

    def do_chart_1(self) -> None:
        """The TTFT chart."""
        self._chart(0)

    def do_chart_2(self) -> None:
        """The TPOT chart."""
        self._chart(1)

    def do_chart_3(self) -> None:
        """The output chart."""
        self._chart(2)

    def _chart(self, index: int) -> None:
        self.vtop.view.chart = index


def _more(values: Percentiles) -> list[Line]:
    return [
        Line("mean ", "dim")
        .add(f"{units.duration(values.mean):<9}")
        .add("p99 ", "dim")
        .add(units.duration(values.p99)),
        Line(f"n = {values.n}", "dim"),
        Line("dashes: p50", "dim"),
    ]
