"""The list of servers: state as a mark and a word, what it does now, or why it does not."""

from __future__ import annotations

from vtop import units
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import ServerView, Snapshot
from vtop.ui.charts.bars import bar
from vtop.ui.glyphs import Glyphs, state_mark
from vtop.ui.ink import Field, Line, cut, cut_start, cut_words, field, pack, spread
from vtop.ui.words import server_is_stale, stale_text, state_word, uptime

NAME_CELLS = 16
"""Names are cut to this; numbers never are."""

SILENT_AFTER_S = 20.0
"""A start that logs nothing for this long may hang; then it is said."""


def server_rows(
    snapshot: Snapshot, chosen: ServerView | None, width: int, height: int, glyphs: Glyphs
) -> tuple[list[Line], list[str]]:
    """Rows for `height` rows of space, and the server that each row belongs to ("" for none).

    The selected server is always among them; servers left out are counted in the last row. A failed server has a
    second row with its remedy where there is room, the selected one first.
    """
    if not snapshot.servers:
        return [
            Line(" No server runs here.", "dim"),
            Line(" ").add("s", "key").add(" starts one from a preset.", "dim"),
        ][:height], [""] * min(2, height)
    views = list(snapshot.servers)
    index = next((i for i, view in enumerate(views) if view is chosen), 0)
    room = height if len(views) <= height else max(1, height - 1)
    first = max(0, min(index - room + 1, len(views) - room))
    shown = views[first : first + room]
    spare = height - len(shown) - (1 if len(shown) < len(views) and height > 1 else 0)
    with_second: set[str] = set()
    for view in sorted(shown, key=lambda view: view is not chosen):
        if len(with_second) < spare and _second_row(view, width, glyphs) is not None:
            with_second.add(view.status.name)
    name_width = max(8, min(NAME_CELLS, max(len(view.status.name) for view in views)))
    rows: list[Line] = []
    owners: list[str] = []
    for view in shown:
        row = _row(view, snapshot, width, glyphs, name_width, view is chosen)
        row.cursor = view is chosen
        rows.append(row)
        owners.append(view.status.name)
        second = _second_row(view, width, glyphs) if view.status.name in with_second else None
        if second is not None:
            rows.append(second)
            owners.append(view.status.name)
    left_out = len(views) - len(shown)
    if left_out and len(rows) < height:
        rows.append(Line(f"  {glyphs.more} {left_out} more", "dim"))
        owners.append("")
    return rows[:height], owners[:height]


def rows_wanted(snapshot: Snapshot, chosen: ServerView | None, glyphs: Glyphs) -> int:
    """How many rows the list would like to have."""
    if not snapshot.servers:
        return 2
    return sum(1 if _second_row(view, 80, glyphs) is None else 2 for view in snapshot.servers)


def _row(view: ServerView, snapshot: Snapshot, width: int, glyphs: Glyphs, name_width: int, chosen: bool) -> Line:
    status = view.status
    mark, role = state_mark(glyphs, status.state)
    left = Line(glyphs.cursor if chosen else " ", "key").add(mark + " ", role)
    name = cut_start(status.name, name_width, glyphs.ellipsis)
    left.add(name, "strong").add(" " * (name_width - Line(name).width + 1))
    if status.state is ServerState.STARTING and status.progress is not None:
        return _starting(view, left, width, glyphs)
    if status.state is ServerState.FAILED:
        cause = status.diagnosis.headline if status.diagnosis else status.message or "no cause found; g shows the log"
        left.add("failed: ", "bad")
        return left.add(cut_words(cause, width - left.width - 1, glyphs.ellipsis), "bad")
    engine = view.engine
    right_fields: list[Field] = []
    if engine is not None and not server_is_stale(view):
        right_fields.append(field(units.rate(engine.generation_tokens_per_s, "tok/s"), "strong", 8))
    word = state_word(status)
    if engine is not None and engine.server_kind != "vllm":
        word = f"{engine.server_kind}, {'read only' if status.state is ServerState.FOREIGN else 'not vLLM'}"
    fields = [field(word, role, 0)]
    stale = stale_text(view)
    if stale:
        fields.append(field(stale, "warn", 9))
    elif status.message and status.state in (ServerState.DEGRADED, ServerState.LOST, ServerState.STOPPING):
        fields.append(field(cut(status.message, max(12, width - left.width - 24), glyphs.ellipsis), "warn", 7))
    if status.role:
        fields.append(field(status.role, "second", 6))
    if status.port is not None and status.host in ("127.0.0.1", "localhost", "0.0.0.0"):
        fields.append(field(f":{status.port}", "", 5))
    elif status.port is not None:
        fields.append(field(f"{cut(status.host, 20, glyphs.ellipsis)}:{status.port}", "", 5))
    if status.model:
        fields.append(field(cut(status.model, 24, glyphs.ellipsis), "dim", 4))
    if len(view.engines) > 1:
        fields.append(field(f"{len(view.engines)} models", "dim", 3))
    up = uptime(status, snapshot.at_wall_s)
    if up and status.state is ServerState.READY:
        fields.append(field(f"up {up}", "dim", 2))
    if status.version:
        fields.append(field(status.version, "dim", 1))
    right = pack(right_fields, width)
    row = spread(left.join(pack(fields, width - left.width - right.width - 2, 2)), right.add(" "), width)
    return row.with_role("dim") if server_is_stale(view) else row


def _starting(view: ServerView, left: Line, width: int, glyphs: Glyphs) -> Line:
    progress = view.status.progress
    assert progress is not None
    room = width - left.width - 1
    fields = [field(progress.text, "warn", 8), field(units.elapsed(progress.elapsed_s), "strong")]
    if progress.share is not None:
        fields.insert(1, Field(bar(progress.share, min(20, max(8, room - 40)), glyphs, "warn"), 2))
    if progress.expected_s:
        fields.append(field(f"of ~{units.elapsed(progress.expected_s)}", "dim", 5))
    if progress.silent_s >= SILENT_AFTER_S:
        fields.append(field(f"silent {units.elapsed(progress.silent_s)}", "bad", 9))
    return left.join(pack(fields, room, 1))


def _second_row(view: ServerView, width: int, glyphs: Glyphs) -> Line | None:
    """What to do about a failure, under the row of the failed server."""
    diagnosis = view.status.diagnosis
    if view.status.state is not ServerState.FAILED or diagnosis is None or not diagnosis.remedies:
        return None
    remedy = diagnosis.remedies[0]
    line = Line("    " + glyphs.arrow + " ", "dim")
    if remedy.overrides:
        line.add("f", "key").add(" ")
    return line.add(cut_words(remedy.text, max(1, width - line.width - 1), glyphs.ellipsis))
