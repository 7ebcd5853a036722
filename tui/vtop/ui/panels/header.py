"""The top row: where this is, what is selected, what must not be overlooked."""

from __future__ import annotations

from vtop import units
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import ServerView, Snapshot
from vtop.ui.glyphs import Glyphs, state_mark
from vtop.ui.ink import Field, Line, cut, field, pack, spread
from vtop.ui.view import View
from vtop.ui.words import state_word, uptime


def header(
    snapshot: Snapshot, server: ServerView | None, view: View, width: int, glyphs: Glyphs, page: str = ""
) -> Line:
    """One row; badges are always kept, the rest gives way from the least important on."""
    right = Line()
    if view.demo_caption:
        right.add(" DEMO ", "badge").add(" ")
    if snapshot.simulated:
        right.add(" SIMULATED ", "badge").add(" ")
    if snapshot.replayed:
        right.add(" REPLAY ", "badge").add(" ")
    if view.readonly and not snapshot.replayed:
        right.add(" READ ONLY ", "badge").add(" ")
    if view.paused:
        right.add(" PAUSED ", "badge").add(" ")
    if view.data_age_s >= 3:
        right.add(f"data {view.data_age_s:.0f} s old ", "bad")
    if width >= 60:
        right = Line(f" {snapshot.window_s:.0f} s window ", "dim").join(right)
    room = width - right.width
    left = Line(" vtop", "title")
    if page:
        left.add(" " + glyphs.cursor + " ", "dim").add(page, "strong")
    fields = [Field(left)]
    gpus = len(snapshot.gpus)
    place = [cut(snapshot.host.hostname, 24, glyphs.ellipsis)]
    if gpus:
        place.append(f"{gpus} GPU" + ("s" if gpus > 1 else ""))
        if snapshot.gpu_status.driver:
            place.append(f"driver {snapshot.gpu_status.driver}")
    else:
        place.append("no GPU")
    fields.append(field(" · ".join(place[:2]), "dim", 5))
    if len(place) > 2:
        fields.append(field(place[2], "dim", 1))
    if server is not None:
        fields.extend(_server_fields(server, snapshot, glyphs))
    return spread(pack(fields, room - 1, 2), right, width)


def _server_fields(server: ServerView, snapshot: Snapshot, glyphs: Glyphs) -> list[Field]:
    status = server.status
    mark, role = state_mark(glyphs, status.state)
    name = cut(status.name, 24, glyphs.ellipsis)
    word = "READY" if status.state is ServerState.READY else state_word(status)
    fields = [Field(Line(f"{mark} {word} ", role).add(name, "strong"), 6)]
    if status.port is not None:
        fields.append(field(f":{status.port}", "", 3))
    if status.version:
        fields.append(field(f"vLLM {status.version}", "dim", 2))
    up = uptime(status, snapshot.at_wall_s)
    if up and status.state in (ServerState.READY, ServerState.DEGRADED):
        fields.append(field(f"up {up}", "dim", 2))
    cpu = snapshot.host.cpu_percent
    if cpu is not None:
        fields.append(field(f"host CPU {units.percent_of_100(cpu)}", "dim", 1))
    return fields
