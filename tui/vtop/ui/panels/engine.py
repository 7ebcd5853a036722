"""What goes on inside the server: batch, KV cache, where the prompt tokens came from, speculation; or its start-up."""

from __future__ import annotations

from vtop import units
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import ServerView
from vtop.ui.charts.bars import bar, positions
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Field, Line, cut, field, pack
from vtop.ui.words import server_is_stale
from vtop.vllm.reading import EngineReading

PHASES = ("launch", "config", "engine", "download", "weights", "compile", "profile", "kv-cache", "graphs", "warm-up")
"""In the order in which a start goes through them."""


def engine_rows(server: ServerView | None, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Two rows (one where there is no room for two)."""
    if server is None:
        return []
    if server.status.state is ServerState.STARTING and server.status.progress is not None:
        return _phases(server, width, height, glyphs)
    engine = server.engine
    if engine is None:
        text = server.scrape.message or server.status.message or "no numbers from this server yet"
        return [Line(" ").add(cut(text, width - 2, glyphs.ellipsis), "dim")]
    rows = [
        Line(" ").join(pack(_batch(engine, server, glyphs, width), width - 2, 3)),
        Line(" ").join(pack(_tokens(engine, glyphs), width - 2, 3)),
    ]
    if height == 1:
        rows = [Line(" ").join(pack(_batch(engine, server, glyphs, 60), width - 2, 2))]
    if server_is_stale(server):
        rows = [row.with_role("dim") for row in rows]
    return rows[:height]


def _batch(engine: EngineReading, server: ServerView, glyphs: Glyphs, width: int) -> list[Field]:
    limit = server.status.max_num_seqs
    running = units.count(engine.running)
    waiting = units.count(engine.waiting)
    line = Line("batch ", "dim")
    wide = width >= 110
    if limit and engine.running is not None and width >= 76:
        line.join(bar(engine.running / (limit * engine.engines), 22 if wide else 10, glyphs, "second")).add(" ")
    line.add(running, "strong").add(f" running · {waiting} waiting", "warn" if engine.waiting else "")
    fields = [Field(line)]
    if engine.server_kind != "vllm":
        fields.append(field(f"{engine.server_kind}'s own numbers", "warn", 10))
    if len(server.engines) > 1:
        shown = cut(engine.model_name, 24, glyphs.ellipsis)
        fields.append(field(f"{shown}, 1 of {len(server.engines)} models: e shows all", "warn", 10))
    kv = Line("KV ", "dim")
    if width >= 76:
        kv.join(bar(engine.kv_usage, 14 if wide else 8, glyphs, "second")).add(" ")
    kv.add(units.percent(engine.kv_usage), "strong")
    if engine.kv_capacity_tokens:
        kv.add(f" of {units.count(engine.kv_capacity_tokens)}" + (" tokens" if wide else ""), "dim")
    fields.append(Field(kv, 9))
    fields.append(
        Field(Line("preempted ", "dim").add(units.count(engine.preemptions), "bad" if engine.preemptions else ""), 5)
    )
    if engine.engines > 1:
        fields.append(field(f"{engine.engines} engines", "dim", 3))
    if engine.rejected:
        fields.append(field(f"{units.count(engine.rejected)} rejected", "bad", 7))
    return fields


def _tokens(engine: EngineReading, glyphs: Glyphs) -> list[Field]:
    fields: list[Field] = []
    computed, cached = engine.prompt_computed_share, engine.prompt_cached_share
    moved = engine.prompt_transferred_share
    if computed is not None or cached is not None or moved is not None:
        line = Line("prompt ", "dim")
        line.add(f"{units.percent(computed)} computed · {units.percent(cached)} prefix cache")
        fields.append(Field(line, 9))
        if moved is not None:
            fields.append(field(f"{units.percent(moved)} transferred", "", 4))
    else:
        fields.append(Field(Line("prefix cache hits ", "dim").add(units.percent(engine.prefix_hit_rate)), 9))
    speculation = engine.speculation
    if speculation is not None and speculation.acceptance is not None:
        line = Line("speculation ", "dim")
        shares = speculation.per_position
        if shares:
            accepted = sum(shares)
            line.add(f"{units.significant(accepted)} of {len(shares)}", "strong").add(" accepted ")
            line.add(positions(shares, glyphs), "second")
        else:
            line.add(units.percent(speculation.acceptance), "strong").add(" accepted")
        fields.append(Field(line, 8))
        if speculation.wasted_tokens_per_s:
            fields.append(field(f"{units.rate(speculation.wasted_tokens_per_s, 'tok/s')} wasted", "dim", 2))
    else:
        fields.append(field("no speculation", "dim", 2))
    fields.append(Field(Line("prompts ", "dim").add(units.rate(engine.prompt_tokens_per_s, "tok/s")), 3))
    transfer = engine.kv_transfer
    if transfer is not None and transfer.bytes_per_s:
        fields.append(Field(Line("KV moved ", "dim").add(units.bytes_per_s(transfer.bytes_per_s)), 7))
    if engine.restarted:
        fields.append(field("restarted", "warn", 9))
    return fields


def _phases(server: ServerView, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    progress = server.status.progress
    assert progress is not None
    done = dict(progress.done)
    row = Line(" ")
    items: list[Field] = []
    reached = PHASES.index(progress.phase) if progress.phase in PHASES else -1
    for index, phase in enumerate(PHASES):
        if phase in done:
            items.append(Field(Line(f"{phase} ", "good").add(units.elapsed(done[phase]), "dim"), 3))
        elif phase == progress.phase:
            share = "" if progress.share is None else f" {units.percent(progress.share)}"
            items.append(
                Field(Line(f"{glyphs.cursor}{phase}{share} ", "warn").add(units.elapsed(progress.phase_elapsed_s)))
            )
        elif index > reached:
            items.append(Field(Line(phase, "dim"), 2 if phase in ("weights", "kv-cache", "graphs") else 1))
    row.join(pack(items, width - 2, 3 if width >= 100 else 2))
    rows = [row]
    if height > 1:
        total = Line(" ")
        if progress.expected_s:
            total.join(bar(min(1.0, progress.elapsed_s / progress.expected_s), min(40, width // 2), glyphs, "warn"))
            left = progress.expected_s - progress.elapsed_s
            total.add(f" about {units.elapsed(left)} left" if left > 0 else " longer than last time", "dim")
        else:
            total.add(f"{units.elapsed(progress.elapsed_s)} so far; the first start of this preset here", "dim")
        rows.append(total)
    return rows
