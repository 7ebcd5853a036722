"""Help: every key, and what each number means with its formula."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult

from vtop.telemetry.snapshot import Snapshot
from vtop.ui.actions import ACTIONS, GROUPS, keys_of
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line, wrap
from vtop.ui.listing import Pager
from vtop.ui.page import Page
from vtop.ui.words import SOURCE_HELP, SOURCE_WORDS

NUMBERS: tuple[tuple[str, str], ...] = (
    ("Window", "Live rates and percentiles are over the window in the header (w changes it). Where nothing finished in "
     "it, the last value is dim, with its age. A dash is unknown, never zero; e says why."),
    ("TTFT", "Time to first token. On the dashboard from the server's histogram: the exact mean is sum / count over "
     "the window; p95 is given as the bucket that it lies in. In a load test, measured by the client: first chunk with "
     "generated content (text, reasoning or a tool call; a chunk with only a role is not a token) minus the moment the "
     "request was written to an open connection."),
    ("TPOT", "Time per output token after the first: (last - first) / (n - 1), n = usage.completion_tokens; undefined "
     "for n = 1. Its reciprocal is the speed that one reader sees."),
    ("ITL", "Gap between one chunk and the next of a request. Where chunks carry several tokens (speculation) it is a "
     "chunk gap, not a token gap."),
    ("E2E", "From writing the request to its last chunk."),
    ("Output", "Generated tokens a second, all requests together; `steady` leaves out a test's ramps at both ends."),
    ("Goodput", "Requests a second that met every limit asked for (TTFT, TPOT, E2E)."),
    ("Failed", "A request counts as done only with status 200, a finish reason other than abort, [DONE] and no error "
     "event. Failed ones are in no latency."),
    ("DRAM %", "Bytes moved to and from GPU memory as a share of the card's peak. Decoding is bound by it. The source "
     "stands beside it; two sources are never mixed in one line."),
    ("mem busy", "Shown instead where the card cannot count bytes: the share of time with any memory traffic. 100 % "
     "busy can be 40 % of the bandwidth."),
    ("SM, tensor", "Share of the multiprocessors that had work; share of cycles of the tensor cores. `any kernel` is "
     "what nvidia-smi calls GPU-Util: the share of time with any kernel running at all."),
    ("Floor", "The shortest possible TPOT: (weight bytes + KV bytes read a step) / peak bandwidth, or FLOPs a step / "
     "peak FLOP/s where that is longer. e writes it out with this model's and this card's numbers."),
    ("batch", "Requests being decoded together, and those waiting, of the server's limit (max_num_seqs)."),
    ("KV", "Share of the KV cache in use: the mean over engines, not their sum."),
    ("preempted", "Requests thrown out of the KV cache within the window and computed again."),
    ("prompt", "Where prompt tokens came from: computed, found in the prefix cache, or moved from another server."),
    ("speculation", "Guessed tokens accepted a step, of those guessed; the bars are the share accepted by position."),
    ("95 % interval", "Of the ratio between two configurations over paired, interleaved runs. `No difference seen "
     "(could be up to x %)` means that the interval holds 1; with one run there is no verdict."),
    ("SIMULATED", "The number comes from vtop's simulated server and GPU (arithmetic of bandwidth and FLOPs), not from "
     "hardware. It is never compared with a measured one without saying so."),
)  # fmt: skip
"""What the numbers mean, in the order in which a person meets them."""


def help_rows(width: int, keymap: Mapping[str, str], glyphs: Glyphs) -> list[Line]:
    """The whole help text at a width."""
    rows = [Line(" Keys, the same on every screen", "title"), Line()]
    for group in GROUPS:
        rows.append(Line(" " + group, "strong"))
        for action in ACTIONS:
            if action.group != group:
                continue
            keys = " ".join(keys_of(action, keymap))
            head = Line("   ").add(f"{keys:<14}", "key")
            text = wrap(action.help, max(20, width - 20))
            rows.append(head.add(" ").join(text[0]))
            rows.extend(Line(" " * 18).join(line) for line in text[1:])
        rows.append(Line())
    rows.append(Line(" What each number means", "title"))
    rows.append(Line())
    sources = "; ".join(f"{SOURCE_WORDS[key]}: {text}" for key, text in SOURCE_HELP.items())
    for name, meaning in (*NUMBERS, ("Sources", sources + ".")):
        text = wrap(meaning, max(20, width - 20))
        rows.append(Line("   ").add(f"{name:<14}", "strong").add(" ").join(text[0]))
        rows.extend(Line(" " * 18).join(line) for line in text[1:])
    rows.append(Line())
    marks = Line("   ")
    for mark, word, role in (
        (glyphs.ready, "ready", "good"), (glyphs.starting, "starting", "warn"), (glyphs.failed, "failed", "bad"),
        (glyphs.foreign, "foreign", "second"), (glyphs.degraded, "degraded", "warn"), (glyphs.lost, "lost", "bad"),
        (glyphs.stopped, "stopped", "dim"),
    ):  # fmt: skip
        marks.add(mark + " ", role).add(word + "  ")
    rows += [Line(" Marks", "title"), Line(), marks]
    return rows


class HelpScreen(Page):
    """Everything on one page that scrolls."""

    NAME = "help"
    HEADING = "Help"
    AUTO_FOCUS = "#body"

    def compose_body(self) -> ComposeResult:
        """One text."""
        yield Pager(id="body")

    def paint_body(self, snapshot: Snapshot) -> None:
        """The text never changes; only its width does."""
        keymap, glyphs = self.vtop.settings.keys, self.glyphs
        self.query_one("#body", Pager).fill(lambda width: help_rows(width, keymap, glyphs))
