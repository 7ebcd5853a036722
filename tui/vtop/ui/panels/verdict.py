"""The line that vtop exists for: what bounds this server now, and what would help; or what is wrong with it."""

from __future__ import annotations

from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import ServerView, Snapshot
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line, cut_words, wrap
from vtop.ui.view import View


def verdict_rows(
    snapshot: Snapshot, server: ServerView | None, view: View, width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """At most `height` rows; a sentence that does not fit ends in a mark, and `e` shows all of it."""
    headline, suggestion, role = _sentences(snapshot, server, view)
    mark = glyphs.verdict + " "
    room = width - len(mark) - 2
    first = wrap(headline, room, role)
    second = wrap(suggestion, room) if suggestion else []
    if height <= 1:
        first, second = first[:1], []
    elif len(first) + len(second) > height:
        keep = max(1, min(len(second), height - 1, height // 2))
        second = second[:keep]
        first = first[: height - len(second)]
    rows = [Line(" " + (mark if index == 0 else "  "), "verdict").join(line) for index, line in enumerate(first)]
    rows.extend(Line("   ").join(line) for line in second)
    if headline and rows and len(first) < len(wrap(headline, room)):
        rest = headline[sum(line.width + 1 for line in first[:-1]) :]
        start = mark if len(first) == 1 else "  "
        rows[len(first) - 1] = Line(" " + start, "verdict").add(cut_words(rest, room, glyphs.ellipsis), role)
    return rows[:height]


def _sentences(snapshot: Snapshot, server: ServerView | None, view: View) -> tuple[str, str, str]:
    if server is None:
        if view.load_line:
            return view.load_line, "", "strong"
        return (
            "Nothing runs yet.",
            "s starts a server from a preset · c compares presets · ? helps.",
            "strong",
        )
    status = server.status
    log = "g shows the log." if status.log_path is not None else ""
    if status.state is ServerState.FAILED:
        if status.diagnosis is None:
            return status.message or "The server ended and its log does not say why.", "g opens the log.", "bad"
        remedy = status.diagnosis.remedies[0] if status.diagnosis.remedies else None
        advice = ""
        if remedy is not None:
            advice = f"{remedy.text}  f applies it and starts again." if remedy.overrides else remedy.text
        return status.diagnosis.headline, advice or "g opens the log at the line.", "bad"
    if status.state is ServerState.STARTING:
        return (
            status.progress.text.capitalize() if status.progress else "Starting.",
            view.load_line or log,
            "warn",
        )
    if status.state in (ServerState.STOPPED, ServerState.STOPPING, ServerState.LOST):
        words = {
            ServerState.STOPPED: "Stopped.",
            ServerState.STOPPING: "Stopping: waiting for every process to end.",
            ServerState.LOST: "This server is gone; what is shown is the last that was known.",
        }
        return status.message or words[status.state], "", "warn"
    if server.scrape.state not in ("ok", "pending") and server.scrape.message:
        return server.scrape.message, "", "warn"
    if view.load_line:
        headline = server.verdict.headline if server.verdict else "measuring"
        return headline, view.load_line, "strong"
    if server.verdict is None:
        return "Not enough data yet to say what bounds this server.", "l runs a load test.", "dim"
    return server.verdict.headline, server.verdict.suggestion, "strong" if server.verdict.bound != "unknown" else "dim"
