"""The report of a comparison: its table, why it came out so, every run, how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator

from vtop import units
from vtop.load.progress import LoadRequest
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
    yield Text(" · ".join(_about(record)))
    yield Bullets(tuple(_sentence(row) for row in rows))
    yield _main_table(rows)
    yield from _comparison_charts(rows)
    yield Heading("Latencies against the first row")
    yield _latency_table(rows)
    if any(row.beside for row in rows):
        yield Heading("Each change against what it changes")
        yield _beside_table(rows)
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
    yield from _environment(record)
    yield Text(f"Prompts: seed {record.seed} + round. A repeat takes fresh ones, unless --seed {record.seed} is given.")
    yield from definitions((*COMPARE_DEFINITIONS, *LOAD_DEFINITIONS))


def _about(record: ComparisonRecord) -> list[str]:
    """What was compared, on what, in one line."""
    request = record.request
    models = sorted({facts.model for facts in record.facts.values() if facts.model})
    said = [f"model {' and '.join(models)}"] if models else []
    load = next((run.result for run in record.measured), None)
    shape = f"workload {request.workload}"
    if load is not None:
        length = f", {load.output_tokens / load.completed:.0f} tokens each" if load.completed else ""
        shape += f" ({load.requests} requests, {_how_sent(load.request)}{length})"
    said += [shape, f"{request.repeats} runs of each, {request.order}", when(record.at_wall_s)]
    if gpus := _gpus(record):
        said.append(f"GPU {gpus}")
    versions = sorted({row.version for row in record.rows if row.version})
    if versions and record.simulated:
        plain = sorted({version.removesuffix(" simulated") for version in versions})
        said.append(f"simulated server with the flags and metrics of vLLM {' and '.join(plain)}")
    elif versions:
        said.append(f"vLLM {' and '.join(versions)}")
    return said


def _how_sent(load: LoadRequest) -> str:
    """What decides when a request leaves."""
    cap = "" if load.concurrency is None else f"{units.count(load.concurrency)} at once"
    if load.rate is not None:
        how = f"{units.significant(load.rate)} a second"
    elif load.arrival == "burst":
        how = "all at the start"
    elif not cap:
        how = "at the times of the file"
    else:
        return cap
    return f"{how}, at most {cap}" if cap else how


def _gpus(record: ComparisonRecord) -> str:
    """`4 x H100` and the like: the most cards that a configuration used."""
    found: list[str] = []
    for run in record.measured:
        names = run.result.fingerprint.get("gpu")
        names = [names] if isinstance(names, str) else list(names or ())
        count = len(run.result.fingerprint.get("gpu_uuid") or names)
        if names:
            kinds = " and ".join(dict.fromkeys(map(str, names)))
            found.append(f"{count} x {kinds}" if count > 1 and len(set(names)) == 1 else kinds)
    return " or ".join(dict.fromkeys(found)) or (record.request.gpu or "")


def _environment(record: ComparisonRecord) -> Iterator[Block]:
    """The servers' command lines and what they ran on."""
    drivers = sorted({str(run.result.fingerprint["driver"]) for run in record.measured
                      if run.result.fingerprint.get("driver")})  # fmt: skip
    if drivers:
        yield Text(f"GPU driver {' and '.join(drivers)}.")
    for preset, facts in record.facts.items():
        if facts.command:
            yield Text(f"The server of {preset}, as it was started:")
            yield Command("\n\n".join(facts.command))


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
                row.verdict,
                *map(units.duration, (row.ttft_p50_s, row.ttft_p95_s, row.tpot_p50_s, row.tpot_p95_s, row.e2e_mean_s,
                                      row.e2e_p95_s)),
                units.count(row.failed),
                units.count(row.runs),
            )
            for row in rows
        ),
        wide=(4,),
    )  # fmt: skip


def _latency_table(rows: tuple[CompareRow, ...]) -> Table:
    return Table(
        ("configuration", "TTFT p50", "x", "95 % interval", "verdict", "TPOT p50", "x", "95 % interval", "verdict"),
        tuple(
            (
                row.preset,
                units.duration(row.ttft_p50_s),
                _times(row.ttft_ratio),
                _interval(row.ttft_ratio_low, row.ttft_ratio_high),
                row.ttft_verdict,
                units.duration(row.tpot_p50_s),
                _times(row.tpot_ratio),
                _interval(row.tpot_ratio_low, row.tpot_ratio_high),
                row.tpot_verdict,
            )
            for row in rows
        ),
        wide=(4, 8),
    )


def _beside_table(rows: tuple[CompareRow, ...]) -> Table:
    return Table(
        ("configuration", "against", "output x", "95 % interval", "predicted", "verdict", "TTFT p50 x", "TTFT",
         "TPOT p50 x", "TPOT"),
        tuple(
            (
                row.preset,
                row.beside,
                _times(row.beside_ratio),
                _interval(row.beside_low, row.beside_high),
                _times(row.beside_predicted_ratio),
                row.beside_verdict,
                _times(row.beside_ttft_ratio),
                row.beside_ttft_verdict,
                _times(row.beside_tpot_ratio),
                row.beside_tpot_verdict,
            )
            for row in rows
            if row.beside
        ),
        wide=(1, 5, 7, 9),
    )  # fmt: skip


def _why_table(rows: tuple[CompareRow, ...]) -> Table:
    headers = ("configuration", "predicted x", "measured x", "DRAM %", "J/token", "prefix hits", "steps with a guess",
               "guesses accepted", "KV capacity", "weights", "GPUs",
               "vLLM")  # fmt: skip
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
                units.percent(row.guessed_share),
                units.percent(row.acceptance),
                units.DASH if row.kv_capacity_tokens is None else f"{units.count(row.kv_capacity_tokens)} tokens",
                units.gib(row.weights_bytes),
                units.count(row.gpus),
                row.version or units.DASH,
            )
            for row in rows
        ),
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
