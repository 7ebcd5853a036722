"""Every mark on the screen, in one place: a Unicode set, and an ASCII set for terminals without braille and blocks."""

from __future__ import annotations

from dataclasses import dataclass

from vtop.servers.status import ServerState


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of marks."""

    ascii: bool
    ready: str
    starting: str
    failed: str
    foreign: str
    stopped: str
    stopping: str
    degraded: str
    lost: str
    cursor: str
    verdict: str
    more: str
    bar_left: str
    bar_right: str
    eighths: str
    """Partly filled cells, from empty to full."""
    track: str
    blocks: str
    """Heights of one cell, from empty to full."""
    horizontal: str
    vertical: str
    corners: str
    """Top left, top right, bottom left, bottom right."""
    tees: str
    """Left and right ends of a rule inside a frame."""
    ellipsis: str
    times: str
    arrow: str
    checked: str
    unchecked: str


UNICODE = Glyphs(
    ascii=False, ready="●", starting="◌", failed="✗", foreign="○", stopped="□", stopping="◍", degraded="▲", lost="?",
    cursor="▸", verdict="▶", more="⋮", bar_left="▕", bar_right="▏", eighths=" ▏▎▍▌▋▊▉█", track=" ",
    blocks=" ▁▂▃▄▅▆▇█", horizontal="─", vertical="│", corners="╭╮╰╯", tees="├┤", ellipsis="…", times="×", arrow="→",
    checked="[✓]", unchecked="[ ]",
)  # fmt: skip
"""For terminals with Unicode fonts."""

ASCII = Glyphs(
    ascii=True, ready="*", starting="~", failed="x", foreign="o", stopped="-", stopping="~", degraded="!", lost="?",
    cursor=">", verdict=">", more=":", bar_left="[", bar_right="]", eighths=" #", track=".",
    blocks=" .:-=+*#", horizontal="-", vertical="|", corners="++++", tees="++", ellipsis="~", times="x", arrow="->",
    checked="[x]", unchecked="[ ]",
)  # fmt: skip
"""For everything else (`--ascii`, `ascii = true`)."""

_TO_ASCII = str.maketrans("·–−×≥≤≈→…µ±°▶▸●÷⁻²³", "|--x><~>~u~ >>*/-23")
"""One cell for one cell, so that a translated row keeps its width."""


def plain(text: str) -> str:
    """Text in ASCII where the mark has a plain twin; names in other scripts stay as they are."""
    return text.translate(_TO_ASCII)


def state_mark(glyphs: Glyphs, state: ServerState) -> tuple[str, str]:
    """Mark and role of a server's state; the word stands beside it."""
    return {
        ServerState.READY: (glyphs.ready, "good"),
        ServerState.STARTING: (glyphs.starting, "warn"),
        ServerState.FAILED: (glyphs.failed, "bad"),
        ServerState.FOREIGN: (glyphs.foreign, "second"),
        ServerState.STOPPED: (glyphs.stopped, "dim"),
        ServerState.STOPPING: (glyphs.stopping, "warn"),
        ServerState.DEGRADED: (glyphs.degraded, "warn"),
        ServerState.LOST: (glyphs.lost, "bad"),
    }[state]
