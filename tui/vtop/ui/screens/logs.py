"""The selected server's log: bounded, literal, searchable, followed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from textual import on
from textual.app import ComposeResult
from textual.events import Key
from textual.widgets import Input

from vtop.servers.logs import DIAGNOSED_LINES
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.calls import aside
from vtop.ui.ink import Line, wrap
from vtop.ui.listing import Pager
from vtop.ui.page import Page

LINES = 2000
"""As many lines as are held of a server that runs."""

LINES_OF_DEAD = DIAGNOSED_LINES
"""As many lines as are held of one with a diagnosis: its line number counts in these."""

READ_EVERY_S = 1.0
"""How often the end of the log is read while the screen is open."""

LONGEST_SHOWN = 2000
"""Characters of one line that are wrapped into rows; the rest is counted, not drawn."""


class LogsScreen(Page):
    """A log in a window of its last lines."""

    NAME = "logs"
    HEADING = "Logs"
    AUTO_FOCUS = "#body"

    def __init__(self) -> None:
        super().__init__()
        self._name = ""
        self._lines: Sequence[str] = ()
        self._rows: list[Line] = []
        self._rows_key: tuple[object, ...] = ()
        self._row_of_line: list[int] = []
        self._words = ""
        self._hit = -1
        self._hits: list[int] = []
        self._reading = False
        self._most = LINES

    def compose_body(self) -> ComposeResult:
        """The text, and the search line that comes with `/`."""
        yield Pager(id="body")
        search = Input(placeholder="search the log, enter finds, escape closes", id="search", compact=True)
        search.display = False
        yield search

    def on_mount(self) -> None:
        """Starts at the end, where the news is."""
        super().on_mount()
        self.query_one("#body", Pager).at_end = True
        self.set_interval(READ_EVERY_S, self._read)
        self._read()

    def _read(self) -> None:
        server = self.vtop.server_in(self.vtop.snapshot)
        if server is None or self._reading:
            return
        name = server.status.name
        service = self.vtop.service
        if name != self._name:
            self._most = LINES if server.status.diagnosis is None else LINES_OF_DEAD
        most = self._most
        self._reading = True

        async def read() -> Sequence[str]:
            try:
                return await aside(lambda: service.log_lines(name, most))
            finally:
                self._reading = False

        def done(lines: Sequence[str]) -> None:
            if not self.is_mounted or (name == self._name and lines == self._lines):
                return
            fresh = name != self._name
            if not fresh:
                self._keep_place(gone(self._lines, lines))
            self._name, self._lines = name, lines
            self._find()
            if fresh:
                self._hit = -1
                self._go_to_cause()
            self.vtop.paint_soon()

        self.vtop.calls.run(read(), f"read the log of {name}", done)

    def _keep_place(self, lines_gone: int) -> None:
        """What is read stays in sight, and the match stays the match, when lines at the beginning were dropped."""
        pager = self.query_one("#body", Pager)
        if not pager.at_end and lines_gone < len(self._row_of_line):
            pager.top = max(0, pager.top - self._row_of_line[lines_gone])
        if self._hit >= 0:
            self._hit = max(-1, self._hit - lines_gone)

    def _go_to_cause(self) -> None:
        """A failed server's log opens at the line that says why."""
        server = self.vtop.server_in(self.vtop.snapshot)
        diagnosis = server.status.diagnosis if server else None
        pager = self.query_one("#body", Pager)
        pager.at_end = True
        if diagnosis is None or diagnosis.line_number is None:
            return
        index = diagnosis.line_number - 1
        if 0 <= index < len(self._lines):
            self._hit = index
            pager.at_end = False
            self.call_after_refresh(self._show_hit)

    def paint_body(self, snapshot: Snapshot) -> None:
        """The rows in sight; long lines are wrapped once, not at each paint."""
        pager = self.query_one("#body", Pager)
        if not self._lines:
            pager.fill(lambda width: [Line(" The log is empty so far.", "dim")])
            return
        pager.fill(self._wrapped)

    def _wrapped(self, width: int) -> list[Line]:
        key = (id(self._lines), width, self._words, self._hit)
        if key == self._rows_key:
            return self._rows
        rows: list[Line] = []
        starts: list[int] = []
        hits = set(self._hits)
        for index, text in enumerate(self._lines):
            starts.append(len(rows))
            shown = text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + f" … {len(text):,} characters"
            role = _level_role(text)
            for line in _broken(shown, max(10, width - 2), role):
                row = Line(" ").join(line)
                row.cursor = index == self._hit
                if index in hits:
                    row = Line(">", "key").join(line)
                    row.cursor = index == self._hit
                rows.append(row)
        self._rows, self._row_of_line, self._rows_key = rows, starts, key
        return rows

    def heading(self) -> str:
        """Name, length, and where the search stands."""
        text = f"Logs  {self._name}" if self._name else "Logs"
        if self._words:
            where = self._hits.index(self._hit) + 1 if self._hit in self._hits else 0
            text += f"  /{self._words}  {where} of {len(self._hits)}"
        elif self.query_one("#body", Pager).at_end:
            text += "  following"
        return text

    def has_item(self) -> bool:
        """Whether there are matches to go through."""
        return bool(self._hits)

    def pulse(self) -> object:
        """Another server selected, or new lines."""
        server = self.vtop.server_in(self.vtop.snapshot)
        name = server.status.name if server else ""
        if name and name != self._name:
            self._read()
        return (self._name, id(self._lines), self._hit, self.query_one("#body", Pager).at_end)

    # Keys.

    def do_search(self) -> None:
        """Opens the search line."""
        search = self.query_one("#search", Input)
        search.display = True
        search.value = self._words
        search.focus()

    def do_search_next(self) -> None:
        """The next match, round about."""
        self._step(1)

    def do_search_back(self) -> None:
        """The match before."""
        self._step(-1)

    def do_follow(self) -> None:
        """Back to the end, and stay there."""
        pager = self.query_one("#body", Pager)
        pager.at_end = True
        pager.redraw()

    def do_next_server(self) -> None:
        """The next server's log."""
        self.vtop.select(1)
        self._read()

    def do_previous_server(self) -> None:
        """The log of the server before."""
        self.vtop.select(-1)
        self._read()

    @on(Input.Submitted, "#search")
    def _searched(self, event: Input.Submitted) -> None:
        self._words = event.value
        self._close_search()
        self._find()
        self._step(-1 if self._hit < 0 else 1)

    def on_key(self, event: Key) -> None:
        """Escape closes the search line first, the screen only then."""
        if event.key == "escape" and self.query_one("#search", Input).has_focus:
            event.stop()
            event.prevent_default()
            self._words = ""
            self._find()
            self._close_search()

    def _close_search(self) -> None:
        self.query_one("#search", Input).display = False
        self.query_one("#body", Pager).focus()
        self.vtop.paint_soon()

    def _find(self) -> None:
        words = self._words.lower()
        self._hits = [i for i, line in enumerate(self._lines) if words in line.lower()] if words else []

    def _step(self, by: int) -> None:
        if not self._hits:
            if self._words:
                self.vtop.notify(f"not in this log: {self._words}", severity="warning", markup=False, timeout=3)
            return
        if self._hit in self._hits:
            at = (self._hits.index(self._hit) + by) % len(self._hits)
        else:
            at = len(self._hits) - 1 if by < 0 else 0
        self._hit = self._hits[at]
        self._show_hit()

    def _show_hit(self) -> None:
        pager = next(iter(self.query("#body").results(Pager)), None)
        if pager is None:
            # The screen was left before it was drawn.
            return
        pager.redraw()
        if 0 <= self._hit < len(self._row_of_line):
            pager.go(self._row_of_line[self._hit])
        self.vtop.paint_soon()


def gone(before: Sequence[str], after: Sequence[str]) -> int:
    """How many lines at the beginning of a log were dropped between two looks at its end."""
    for dropped, line in enumerate(before[:-1]):
        # Not the last line: it may have been half written.
        if after and line == after[0] and before[dropped:-1] == after[: len(before) - 1 - dropped]:
            return dropped
    return len(before)


def _level_role(text: str) -> str:
    head = text[:80]
    if "ERROR" in head or "CRITICAL" in head or "Traceback" in head:
        return "bad"
    return "warn" if "WARNING" in head else ""


def _broken(text: str, width: int, role: str) -> list[Line]:
    """A log line on rows, spaces kept as they are."""
    if len(text) <= width and text.isprintable():
        return [Line(text, role)]
    if "  " not in text.strip():
        return wrap(text, width, role, "    ")
    rows = []
    left = Line(text).text
    while cell_len(left) > width:
        piece = set_cell_size(left, width)
        # A wide character that does not fit at the edge was replaced by a space; it belongs to the next row.
        taken = len(piece) if left.startswith(piece) else len(piece) - 1
        rows.append(Line(left[:taken], role))
        left = left[taken:]
    return [*rows, Line(left, role)]
