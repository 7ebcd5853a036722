"""The report of a comparison: its table, why it came out so, every run, how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator

from vtop import units
from vtop.results.blocks import Bars, Block, Bullets, Command, Heading, Table, Text
from vtop.results.comparability import server_changes
from vtop.results.comparison import CompareRow, ComparisonRecord
from vtop.results.definitions import COMPARE_DEFINITIONS, LOAD_DEFINITIONS, REFERENCE_LOAD, reference_rows
from vtop.results.report_parts import SIMULATED, definitions, milliseconds, when


def comparison_blocks(record: ComparisonRecord) -> Iterator[Block]:
    """The blocks of a comparison, finished or not."""
    request, rows = record.request, record.rows
    mark = " (SIMULATED)" if record.simulated else ""
    yield Heading(f"Comparison: {' · '.join(request.presets)}{mark}", 1)
    if record.simulated:
        yield SIMULATED
    if record.state != "finished":
        done = sum(step.state == "done" for step in record.steps)
        yield Text(
            f"Not finished: {record.state}, {done} of {len(record.steps)} runs. {record.message}".strip(), loud=True
        )
    gpu = request.gpu or next((run.result.fingerprint.get("gpu") for run in record.measured), None)
    said = [f"workload {request.workload}", f"{request.repeats} runs of each, {request.order}", when(record.at_wall_s)]
    said += [f"GPU {gpu}"] if gpu else []
    versions = sorted({row.version for row in rows if row.version})
    said += [f"vLLM {' and '.join(versions)}"] if versions else []
    yield Text(" · ".join(said))
    yield Bullets(tuple(_sentence(row) for row in rows))
    yield _main_table(rows)
    yield from _comparison_charts(rows)
    yield Heading("Why")
    yield _why_table(rows)
    notes = tuple(f"{row.preset}: {note}" for row in rows for note in row.notes) + record.warnings
    if notes:
        yield Bullets(notes)
    if reference := reference_rows(rows):
        yield Heading("Beside the published table")
        yield Text(f"Published figures: {REFERENCE_LOAD}. They are a reference, not a target.")
        yield Table(("configuration", "published", "here", "why they differ"), reference, wide=(3,))
    yield from _runs_of(record)
    yield Heading("How to repeat")
    yield Command(record.repeat_command)
    yield Text(f"Prompts: seed {record.seed} + round. A repeat takes fresh ones, unless --seed {record.seed} is given.")
    yield from definitions((*COMPARE_DEFINITIONS, *LOAD_DEFINITIONS))


def _sentence(row: CompareRow) -> str:
    speed = units.rate(row.output_tokens_per_s, "tok/s")
    if row.verdict == "first row":
        return f"{row.preset}: {speed}, the first row"
    said = f"{row.preset}: {speed}, {_times(row.ratio)} ({_interval(row.ratio_low, row.ratio_high)}): {row.verdict}"
    if row.beside:
        said += f"; against {row.beside} {_times(row.beside_ratio)}: {row.beside_verdict}"
    return said


def _times(ratio: float | None) -> str:
    return units.DASH if ratio is None else f"{units.significant(ratio)}x"


def _interval(low: float | None, high: float | None) -> str:
    return units.DASH if low is None or high is None else f"{units.significant(low)} to {units.significant(high)}x"


def _main_table(rows: tuple[CompareRow, ...]) -> Table:
    headers = ("configuration", "output tok/s", "x", "95 % interval", "verdict", "TTFT p50", "TTFT p95", "TPOT p50",
               "TPOT p95", "E2E mean", "E2E P95", "failed", "runs")  # fmt: skip
    return Table(
        headers,
        tuple(
            (
                row.preset,
                units.significant(row.output_tokens_per_s),
                _times(row.ratio),
                _interval(row.ratio_low, row.ratio_high),
                row.verdict + (f"; against {row.beside}: {row.beside_verdict}" if row.beside else ""),
                *map(units.duration, (row.ttft_p50_s, row.ttft_p95_s, row.tpot_p50_s, row.tpot_p95_s, row.e2e_mean_s,
                                      row.e2e_p95_s)),
                units.count(row.failed),
                units.count(row.runs),
            )
            for row in rows
        ),
        wide=(4,),
    )  # fmt: skip


def _why_table(rows: tuple[CompareRow, ...]) -> Table:
    headers = ("configuration", "predicted", "measured", "DRAM %", "J/token", "prefix hits", "accepted", "KV capacity",
               "weights", "vLLM", "TTFT", "TPOT")  # fmt: skip
    return Table(
        headers,
        tuple(
            (
                row.preset,
                _times(row.predicted_ratio),
                _times(row.ratio),
                units.DASH
                if row.bandwidth_percent is None
                else f"{units.percent_of_100(row.bandwidth_percent)} ({row.bandwidth_source})",
                units.significant(row.joules_per_token),
                units.percent(row.prefix_hit_rate),
                units.percent(row.acceptance),
                units.DASH if row.kv_capacity_tokens is None else f"{units.count(row.kv_capacity_tokens)} tokens",
                units.gib(row.weights_bytes),
                row.version or units.DASH,
                row.ttft_verdict,
                row.tpot_verdict,
            )
            for row in rows
        ),
        wide=(10, 11),
    )


def _comparison_charts(rows: tuple[CompareRow, ...]) -> Iterator[Block]:
    names = tuple(row.preset for row in rows)
    yield Bars("Output", "tok/s", names, tuple(row.output_tokens_per_s for row in rows))
    intervals = tuple(
        None if row.ratio_low is None or row.ratio_high is None else (row.ratio_low, row.ratio_high) for row in rows
    )
    yield Bars("Output against the first row, 95 % interval", "x", names, tuple(row.ratio for row in rows), intervals)
    yield Bars("TTFT p50", "ms", names, tuple(milliseconds(row.ttft_p50_s) for row in rows))
    yield Bars("TPOT p50", "ms", names, tuple(milliseconds(row.tpot_p50_s) for row in rows))


def _runs_of(record: ComparisonRecord) -> Iterator[Block]:
    if not record.measured:
        return
    yield Heading("Every run, in the order it was made")
    yield Table(
        ("configuration", "round", "output tok/s", "TTFT p50", "TPOT p50", "E2E mean", "failed", "prefix hits", "run"),
        tuple(
            (
                run.preset + (" (drift check)" if run.drift_check else ""),
                str(run.round),
                units.significant(run.result.output_tokens_per_s, 4),
                units.duration(run.result.ttft.p50),
                units.duration(run.result.tpot.p50),
                units.duration(run.result.e2e.mean),
                str(run.result.failed),
                units.percent(run.result.server.get("prefix_hit_rate")),
                run.result.run_id,
            )
            for run in record.measured
        ),
        wide=(8,),
    )
    if len({row.version for row in record.rows if row.version}) > 1:
        yield from _server_changes(record)


def _server_changes(record: ComparisonRecord) -> Iterator[Block]:
    """Across versions, the servers' own numbers, paired by what they mean."""
    first = next((run.result for run in record.measured if run.preset == record.rows[0].preset), None)
    for row in record.rows[1:]:
        other = next((run.result for run in record.measured if run.preset == row.preset), None)
        if first is None or other is None:
            continue
        changes = server_changes(first.server, other.server)
        if changes:
            yield Text(
                f"The servers' own numbers, paired by meaning across vLLM {record.rows[0].version} and {row.version}:"
            )
            cells = tuple(
                (
                    name,
                    units.significant(first.server[name]),
                    units.significant(other.server[name]),
                    f"{change * 100:+.1f} %",
                )
                for name, change in sorted(changes.items())
            )
            yield Table(("number", record.rows[0].preset, row.preset, "change"), cells)
