"""Two saved load tests side by side, with their ratio and without a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult

from vtop import units
from vtop.load.progress import LoadResult
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.calls import aside
from vtop.ui.ink import Line, table, wrap
from vtop.ui.listing import Pager
from vtop.ui.page import Page


def side_by_side(first: LoadResult, second: LoadResult, width: int) -> list[Line]:
    """Two load tests in two columns with their ratio; no verdict, since one run each allows none."""
    rows: list[Line] = []
    cells: list[Sequence[str]] = [("", "first", "second", "second / first")]

    def add(name: str, one: float | None, two: float | None, write: Callable[[float | None], str]) -> None:
        ratio = units.DASH if not one or two is None else f"{two / one:.2f}x"
        cells.append((name, write(one), write(two), ratio))

    def rate(value: float | None) -> str:
        return units.rate(value, "tok/s")

    add("output", first.output_tokens_per_s, second.output_tokens_per_s, rate)
    add("steady output", first.steady_tokens_per_s, second.steady_tokens_per_s, rate)
    add("requests/s", first.requests_per_s, second.requests_per_s, units.significant)
    for name, one, two in (
        ("TTFT", first.ttft, second.ttft),
        ("TPOT", first.tpot, second.tpot),
        ("E2E", first.e2e, second.e2e),
    ):
        add(f"{name} p50", one.p50, two.p50, units.duration)
        add(f"{name} p95", one.p95, two.p95, units.duration)
    cells.append(("failed", str(first.failed), str(second.failed), ""))
    for label, result in (("first", first), ("second", second)):
        request = result.request
        name = f"{label}: {request.workload} on {request.server or request.url}  {request.model}  {result.run_id}"
        rows += [Line(" ").join(line) for line in wrap(name, width - 2)]
        if result.simulated:
            rows[-1].add("  ").add(" SIMULATED ", "badge")
    rows.append(Line())
    rows += [Line(" " + text, "dim" if i == 0 else "") for i, text in enumerate(table(cells, "<>>>", 3))]
    rows.append(Line())
    why = _not_comparable(first, second)
    if why:
        rows += [Line(" ").join(line) for line in wrap("Not comparable: " + why, width - 2, "warn")]
    else:
        text = "One run each: the ratio is what was seen, not a verdict. c compares with repeats and intervals."
        rows += [Line(" ").join(line) for line in wrap(text, width - 2, "dim")]
    return rows


def _not_comparable(first: LoadResult, second: LoadResult) -> str:
    for result in (first, second):
        if not result.comparable:
            return result.not_comparable_because
    if first.simulated != second.simulated:
        return "one is simulated, the other measured"
    if first.request.workload != second.request.workload:
        return f"the workloads differ ({first.request.workload}, {second.request.workload})"
    return ""


class SideBySideScreen(Page):
    """Two runs in two columns."""

    NAME = "side-by-side"
    HEADING = "Two runs"
    AUTO_FOCUS = "#body"

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self._ids = (first, second)
        self._results: tuple[LoadResult, LoadResult] | None = None

    def compose_body(self) -> ComposeResult:
        """One text."""
        yield Pager(id="body")

    def on_mount(self) -> None:
        """Reads both."""
        super().on_mount()
        service, (first, second) = self.vtop.service, self._ids

        async def read() -> tuple[LoadResult, LoadResult]:
            return await aside(lambda: service.load_result(first)), await aside(lambda: service.load_result(second))

        def done(results: tuple[LoadResult, LoadResult]) -> None:
            self._results = results

        self.read(read(), "open two runs", done)

    def paint_body(self, snapshot: Snapshot) -> None:
        """The two columns."""
        results = self._results

        def rows(width: int) -> list[Line]:
            return self.not_read_rows(width) if results is None else side_by_side(*results, width)

        self.query_one("#body", Pager).fill(rows)

    def pulse(self) -> object:
        """They have been read."""
        return (self._results is not None, self._unread)
