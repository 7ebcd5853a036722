"""The GPUs: how much of the memory bandwidth is really used, with its source, and the rest of the card."""

from __future__ import annotations

from vtop import units
from vtop.telemetry.snapshot import Bandwidth, GpuReading, Snapshot
from vtop.ui.charts.bars import bar
from vtop.ui.charts.braille import area, resample
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Field, Line, cut, cut_words, field, pack, wrap
from vtop.ui.words import SOURCE_WORDS, STALE_AFTER_S, bandwidth_amount, bandwidth_percent_label

BESIDE_CELLS = 28
"""Room for `tensor 12 %  any kernel 98 %`: the kernel share, elsewhere called utilization, belongs beside the bytes."""

STRIP_SPAN_S = 120.0
"""How far back the always-on history goes."""


def gpu_title(snapshot: Snapshot, glyphs: Glyphs) -> Line:
    """`GPU 0 · NVIDIA H100 80GB HBM3`, or how many there are."""
    if len(snapshot.gpus) == 1:
        gpu = snapshot.gpus[0]
        where = f" in {gpu.host}" if gpu.host else ""
        title = Line(f"GPU {gpu.index}{where}", "title").add(" · " + cut(gpu.name, 48, glyphs.ellipsis), "dim")
    else:
        title = Line(f"{len(snapshot.gpus)} GPUs" if snapshot.gpus else "GPU", "title")
        if snapshot.gpus:
            title.add(" · " + cut(snapshot.gpus[0].name, 40, glyphs.ellipsis), "dim")
    return title


def gpu_panel(snapshot: Snapshot, width: int, height: int, glyphs: Glyphs, scroll: int = 0) -> list[Line]:
    """One card in full where it is alone and there is room, else one row a card."""
    if not snapshot.gpus:
        message = snapshot.gpu_status.message or "no GPU readings yet"
        rows = wrap(message, width - 2, "dim")
        if len(rows) > height > 0:
            rest = message[sum(len(row.text) + 1 for row in rows[: height - 1]) :]
            rows = [*rows[: height - 1], Line(cut_words(rest, width - 2, glyphs.ellipsis), "dim")]
        return [Line(" ").join(line) for line in rows]
    if len(snapshot.gpus) == 1 and height >= 3:
        return _one(snapshot.gpus[0], snapshot, width, height, glyphs)
    return gpu_rows(snapshot, width, height, glyphs, scroll)


def _dimmed(gpu: GpuReading) -> bool:
    return gpu.lost or gpu.age_s > STALE_AFTER_S


def _one(gpu: GpuReading, snapshot: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    bandwidth = gpu.bandwidth
    label_width = 8 if bandwidth is not None and bandwidth.source == "busy" else 5
    bar_width = max(10, min(34, width - label_width - 13 - _beside_width(bandwidth)))
    percent = bandwidth.percent if bandwidth else None
    first = Line(f" {bandwidth_percent_label(bandwidth):<{label_width}} ", "strong")
    first.join(bar(None if percent is None else percent / 100, bar_width, glyphs))
    first.add(f"{units.percent_of_100(percent):>6}", "strong")
    rest: list[Field] = []
    if bandwidth is None:
        rest.append(field("not known (e says why)", "dim", 1))
    elif bandwidth.source == "busy":
        rest.append(field("of the time, not bytes", "warn", 1))
    else:
        rest.append(field(bandwidth_amount(bandwidth), "", 3))
        rest.append(field(SOURCE_WORDS.get(bandwidth.source, bandwidth.source), "dim", 2))
    rows = [first.add("  ").join(pack(rest, width - first.width - 3))]
    word = "SM" if gpu.sm_percent is not None else "kernel" if label_width > 5 else "kern"
    second = Line(f" {word:<{label_width}} ", "strong")
    compute = gpu.sm_percent if gpu.sm_percent is not None else gpu.gpu_util_percent
    second.join(bar(None if compute is None else compute / 100, bar_width, glyphs, "second"))
    second.add(f"{units.percent_of_100(compute):>6}", "strong")
    more: list[Field] = []
    if gpu.sm_percent is None:
        more.append(field("of the time a kernel ran", "dim", 2))
    else:
        more.append(field(f"tensor {units.percent_of_100(gpu.tensor_percent)}", "", 3))
        more.append(field(f"any kernel {units.percent_of_100(gpu.gpu_util_percent)}", "dim", 1))
    rows.append(second.add("  ").join(pack(more, width - second.width - 3)))
    rows.append(Line(" ").join(pack(_card_fields(gpu), width - 2, 3)))
    if gpu.throttle and len(rows) < height:
        rows.append(Line(" slowed: ", "warn").add(cut(", ".join(gpu.throttle), width - 10, glyphs.ellipsis), "warn"))
    left = height - len(rows)
    if left >= 1 and width >= 40:
        rows.extend(_strip(gpu, snapshot, width, left, glyphs))
    if _dimmed(gpu):
        rows = [row.with_role("dim") for row in rows]
    return rows[:height]


def _beside_width(bandwidth: Bandwidth | None) -> int:
    """Cells that amount and source need, so that the bar gives way to them."""
    if bandwidth is None or bandwidth.source == "busy":
        return BESIDE_CELLS
    amount = len(bandwidth_amount(bandwidth)) + 2 + len(SOURCE_WORDS.get(bandwidth.source, bandwidth.source))
    return max(BESIDE_CELLS, amount)


def _card_fields(gpu: GpuReading) -> list[Field]:
    memory = f"{_pair(gpu.memory_used_bytes, gpu.memory_total_bytes)} GiB"
    fields = [Field(Line("mem ", "dim").add(memory), 9)]
    if gpu.unified_memory:
        fields[0] = Field(Line("mem ", "dim").add("shared with the host"), 9)
    power = f"{gpu.power_w:.0f}" if gpu.power_w is not None else units.DASH
    if gpu.power_limit_w is not None:
        power += f" / {gpu.power_limit_w:.0f}"
    fields.append(Field(Line("power ", "dim").add(f"{power} W"), 8))
    heat = units.DASH if gpu.temperature_c is None else f"{gpu.temperature_c:.0f}"
    fields.append(Field(Line(f"{heat} °C", "bad" if (gpu.temperature_c or 0) >= 87 else ""), 7))
    fields.append(
        Field(Line("clock " if gpu.sm_clock_mhz is None else "", "dim").add(units.megahertz(gpu.sm_clock_mhz)), 6)
    )
    if _memory_clock_reduced(gpu):
        fields.append(field(f"memory clock {units.megahertz(gpu.memory_clock_mhz)}", "warn", 5))
    if gpu.lost:
        fields.insert(0, field("LOST", "bad", 10))
    elif gpu.age_s > STALE_AFTER_S:
        fields.insert(0, field(f"{gpu.age_s:.0f} s old", "warn", 10))
    return fields


def _memory_clock_reduced(gpu: GpuReading) -> bool:
    return bool(
        gpu.memory_clock_mhz and gpu.memory_clock_max_mhz and gpu.memory_clock_mhz < 0.95 * gpu.memory_clock_max_mhz
    )


def _pair(used: int | None, total: int | None) -> str:
    left = units.DASH if used is None else f"{used / 2**30:.1f}"
    right = units.DASH if total is None else f"{total / 2**30:.1f}"
    return f"{left} / {right}"


def _strip(gpu: GpuReading, snapshot: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    times, values = snapshot.history.series(f"gpu/{gpu.uuid}/bandwidth_percent", STRIP_SPAN_S)
    caption = f"{bandwidth_percent_label(gpu.bandwidth)} %, last {STRIP_SPAN_S / 60:.0f} min"
    across = width - 2
    rows = min(height, 6)
    if rows == 1:
        across -= len(caption) + 2
    samples = resample(times, values, snapshot.at_s - STRIP_SPAN_S, snapshot.at_s, 2 * across)
    drawn = [Line(" ").add(text, "bar") for text in area(samples, across, max(1, rows - 1), 100.0, glyphs)]
    if rows == 1:
        return [drawn[0].add("  " + caption, "dim")]
    return [*drawn, Line(" " + caption, "dim")]


def gpu_rows(snapshot: Snapshot, width: int, height: int, glyphs: Glyphs, scroll: int = 0) -> list[Line]:
    """One row a card; where not all fit, the last row counts the others."""
    gpus = snapshot.gpus
    if len(gpus) <= height:
        return [gpu_row(gpu, width, glyphs) for gpu in gpus]
    room = max(1, height - 1)
    first = max(0, min(scroll, len(gpus) - room))
    rows = [gpu_row(gpu, width, glyphs) for gpu in gpus[first : first + room]]
    if height > 1:
        above = f", {first} above" if first else ""
        rows.append(
            Line(f" {glyphs.more} {len(gpus) - room} more{above}  ", "dim").add("[ ]", "key").add(" scroll", "dim")
        )
    return rows


def gpu_row(gpu: GpuReading, width: int, glyphs: Glyphs) -> Line:
    """A card in one row: what does not fit is left out whole, the name first."""
    bandwidth = gpu.bandwidth
    percent = bandwidth.percent if bandwidth else None
    label = "busy" if bandwidth is not None and bandwidth.source == "busy" else "DRAM"
    head = Line(f"{gpu.index:>2} ", "strong").add(label + " ", "dim")
    head.add(f"{units.percent_of_100(percent):>5}", "strong")
    fields = [Field(head)]
    fields.append(Field(bar(None if percent is None else percent / 100, 10, glyphs), 4))
    amount = "" if bandwidth is None else units.bytes_per_s(bandwidth.bytes_per_s) if bandwidth.bytes_per_s else ""
    if amount:
        fields.append(field(f"{amount:>9}", "", 5))
    if bandwidth is not None and bandwidth.source != "busy":
        fields.append(field(SOURCE_WORDS.get(bandwidth.source, bandwidth.source), "dim", 3))
    compute = gpu.sm_percent if gpu.sm_percent is not None else gpu.gpu_util_percent
    word = "SM" if gpu.sm_percent is not None else "kern"
    fields.append(Field(Line(word + " ", "dim").add(f"{units.percent_of_100(compute):>5}"), 7))
    used = units.DASH if gpu.memory_used_bytes is None else f"{gpu.memory_used_bytes / 2**30:.1f}"
    total = units.DASH if gpu.memory_total_bytes is None else f"{gpu.memory_total_bytes / 2**30:.0f}"
    fields.append(field(f"{used:>5}/{total} GiB", "", 9))
    power = units.DASH if gpu.power_w is None else f"{gpu.power_w:.0f}"
    limit = "" if gpu.power_limit_w is None else f"/{gpu.power_limit_w:.0f}"
    fields.append(field(f"{power:>3}{limit} W", "", 8))
    heat = units.DASH if gpu.temperature_c is None else f"{gpu.temperature_c:.0f}"
    fields.append(field(f"{heat} °C", "bad" if (gpu.temperature_c or 0) >= 87 else "", 8))
    if gpu.lost:
        fields.append(field("LOST", "bad", 10))
    elif gpu.age_s > STALE_AFTER_S:
        fields.append(field(f"{gpu.age_s:.0f} s old", "warn", 10))
    elif gpu.throttle:
        fields.append(field("slowed", "warn", 6))
    if gpu.host:
        fields.append(field(f"in {gpu.host}", "dim", 10))
    row = pack(fields, width - 1, 1)
    name_room = width - row.width - 3
    if name_room >= 8:
        row.add("  " + cut(gpu.name, name_room, glyphs.ellipsis), "dim")
    return row.with_role("dim") if _dimmed(gpu) else row
