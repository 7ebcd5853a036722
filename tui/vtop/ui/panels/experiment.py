"""The picture that makes an optimization visible: both configurations of an experiment beside each other, live."""

from __future__ import annotations

from collections.abc import Callable

from vtop import units
from vtop.experiments import experiment_of
from vtop.results.comparison import CompareProgress
from vtop.results.pictures import GpuPicture, Picture, ServerPicture
from vtop.ui.charts.bars import bar, positions
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Field, Line, field, pack

BAR_CELLS = 26
SMALL_BAR_CELLS = 14
GPU_BAR_CELLS, GPUS_A_ROW = 10, 4
NAME_CELLS = 18


def picture_rows(progress: CompareProgress, width: int, glyphs: Glyphs) -> list[Line]:
    """One or two rows a configuration that was seen under load; none for a comparison that is no experiment."""
    experiment = experiment_of(progress.request)
    if experiment is None:
        return []
    draw = _DRAWN[experiment.name]
    seen = [picture for picture in progress.pictures if picture.servers]
    rows: list[Line] = []
    for picture in seen:
        for index, fields in enumerate(draw(picture, seen, glyphs)):
            name = picture.preset if index == 0 else ""
            rows.append(Line(f" {name:<{NAME_CELLS}} ", "strong").join(pack(fields, width - NAME_CELLS - 3, 3)))
    return rows


def _top(values: list[float | None]) -> float:
    return max((value for value in values if value), default=1.0)


def _barred(label: str, value: float | None, top: float, text: str, glyphs: Glyphs, role: str, priority: int) -> Field:
    share = None if value is None else value / top
    line = Line(f"{label} ", "dim").join(bar(share, SMALL_BAR_CELLS, glyphs, role))
    return Field(line.add(f" {text}", "strong"), priority)


def _batching(picture: Picture, seen: list[Picture], glyphs: Glyphs) -> list[list[Field]]:
    top = _top([(one.servers[0].running or 0) + (one.servers[0].waiting or 0) for one in seen])
    server = picture.servers[0]
    running = server.running
    line = Line("batch ", "dim").join(bar(None if running is None else running / top, BAR_CELLS, glyphs, "second"))
    line.add(f" {units.count(running)} running", "strong")
    line.add(f" · {units.count(server.waiting)} waiting", "warn" if server.waiting else "dim")
    return [
        [
            Field(line, 9),
            field(f"{units.significant(server.tokens_per_step)} tokens a step", "", 6),
            field(units.rate(server.generation_tokens_per_s, "tok/s"), "dim", 4),
        ]
    ]


def _caching(picture: Picture, seen: list[Picture], glyphs: Glyphs) -> list[list[Field]]:
    server = picture.servers[0]
    top_s = _top([one.servers[0].ttft_mean_s for one in seen])
    hits = "off" if server.prefix_hit_rate is None else units.percent(server.prefix_hit_rate)
    ttft = f"mean {units.duration(server.ttft_mean_s)}"
    return [
        [
            _barred("prefix hits", server.prefix_hit_rate, 1.0, f"{hits:<5}", glyphs, "second", 9),
            _barred("TTFT", server.ttft_mean_s, top_s, ttft, glyphs, "ttft", 8),
            field(f"TPOT mean {units.duration(server.tpot_mean_s)}", "dim", 4),
        ]
    ]


def _guessing(picture: Picture, seen: list[Picture], glyphs: Glyphs) -> list[list[Field]]:
    server = picture.servers[0]
    tpot = field(f"TPOT mean {units.duration(server.tpot_mean_s)}", "dim", 5)
    shares = server.accepted_by_position
    if not shares:
        waits = picture.break_even_length is not None
        return [[field("no guess was checked yet" if waits else "no speculation: 1 token a step", "dim", 9), tpot]]
    places = " ".join(f"{number}: {units.percent(share)}" for number, share in enumerate(shares, 1))
    accepted = Line("accepted by position ", "dim").add(positions(shares, glyphs), "second").add(f"  {places}")
    return [[Field(accepted, 9), tpot], [Field(_break_even(picture, server, glyphs), 9)]]


def _break_even(picture: Picture, server: ServerPicture, glyphs: Glyphs) -> Line:
    """Tokens a step from 0 to the most that is possible, with a mark where the longer step begins to pay."""
    length, needed = server.acceptance_length, picture.break_even_length
    most = len(server.accepted_by_position) + 1.0
    line = Line("tokens a step        ", "dim")
    drawn = bar(None if length is None else length / most, BAR_CELLS, glyphs, "second")
    if needed is None:
        return line.join(drawn).add(f" {units.significant(length)}; the break-even is not known here")
    at = 1 + min(BAR_CELLS - 3, round(needed / most * (BAR_CELLS - 2)))
    text = drawn.text
    line.add(text[:at], "second").add("|", "warn").add(text[at + 1 :], "second")
    pays = length is not None and length > needed
    line.add(f" {units.significant(length)}", "good" if pays else "warn")
    return line.add(f" of at most {most:.0f}; | break-even {units.significant(needed)}", "dim")


def _quantizing(picture: Picture, seen: list[Picture], glyphs: Glyphs) -> list[list[Field]]:
    server = picture.servers[0]
    weights = _top([one.weights_bytes for one in seen])
    capacity = _top([one.servers[0].kv_capacity_tokens for one in seen])
    times = _top([one.servers[0].tpot_mean_s for one in seen] + [one.tpot_floor_s for one in seen])
    tokens = f"{units.count(server.kv_capacity_tokens)} tokens"
    floor = f"floor {units.duration(picture.tpot_floor_s)}"
    return [
        [
            _barred("weights", picture.weights_bytes, weights, units.gib(picture.weights_bytes), glyphs, "bar", 9),
            _barred("KV capacity", server.kv_capacity_tokens, capacity, tokens, glyphs, "second", 8),
        ],
        [
            _barred("TPOT   ", picture.tpot_floor_s, times, floor, glyphs, "floor", 9),
            _barred("       mean", server.tpot_mean_s, times, units.duration(server.tpot_mean_s), glyphs, "tpot", 8),
        ],
    ]


def _apart(picture: Picture, seen: list[Picture], glyphs: Glyphs) -> list[list[Field]]:
    every = [server for one in seen for server in one.servers]
    top_in = _top([server.prompt_tokens_per_s for server in every])
    top_out = _top([server.generation_tokens_per_s for server in every])
    rows: list[list[Field]] = []
    for server in picture.servers:
        came, went = server.prompt_tokens_per_s, server.generation_tokens_per_s
        role = server.role or "both"
        rows.append(
            [
                field(f"{role:<8}", "strong", 9),
                # What the decode server takes in was computed next door: only its KV cache arrives.
                _barred(
                    "KV moved in" if role == "decode" else "prompts in ",
                    came,
                    top_in,
                    f"{units.rate(came, 'tok/s'):<12}",
                    glyphs,
                    "ttft",
                    8,
                ),
                _barred("answers out", went, top_out, units.rate(went, "tok/s"), glyphs, "output", 8),
            ]
        )
        if server.role != "prefill":
            rows.append([field(f"{'':<8}", "", 9), field(_interference(server), "", 8)])
    return rows


def _interference(server: ServerPicture) -> str:
    """How far the slow gaps between tokens lie above the usual ones: what prefills of others did to decoding."""
    usual, slow = server.itl_p50_s, server.itl_p95_s
    if not usual or not slow:
        return f"TPOT mean {units.duration(server.tpot_mean_s)}"
    return f"next token p50 {units.duration(usual)}, p95 {units.duration(slow)} ({slow / usual:.1f}x)"


def _splitting(picture: Picture, seen: list[Picture], glyphs: Glyphs) -> list[list[Field]]:
    server = picture.servers[0]
    times = _top([one.servers[0].tpot_mean_s for one in seen] + [one.tpot_floor_s for one in seen])
    gpus = [_gpu(gpu, glyphs) for gpu in picture.gpus]
    floor = f"floor {units.duration(picture.tpot_floor_s)}"
    return [
        *([gpus[at : at + GPUS_A_ROW] for at in range(0, len(gpus), GPUS_A_ROW)] or [[field("GPUs not known", "dim")]]),
        [
            _barred("TPOT ", picture.tpot_floor_s, times, floor, glyphs, "floor", 9),
            _barred("mean", server.tpot_mean_s, times, units.duration(server.tpot_mean_s), glyphs, "tpot", 8),
        ],
    ]


def _gpu(gpu: GpuPicture, glyphs: Glyphs) -> Field:
    line = Line(f"GPU {gpu.index} ", "dim")
    line.join(bar(None if gpu.bandwidth_percent is None else gpu.bandwidth_percent / 100, GPU_BAR_CELLS, glyphs, "bar"))
    return Field(line.add(f" {units.percent_of_100(gpu.bandwidth_percent)}", "strong"), 9)


_DRAWN: dict[str, Callable[[Picture, list[Picture], Glyphs], list[list[Field]]]] = {
    "continuous-batching": _batching,
    "prefix-caching": _caching,
    "speculative-decoding": _guessing,
    "quantization": _quantizing,
    "pd-disaggregation": _apart,
    "tensor-parallel": _splitting,
}
"""By the name of the experiment."""
