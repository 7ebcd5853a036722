"""The dashboard: servers, GPUs, the three numbers with their charts, the engine, and the verdict."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Container

from vtop.telemetry.snapshot import ServerView, Snapshot
from vtop.ui.canvas import Canvas
from vtop.ui.charts.series import Chart
from vtop.ui.frame import framed
from vtop.ui.ink import Line
from vtop.ui.layout import Layout, plan
from vtop.ui.page import Page
from vtop.ui.panels.engine import engine_rows
from vtop.ui.panels.gpus import gpu_panel, gpu_title
from vtop.ui.panels.large import large_numbers
from vtop.ui.panels.latency import chart_spec, chart_title, empty_chart, numbers_strip
from vtop.ui.panels.servers import rows_wanted, server_rows
from vtop.ui.panels.verdict import verdict_rows
from vtop.ui.words import compare_sentence, load_sentence

CHART_IDS = ("chart-ttft", "chart-tpot", "chart-output")


FRAMED_ENGINE_ROWS = 6
"""Least height at which the engine and the verdict stand in one frame with a rule between them."""


class Dashboard(Page):
    """The ground floor."""

    NAME = "dashboard"
    # It is arranged by `layout.plan`; classes of width and height would style everything once more when vtop starts.
    HORIZONTAL_BREAKPOINTS = []  # noqa: RUF012
    VERTICAL_BREAKPOINTS = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._charts = (Chart(), Chart(), Chart())
        self._layout: Layout | None = None
        self._owners: list[str] = []

    def compose_body(self) -> ComposeResult:
        """The panels; their heights come from `layout.plan`."""
        with Container(id="top"):
            yield Canvas(id="servers")
            yield Canvas(id="gpus")
        yield Canvas(id="numbers")
        with Container(id="charts"):
            for name in CHART_IDS:
                yield Canvas(id=name, classes="chart")
        yield Canvas(id="engine")
        yield Canvas(id="verdict")

    def paint_body(self, snapshot: Snapshot) -> None:
        """Every panel from one snapshot."""
        server = self.vtop.server_in(snapshot)
        layout = self._arrange(snapshot, server)
        self._paint_servers(snapshot, server, layout)
        self._paint_gpus(snapshot, layout)
        self._paint_numbers(server, layout)
        self._paint_charts(snapshot, server, layout)
        self._paint_engine(snapshot, server, layout)

    def pulse(self) -> object:
        """A running load test or comparison is told here too."""
        app = self.vtop
        progress = app.service.load_progress()
        line = ""
        if progress is not None and app.load_running():
            line = f"{load_sentence(progress)}  l shows it."
        elif app.compare_running():
            comparison = app.service.compare_progress()
            if comparison is not None:
                line = f"{compare_sentence(comparison)}  c shows it."
        app.view.load_line = line
        return line

    # Layout.

    def _arrange(self, snapshot: Snapshot, server: ServerView | None) -> Layout:
        view = self.vtop.view
        width, height = self.size
        layout = plan(
            width, height, rows_wanted(snapshot, server, self.glyphs), len(snapshot.gpus), view.maximised, view.large
        )
        chosen = view.chart
        key = (layout, chosen, view.maximised)
        if key == getattr(self, "_arranged", None):
            return layout
        self._arranged = key
        self.set_class(not layout.framed, "-stacked")
        self._height("servers", layout.servers)
        self._height("gpus", layout.gpus)
        top = max(layout.servers, layout.gpus) if layout.framed else layout.servers + layout.gpus
        self._height("top", top, Container)
        self._height("numbers", layout.numbers)
        self._height("engine", layout.engine)
        self._height("verdict", layout.verdict)
        charts = self.query_one("#charts", Container)
        charts.set_class(layout.chart == 0, "-gone")
        for index, name in enumerate(CHART_IDS):
            alone = not layout.framed
            self.query_one(f"#{name}", Canvas).set_class(alone and index != chosen, "-gone")
        self.refresh(layout=True)
        self.call_after_refresh(self.vtop.paint_soon)
        return layout

    def _height(self, name: str, rows: int, kind: type[Canvas] | type[Container] = Canvas) -> None:
        widget = self.query_one(f"#{name}", kind)
        widget.set_class(rows == 0, "-gone")
        if rows:
            widget.styles.height = rows

    # Panels.

    def _paint_servers(self, snapshot: Snapshot, server: ServerView | None, layout: Layout) -> None:
        glyphs = self.glyphs

        def draw(width: int, height: int) -> list[Line]:
            if not layout.framed:
                rows, self._owners = server_rows(snapshot, server, width, height, glyphs)
                return rows
            rows, owners = server_rows(snapshot, server, width - 2, height - 2, glyphs)
            self._owners = ["", *owners]
            count = len(snapshot.servers)
            right = Line(f"{count}" if count > 1 else "", "dim")
            return framed(rows, width, height, glyphs, Line("Servers", "title"), right)

        self.query_one("#servers", Canvas).show(draw)

    def _paint_gpus(self, snapshot: Snapshot, layout: Layout) -> None:
        glyphs = self.glyphs
        scroll = self.vtop.view.gpu_scroll

        def draw(width: int, height: int) -> list[Line]:
            if not layout.framed:
                return gpu_panel(snapshot, width, height, glyphs, scroll)
            rows = gpu_panel(snapshot, width - 2, height - 2, glyphs, scroll)
            return framed(rows, width, height, glyphs, gpu_title(snapshot, glyphs))

        self.query_one("#gpus", Canvas).show(draw)

    def _paint_numbers(self, server: ServerView | None, layout: Layout) -> None:
        view = self.vtop.view

        def draw(width: int, height: int) -> list[Line]:
            if view.large and height >= 4:
                return large_numbers(server, width, self.glyphs)
            return numbers_strip(server, view.chart, width, height)

        self.query_one("#numbers", Canvas).show(draw)

    def _paint_charts(self, snapshot: Snapshot, server: ServerView | None, layout: Layout) -> None:
        glyphs = self.glyphs
        maximised = self.vtop.view.maximised == "chart"
        for index, (name, chart) in enumerate(zip(CHART_IDS, self._charts, strict=True)):
            canvas = self.query_one(f"#{name}", Canvas)
            if canvas.has_class("-gone") or layout.chart == 0:
                continue

            def draw(width: int, height: int, index: int = index, chart: Chart = chart) -> list[Line]:
                border = 2 if layout.framed or maximised else 0
                inner_width, inner_height = width - border, height - border
                spec = chart_spec(snapshot, server, index, inner_width, inner_height)
                if spec is None:
                    rows = empty_chart(server, index, inner_width, inner_height)
                else:
                    rows = chart.render(spec, glyphs)
                if not border:
                    return rows
                return framed(rows, width, height, glyphs, chart_title(server, index, width))

            canvas.show(draw)

    def _paint_engine(self, snapshot: Snapshot, server: ServerView | None, layout: Layout) -> None:
        glyphs = self.glyphs
        view = self.vtop.view

        def draw_engine(width: int, height: int) -> list[Line]:
            if not layout.framed:
                return engine_rows(server, width, height, glyphs)
            inner = width - 2
            rows = engine_rows(server, inner, 2, glyphs)
            rows += [Line()] * (2 - len(rows))
            rows.append(Line(glyphs.horizontal * inner, "frame"))
            rows += verdict_rows(snapshot, server, view, inner, height - 5, glyphs)
            if server is not None and server.verdict is not None and rows[-1].width + 14 < inner:
                last = rows[-1]
                rows[-1] = last.fit(inner - 13).join(Line("e", "key").add(" explains it", "dim"))
            panel = framed(rows, width, height, glyphs, Line("Engine", "title"))
            ends = glyphs.tees
            if height < FRAMED_ENGINE_ROWS:
                # Between two sizes of the terminal a panel has for a moment the rows of neither.
                return panel
            panel[3] = Line(ends[0] + glyphs.horizontal * inner + ends[1], "frame")
            return panel

        self.query_one("#engine", Canvas).show(draw_engine)
        if layout.verdict:
            self.query_one("#verdict", Canvas).show(
                lambda width, height: verdict_rows(snapshot, server, view, width, height, glyphs)
            )

    # Mouse.

    @on(Canvas.Clicked, "#servers")
    def _server_clicked(self, event: Canvas.Clicked) -> None:
        if event.y < len(self._owners) and self._owners[event.y]:
            self.vtop.deeds.choose_server(self._owners[event.y])

    @on(Canvas.Clicked, ".chart")
    def _chart_clicked(self, event: Canvas.Clicked) -> None:
        self.vtop.act(f"chart-{CHART_IDS.index(event.canvas.id or CHART_IDS[0]) + 1}")
