"""A finished load test: the lines to quote, the distributions, what the server and the GPU did, and the warnings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from textual.app import ComposeResult

from vtop import units
from vtop.load.progress import LoadResult, LoadStep, Percentiles
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.calls import aside
from vtop.ui.charts.binning import Bin, nice_top
from vtop.ui.charts.plotext_chart import ChartSpec, draw, trace
from vtop.ui.charts.series import elapsed_ticks, value_ticks
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line, table, wrap
from vtop.ui.listing import Pager
from vtop.ui.page import Page

TIMELINE_CHARTS: tuple[tuple[tuple[str, ...], str, str, float], ...] = (
    (("bandwidth_percent",), "DRAM, % of peak", "bar", 1.0),
    (("running",), "batch (requests running)", "second", 1.0),
    (("generation_tokens_per_s",), "output, tok/s by the server's counter", "output", 1.0),
    (("kv_usage",), "KV cache, % in use", "tpot", 100.0),
)
"""What is drawn of the timeline, on the run's clock: keys that may hold it, title, role, factor."""


def summary_rows(result: LoadResult, width: int) -> list[Line]:
    """The lines that a report quotes first, then the distributions."""
    request = result.request
    mean = units.duration(result.e2e.mean)
    pairs = [
        ("requests", f"{result.completed} of {result.requests} done, {result.failed} failed"),
        ("concurrency", str(request.concurrency) if request.concurrency else "of the workload"),
        ("total time", f"{result.duration_s:.2f} s"),
        ("output", f"{units.rate(result.output_tokens_per_s, 'tok/s')}   steady "
                   f"{units.rate(result.steady_tokens_per_s, 'tok/s')}"),
        ("requests/s", units.significant(result.requests_per_s)),
        ("latency", f"mean {mean}   P95 {units.duration(result.e2e.p95)}"),
        ("tokens", f"{result.output_tokens:,} out   {result.prompt_tokens:,} in"),
    ]  # fmt: skip
    if result.goodput_per_s is not None:
        pairs.append(("goodput", f"{units.significant(result.goodput_per_s)} requests/s within the limits"))
    rows = [Line(f" {name:<12}", "dim").add(value, "strong") for name, value in pairs]
    rows.append(Line())
    cells: list[Sequence[str]] = [("", "n", "mean", "p50", "p90", "p95", "p99", "max")]
    for name, values in (("TTFT", result.ttft), ("TPOT", result.tpot), ("ITL", result.itl), ("E2E", result.e2e)):
        cells.append(_cells(name, values))
    if width < 72:
        cells = [(c[0], c[1], c[2], c[3], c[5]) for c in cells]
    lines = table(cells, "<" + ">" * (len(cells[0]) - 1), 3)
    rows += [Line(" " + text, "dim" if index == 0 else "") for index, text in enumerate(lines)]
    return rows


def step_rows(steps: Sequence[LoadStep]) -> list[Line]:
    """The steps of a ladder or a search, one a row."""
    if not steps:
        return []
    cells: list[Sequence[str]] = [("load", "requests", "failed", "output", "TTFT p50", "p95", "TPOT p50", "")]
    for step in steps:
        load = f"{step.rate:.3g} requests/s" if step.rate is not None else f"{step.concurrency} at once"
        held = "" if step.holds is None else "holds" if step.holds else "does not hold"
        cells.append(
            (
                load, f"{step.requests:,}", str(step.failed), units.rate(step.output_tokens_per_s, "tok/s"),
                units.duration(step.ttft_p50_s), units.duration(step.ttft_p95_s), units.duration(step.tpot_p50_s),
                step.why or held,
            )
        )  # fmt: skip
    lines = table(cells, "<" + ">" * 6 + "<", 2)
    rows = [Line(" " + text, "dim" if index == 0 else "") for index, text in enumerate(lines)]
    return [Line(), Line(" Steps", "title"), *rows]


def _cells(name: str, values: Percentiles) -> tuple[str, ...]:
    numbers = (values.mean, values.p50, values.p90, values.p95, values.p99, values.maximum)
    return (name, f"{values.n:,}", *(units.duration(value) for value in numbers))


def side_rows(title: str, values: Mapping[str, Any], width: int) -> list[Line]:
    """The server's or the GPU's own numbers over the same time; units are told from the key."""
    if not values:
        return []
    rows = [Line(), Line(f" {title}", "title")]
    for key, value in values.items():
        if isinstance(value, Mapping):
            continue
        name, text = spoken(str(key), value)
        for index, line in enumerate(wrap(text, max(10, width - 34))):
            rows.append((Line(f"   {name:<28}  ", "dim") if index == 0 else Line(" " * 33)).join(line))
    return rows


WRITERS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("_tokens_per_s", "_per_s", lambda v: units.rate(v, "tok/s")),
    ("_bytes_per_s", "_per_s", units.bytes_per_s),
    ("_per_s", "_per_s", lambda v: f"{units.significant(v)}/s"),
    ("_percent", "_percent", units.percent_of_100),
    ("_bytes", "_bytes", units.gib),
    ("_rate", "", units.percent),
    ("_share", "_share", units.percent),
    ("acceptance", "", units.percent),
    ("kv_usage", "", units.percent),
    ("_w", "_w", units.watts),
    ("_j", "_j", lambda v: f"{units.significant(v)} J"),
    ("joules_per_token", "", lambda v: f"{units.significant(v)} J"),
    ("_s", "_s", units.duration),
)
"""Ending of a key, what of it is a unit and not a name, and how a value is written; the first that fits counts."""


def spoken(key: str, value: Any) -> tuple[str, str]:
    """A key with its unit in its name, and its value, for a person: `ttft_mean_s` reads `ttft mean`, `84 ms`."""
    if value is None:
        return key.replace("_", " "), units.DASH
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return key.replace("_", " "), str(value)
    for ending, unit, write in WRITERS:
        if key.endswith(ending):
            return key.removesuffix(unit).replace("_", " "), write(float(value))
    return key.replace("_", " "), units.significant(float(value))


def timeline_rows(timeline: Sequence[Mapping[str, Any]], width: int, glyphs: Glyphs) -> list[Line]:
    """Server and GPU over the run, one chart below the other on one time axis."""
    if width < 30:
        return []
    rows: list[Line] = []
    for keys, title, role, factor in TIMELINE_CHARTS:
        points = []
        for row in timeline:
            at = row.get("at_s", row.get("t_s"))
            value = next((row[key] for key in keys if isinstance(row.get(key), (int, float))), None)
            if isinstance(at, (int, float)) and value is not None:
                points.append((float(at), float(value) * factor))
        if len(points) < 2:
            continue
        span = max(1.0, max(at for at, _ in points))
        bins = [Bin(at, value, value) for at, value in points if at >= 0]
        top = nice_top(max(value for _, value in points) * 1.02)
        spec = ChartSpec(
            width, 7, (trace([bins], role),), 0.0, span, top, elapsed_ticks(span, width),
            value_ticks(top, 7, lambda v: units.significant(v, 3)),
        )  # fmt: skip
        rows += [Line(), Line(" " + title, "title"), *draw(spec, glyphs)]
    return rows


class ResultScreen(Page):
    """One saved load test."""

    NAME = "result"
    HEADING = "Result"
    AUTO_FOCUS = "#body"

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._result: LoadResult | None = None
        self._timeline: Sequence[Mapping[str, Any]] = ()
        self._rows: dict[int, list[Line]] = {}

    def compose_body(self) -> ComposeResult:
        """One text."""
        yield Pager(id="body")

    def on_mount(self) -> None:
        """Reads the run beside the event loop."""
        super().on_mount()
        service, run_id = self.vtop.service, self.run_id

        async def read() -> tuple[LoadResult, Sequence[Mapping[str, Any]]]:
            result = await aside(lambda: service.load_result(run_id))
            return result, await aside(lambda: service.run_timeline(run_id))

        def done(found: tuple[LoadResult, Sequence[Mapping[str, Any]]]) -> None:
            self._result, self._timeline = found
            self._rows.clear()

        self.read(read(), f"open {run_id}", done)

    def pulse(self) -> object:
        """It has been read."""
        return (self._result is not None, self._unread)

    def has_item(self) -> bool:
        """Whether there is something to export."""
        return self._result is not None

    def paint_body(self, snapshot: Snapshot) -> None:
        """The report; built once for a width."""
        self.query_one("#body", Pager).fill(self._report)

    def _report(self, width: int) -> list[Line]:
        if self._result is None:
            return self.not_read_rows(width)
        if width not in self._rows:
            self._rows = {width: self._built(self._result, width)}
        return self._rows[width]

    def _built(self, result: LoadResult, width: int) -> list[Line]:
        request = result.request
        title = Line(f" {request.workload}", "title").add(
            f"  on {request.server or request.url}  {request.model}", "dim"
        )
        if result.simulated:
            title.add("  ").add(" SIMULATED ", "badge")
        if not result.complete:
            title.add("  ").add(" CUT: not all of it ran ", "badge")
        rows = [title, Line(), *summary_rows(result, width), *step_rows(result.steps)]
        if result.failures:
            rows += [Line(), Line(" Failures", "title")]
            for cause, count in result.failures:
                text = wrap(cause, max(10, width - 10), "bad")
                rows += [Line(f"   {count:>4}  ").join(text[0]), *(Line(" " * 9).join(line) for line in text[1:])]
        if result.warnings or not result.comparable:
            rows += [Line(), Line(" Mind", "title")]
            notes = list(result.warnings)
            if not result.comparable:
                notes.insert(0, f"not comparable: {result.not_comparable_because}")
            for note in notes:
                rows += [Line("   ").join(line) for line in wrap("! " + note, width - 4, "warn", "  ")]
        rows += side_rows("The server, over the same time", result.server, width)
        rows += side_rows("The GPU, over the same time", result.gpu, width)
        rows += timeline_rows(self._timeline, width - 2, self.glyphs)
        rows += [Line(), Line(" Saved in ", "dim").add(result.directory)]
        if result.repeat_command:
            rows += [Line(" Repeat it with", "dim")]
            rows += [Line("   ").join(line) for line in wrap(result.repeat_command, width - 4, "second", "  ")]
        return rows

    def do_export(self) -> None:
        """Writes Markdown, CSV and HTML beside the run."""
        self.vtop.export_run(self.run_id)
