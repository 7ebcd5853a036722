"""A comparison as rows: its runs while they go on, and the table with ratios, intervals and verdicts."""

from __future__ import annotations

from rich.cells import cell_len

from vtop import units
from vtop.experiments import experiment_of, result_sentence
from vtop.results.columns import SECOND_HALF, second_half
from vtop.results.comparison import CompareProgress, CompareRow, CompareStep
from vtop.ui.charts.bars import bar
from vtop.ui.frame import rule
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Field, Line, cut, field, pack, table, wrap
from vtop.ui.panels.experiment import picture_rows
from vtop.ui.words import compare_left_s

STATES = ("starting", "warming-up", "loading", "stopping")
WORDS = {"starting": "start", "warming-up": "warm up", "loading": "load", "stopping": "stop"}

BAR_CELLS = 12
VERDICT_CELLS = 34
"""A verdict stands beside its row where there are this many cells for it, else below."""

ONE_ROW_WIDTH = 116
"""From this width on each configuration is one row of the table."""


def comparison_rows(progress: CompareProgress, width: int, glyphs: Glyphs) -> list[Line]:
    """All of a comparison: how far it is, the table, its runs, and how to repeat it."""
    made = progress_rows(progress, width, glyphs)
    result = table_rows(progress, width, glyphs)
    if progress.simulated:
        made[0] = Line(" SIMULATED ", "badge").join(made[0])
    made += _experiment_rows(progress, width)
    made += picture_rows(progress, width, glyphs)
    if result:
        made += [Line(), rule(width, Line("Table", "title"), Line(progress.directory, "dim"), glyphs), *result]
    made += [Line(), rule(width, Line("Runs", "title"), Line(), glyphs)]
    made += step_rows(progress, width, len(progress.steps), glyphs)
    if progress.repeat_command and progress.state != "running":
        made += [Line(), Line(" Repeat it with", "dim")]
        made += [Line("   ").join(line) for line in wrap(progress.repeat_command, width - 4, "second", "  ")]
    return made


def _experiment_rows(progress: CompareProgress, width: int) -> list[Line]:
    """For a guided experiment: what to watch while it runs, the result in one sentence when it is over."""
    experiment = experiment_of(progress.request)
    if experiment is None:
        return []
    running = progress.state in ("planned", "running")
    text = f"Watch: {experiment.watch}" if running else result_sentence(progress)
    return [Line(" ").join(line) for line in wrap(text, max(10, width - 2), "strong")]


def progress_rows(progress: CompareProgress, width: int, glyphs: Glyphs) -> list[Line]:
    """How far it is, then each run."""
    done = sum(step.state in ("done", "failed") for step in progress.steps)
    total = len(progress.steps)
    line = Line(" ")
    line.join(bar(done / total if total else 0.0, min(40, max(10, width // 3)), glyphs))
    fields = [field(f"{done} of {total} runs", "strong"), field(units.elapsed(progress.elapsed_s), "", 5)]
    left = compare_left_s(progress)
    if left is not None:
        fields.append(field(f"about {units.elapsed(left)} left", "dim", 4))
    if progress.state != "running":
        fields.append(field(progress.state, "good" if progress.state == "finished" else "warn", 6))
    rows = [line.add("  ").join(pack(fields, width - line.width - 3))]
    now = next((step for step in progress.steps if step.state in STATES), None)
    if now is not None and progress.state == "running":
        # The list of runs may be below the edge of the screen.
        rows.append(Line(" now ", "dim").join(_step(now, min(24, len(now.preset)), width - 5, glyphs)))
    if progress.message:
        rows += [Line(" ").join(text) for text in wrap(progress.message, width - 2, "warn")][:2]
    return rows


def step_rows(progress: CompareProgress, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """One row a run; where not all fit, those around the running one."""
    steps = progress.steps
    at = next((i for i, step in enumerate(steps) if step.state not in ("done", "failed")), len(steps) - 1)
    first = max(0, min(at - height // 2, len(steps) - height))
    name_width = max([8, *(len(step.preset) for step in steps)])
    return [_step(step, min(24, name_width), width, glyphs) for step in steps[first : first + height]]


def _step(step: CompareStep, name_width: int, width: int, glyphs: Glyphs) -> Line:
    mark, role = {
        "waiting": (" ", "dim"),
        "done": (glyphs.ready, "good"),
        "failed": (glyphs.failed, "bad"),
    }.get(step.state, (glyphs.starting, "warn"))
    line = Line(f" {mark} ", role).add(f"{step.round:>2}  ", "dim")
    line.add(f"{cut(step.preset, name_width, glyphs.ellipsis):<{name_width}}  ", "strong")
    if step.state in STATES:
        reached = STATES.index(step.state)
        for index, state in enumerate(STATES):
            line.add(" · " if index else "", "dim")
            line.add(WORDS[state], "warn" if index == reached else "good" if index < reached else "dim")
        if step.detail:
            line.add("  " + cut(step.detail, max(0, width - line.width - 3), glyphs.ellipsis), "dim")
    elif step.state == "failed":
        line.add("failed: " + cut(step.detail, max(0, width - line.width - 10), glyphs.ellipsis), "bad")
    elif step.state == "done":
        fields = [
            field(units.rate(step.output_tokens_per_s, "tok/s"), "strong"),
            field(f"TTFT p50 {units.duration(step.ttft_p50_s)}", "", 4),
            field(f"TPOT p50 {units.duration(step.tpot_p50_s)}", "", 3),
        ]
        line.join(pack(fields, width - line.width - 1, 3))
    else:
        line.add("waiting", "dim")
    return line


def verdict_role(verdict: str) -> str:
    """Its colour; the word says it without."""
    for start, role in (("faster", "good"), ("slower", "bad"), ("not comparable", "warn")):
        if verdict.startswith(start):
            return role
    return "dim"


def verdict_text(row: CompareRow) -> str:
    """The verdict, once there is a run to judge."""
    return row.verdict if row.runs else "no run yet"


def ratio_text(row: CompareRow) -> tuple[str, str]:
    """`1.28x` and its interval `1.24–1.33`."""
    ratio = units.DASH if row.ratio is None else f"{row.ratio:.2f}x"
    if row.ratio_low is None or row.ratio_high is None:
        return ratio, units.DASH
    return ratio, f"{row.ratio_low:.2f}–{row.ratio_high:.2f}"


def table_rows(progress: CompareProgress, width: int, glyphs: Glyphs) -> list[Line]:
    """The table, its verdicts, and what must be minded."""
    if not progress.rows:
        return []
    top = max((row.ratio for row in progress.rows if row.ratio), default=1.0)
    rows = _wide(progress, width, top, glyphs) if width >= ONE_ROW_WIDTH else _narrow(progress, width, top, glyphs)
    if progress.state != "running" and any(row.runs for row in progress.rows):
        rows += [Line(), *_second_half(progress, width, glyphs)]
    for warning in progress.warnings:
        rows += [Line(" ").join(line) for line in wrap("! " + warning, width - 2, "warn", "  ")]
    for row in progress.rows:
        for note in row.notes:
            rows += [Line(" ").join(line) for line in wrap(f"{row.preset}: {note}", width - 2, "dim", "  ")]
    return rows


def _wide(progress: CompareProgress, width: int, top: float, glyphs: Glyphs) -> list[Line]:
    cells = [
        (
            "configuration",
            "tok/s",
            "ratio",
            "95 %",
            "predicted",
            "TTFT p50",
            "TPOT p50",
            "DRAM",
            "cache",
            "acc.",
            "fail",
        )
    ]
    for row in progress.rows:
        ratio, interval = ratio_text(row)
        predicted = units.DASH if row.predicted_ratio is None else f"{row.predicted_ratio:.2f}x"
        cells.append(
            (
                cut(row.preset, 20, glyphs.ellipsis), units.significant(row.output_tokens_per_s), ratio, interval,
                predicted, units.duration(row.ttft_p50_s), units.duration(row.tpot_p50_s),
                units.percent_of_100(row.bandwidth_percent), units.percent(row.prefix_hit_rate),
                units.percent(row.acceptance), str(row.failed),
            )
        )  # fmt: skip
    lines = table(cells, "<" + ">" * 10)
    across = max(len(text) for text in lines)
    room = width - across - BAR_CELLS - 5
    beside = room >= VERDICT_CELLS
    rows = [Line(" " + f"{lines[0]:<{across}}", "dim").add(" " * (BAR_CELLS + 3) + "verdict" if beside else "", "dim")]
    for row, text in zip(progress.rows, lines[1:], strict=True):
        line = Line(" ").add(f"{text:<{across}}", "strong").add(" ")
        line.join(bar((row.ratio or 0.0) / top if row.ratio else None, BAR_CELLS, glyphs, "bar"))
        indent = line.width + 2 if beside else 3
        verdict = wrap(verdict_text(row), width - indent - 1, verdict_role(verdict_text(row)))
        if beside:
            rows.append(line.add("  ").join(verdict.pop(0)))
        else:
            rows.append(line)
        rows += [Line(" " * indent).join(more) for more in verdict]
    return rows


def _second_half(progress: CompareProgress, width: int, glyphs: Glyphs) -> list[Line]:
    """Tails, whole answers, energy and memory; in narrow terminals without the counts on the right."""
    # Without the prediction, which stands above.
    cells = [(row[0], *row[2:]) for row in (SECOND_HALF, *map(second_half, progress.rows))]
    for columns in range(len(cells[0]), 1, -1):
        shown = [(cut(row[0], 20, glyphs.ellipsis), *row[1:columns]) for row in cells]
        lines = table(shown, "<" + ">" * (columns - 1))
        if max(map(cell_len, lines)) <= width - 2:
            break
    return [Line(" " + lines[0], "dim"), *(Line(" " + text) for text in lines[1:])]


def _narrow(progress: CompareProgress, width: int, top: float, glyphs: Glyphs) -> list[Line]:
    rows: list[Line] = []
    columns: list[tuple[str, ...]] = []
    for row in progress.rows:
        ratio, interval = ratio_text(row)
        predicted = "" if row.predicted_ratio is None else f"predicted {row.predicted_ratio:.2f}x"
        columns.append(
            (
                cut(row.preset, 18, glyphs.ellipsis),
                units.rate(row.output_tokens_per_s, "tok/s"),
                ratio,
                f"95 % {interval}",
                predicted,
            )
        )
    widths = [max(cell_len(cells[i]) for cells in columns) for i in range(5)]
    for row, cells in zip(progress.rows, columns, strict=True):
        name, output, ratio, interval, predicted = (
            cell + " " * (size - cell_len(cell)) for cell, size in zip(cells, widths, strict=True)
        )
        head = [
            field(name, "strong"),
            field(output, "strong"),
            field(ratio, "strong"),
            Field(bar((row.ratio or 0.0) / top if row.ratio else None, 9, glyphs, "bar"), 2),
            field(interval, "dim", 4),
            field(predicted.rstrip(), "dim", 3),
        ]
        rows.append(Line(" ").join(pack(head, width - 2)))
        more = [
            field(f"TTFT p50 {units.duration(row.ttft_p50_s)}", "dim", 8),
            field(f"TPOT p50 {units.duration(row.tpot_p50_s)}", "dim", 7),
            field(f"DRAM {units.percent_of_100(row.bandwidth_percent)}", "dim", 4),
            field(f"cache {units.percent(row.prefix_hit_rate)}", "dim", 3),
            field(f"accepted {units.percent(row.acceptance)}", "dim", 2),
            field(f"{row.failed} failed", "bad" if row.failed else "dim", 6),
        ]
        rows.append(Line("   ").join(pack(more, width - 4)))
        rows += [Line("   ").join(line) for line in wrap(verdict_text(row), width - 4, verdict_role(verdict_text(row)))]
    return rows
