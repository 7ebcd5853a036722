"""Explain: the verdict with its arithmetic, every reading of the server, and why the missing ones are missing."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult

from vtop import units
from vtop.secrets import without_user
from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import GpuReading, ServerView, Snapshot
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line, printable, wrap
from vtop.ui.listing import Pager
from vtop.ui.page import Page
from vtop.ui.words import (
    SOURCE_HELP,
    bandwidth_amount,
    bucket_range,
    gpus_of,
    latency_age,
    server_is_stale,
    stale_text,
    state_word,
)
from vtop.vllm.reading import EngineReading, Latency

LABEL_CELLS = 24


def explain_rows(snapshot: Snapshot, server: ServerView | None, width: int, glyphs: Glyphs) -> list[Line]:
    """Everything about one server."""
    if server is None:
        return [Line(" There is no server to explain: s starts one.", "dim")]
    rows: list[Line] = []
    verdict = server.verdict
    if verdict is not None:
        head = wrap(verdict.headline, width - 4, "strong")
        rows += [Line(f" {glyphs.verdict} " if i == 0 else "   ", "verdict").join(line) for i, line in enumerate(head)]
        if verdict.suggestion:
            rows += [Line("   ").join(line) for line in wrap(verdict.suggestion, width - 4)]
        if verdict.terms:
            rows += [Line(), Line(" The arithmetic", "title")]
            for name, text in verdict.terms:
                rows += _pair(name, text, width)
    else:
        rows.append(Line(" No verdict yet: nothing was decoded in the window.", "dim"))
    rows += _server(server, width)
    engine = server.engine
    if engine is not None:
        stale = stale_text(server) if server_is_stale(server) else ""
        whose = "Its own" if engine.server_kind == "vllm" else f"{engine.server_kind}'s own"
        title = Line(f" {whose} numbers, over {engine.window_s:.0f} s", "title")
        rows += [Line(), title.add(f"  {stale}" if stale else "", "warn")]
        rows += _engine(engine, width)
        for other in server.engines[1:]:
            rows += [Line(), Line(f" Another model here: {printable(other.model_name)}", "title")]
            rows += _engine(other, width)
    for gpu in gpus_of(snapshot, server):
        rows += _gpu(gpu, width)
    if not snapshot.gpus:
        rows += [Line(), Line(" GPU", "title")]
        rows += [Line("   ").join(line) for line in wrap(snapshot.gpu_status.message or "no readings", width - 4)]
    elif server.status.gpu_uuids is None:
        reason = server.status.gpu_reason or "which GPUs this server uses is not known"
        rows += [Line("   ").join(line) for line in wrap(reason, width - 4, "dim")]
    if engine is not None and engine.notes:
        rows += [Line(), Line(" What a number means on this server", "title")]
        rows += _pairs(engine.notes, width)
    missing = dict(engine.missing) if engine else {}
    if missing:
        rows += [Line(), Line(" What this server does not say, and why", "title")]
        rows += _pairs(missing, width)
    return rows


def _pair(name: str, text: str, width: int, role: str = "") -> list[Line]:
    lines = wrap(text, max(12, width - LABEL_CELLS - 5), role)
    first = Line(f"   {name:<{LABEL_CELLS}} ", "dim").join(lines[0])
    return [first, *(Line(" " * (LABEL_CELLS + 4)).join(line) for line in lines[1:])]


def _pairs(values: Mapping[str, str], width: int) -> list[Line]:
    return [line for name, text in values.items() for line in _pair(name.replace("_", " "), text, width)]


def _version(server: ServerView) -> str:
    """Under the name of what really answers; a foreign server that said nothing yet goes without one."""
    status = server.status
    unknown = "" if status.state is ServerState.FOREIGN else "vllm"
    kind = server.engine.server_kind if server.engine is not None else unknown
    name = "vLLM" if kind == "vllm" else kind
    return f"{name} {status.version}".strip() + (", simulated" if status.simulated else "")


def _server(server: ServerView, width: int) -> list[Line]:
    status = server.status
    rows = [Line(), Line(f" {status.name}", "title")]
    state = state_word(status) + (f": {status.message}" if status.message else "")
    rows += _pair("state", state, width)
    if status.diagnosis is not None:
        rows += _pair("cause", status.diagnosis.headline, width, "bad")
        if status.diagnosis.detail:
            rows += _pair("", status.diagnosis.detail, width, "dim")
        for remedy in status.diagnosis.remedies:
            rows += _pair("remedy", remedy.text, width)
    model = status.model or (server.engine.model_name if server.engine else units.DASH)
    rows += _pair("address, model", f"{without_user(status.url)}  {model}", width)
    if status.version:
        rows += _pair("version", _version(server), width)
    limits = [
        f"{name} {value:,}"
        for name, value in (
            ("max_num_seqs", status.max_num_seqs),
            ("max_num_batched_tokens", status.max_num_batched_tokens),
            ("max_model_len", status.max_model_len),
        )
        if value
    ]
    if limits:
        rows += _pair("limits", " · ".join(limits), width)
    if server.tree is not None:
        tree = server.tree
        rows += _pair(
            "processes",
            f"{tree.processes}, CPU {units.percent_of_100(tree.cpu_percent)}, memory {units.gib(tree.rss_bytes)}",
            width,
        )
    if server.joules_per_token is not None:
        rows += _pair("energy", f"{units.significant(server.joules_per_token)} J a generated token", width)
    scrape = server.scrape
    if scrape.state == "ok":
        rows += _pair(
            "metrics page",
            "read" + (f" in {units.duration(scrape.duration_s)}" if scrape.duration_s is not None else ""),
            width,
        )
    else:
        rows += _pair("metrics page", scrape.message or scrape.state, width, "warn")
    if status.progress is not None and status.progress.done:
        took = " · ".join(f"{phase} {units.elapsed(seconds)}" for phase, seconds in status.progress.done)
        rows += _pair("start-up phases", took, width)
    return rows


def _latency(name: str, latency: Latency | None, width: int, counted: str = "requests") -> list[Line]:
    if latency is None or (latency.mean_s is None and latency.count == 0):
        return _pair(name, units.DASH, width, "dim")
    age = latency_age(latency)
    text = f"mean {units.duration(latency.mean_s)} of {latency.count:,} {counted}"
    for label, quantile in (("p50", latency.p50), ("p95", latency.p95), ("p99", latency.p99)):
        if quantile is not None:
            text += f" · {label} {bucket_range(quantile)}"
    return _pair(name, text + (f" · {age}" if age else ""), width, "dim" if age else "")


def _engine(engine: EngineReading, width: int) -> list[Line]:
    rows: list[Line] = []
    for name, latency in (
        ("TTFT", engine.ttft),
        ("TPOT, a request", engine.tpot),
        ("ITL, a step", engine.itl),
        ("E2E", engine.e2e),
        ("waiting in the queue", engine.queue),
        ("prefill", engine.prefill),
        ("decode", engine.decode),
    ):
        # One observation of ITL is one step of a request, not a request.
        rows += _latency(name, latency, width, "steps" if latency is engine.itl else "requests")
    rows += _pair(
        "tokens",
        f"{units.rate(engine.generation_tokens_per_s, 'tok/s')} out · "
        f"{units.rate(engine.prompt_tokens_per_s, 'tok/s')} in · "
        f"{units.significant(engine.requests_per_s)} requests/s",
        width,
    )
    waiting = " · ".join(f"{units.count(count)} {why}" for why, count in engine.waiting_by_reason.items())
    rows += _pair(
        "batch",
        f"{units.count(engine.running)} running · {units.count(engine.waiting)} waiting"
        + (f" ({waiting})" if waiting else "")
        + f" · {units.count(engine.preemptions)} preempted"
        + (f" · {units.count(engine.swapped)} swapped out" if engine.swapped else "")
        + (f" · {units.count(engine.rejected)} refused at admission" if engine.rejected is not None else ""),
        width,
    )
    if engine.tokens_per_step is not None:
        rows += _pair("tokens a step", units.count(engine.tokens_per_step), width)
    kv = f"{units.percent(engine.kv_usage)} of {units.count(engine.kv_capacity_tokens)} tokens"
    if engine.kv_usage_max is not None and engine.engines > 1:
        kv += f" · fullest engine {units.percent(engine.kv_usage_max)}"
    rows += _pair("KV cache", kv + (f" · {engine.kv_cache_dtype}" if engine.kv_cache_dtype else ""), width)
    rows += _pair(
        "prompt tokens from",
        f"{units.percent(engine.prompt_computed_share)} computed · {units.percent(engine.prompt_cached_share)} prefix "
        f"cache · {units.percent(engine.prompt_transferred_share)} transferred",
        width,
    )
    hits = units.percent(engine.prefix_hit_rate)
    if engine.prefix_hit_rate_since_start is not None:
        hits += f" · {units.percent(engine.prefix_hit_rate_since_start)} since the server started"
    if engine.external_hit_rate is not None:
        hits += f" · {units.percent(engine.external_hit_rate)} in the external cache"
    rows += _pair("prefix cache hits", hits, width)
    speculation = engine.speculation
    if speculation is not None:
        places = " ".join(units.percent(share) for share in speculation.per_position)
        rows += _pair(
            "speculation",
            f"{units.percent(speculation.acceptance)} accepted · {units.significant(speculation.mean_length)} tokens a "
            f"step" + (f" · by position {places}" if places else ""),
            width,
        )
        drafted, wasted = speculation.drafted_tokens_per_s, speculation.wasted_tokens_per_s
        if drafted is not None:
            rows += _pair("", f"{units.rate(drafted, 'tok/s')} drafted, {units.rate(wasted, 'tok/s')} in vain", width)
    rows += _extras(engine, width)
    if engine.finished_by_reason:
        ends = " · ".join(f"{units.count(count)} {why}" for why, count in engine.finished_by_reason.items())
        rows += _pair("finished by", ends, width)
    return rows


def _extras(engine: EngineReading, width: int) -> list[Line]:
    """What only some servers have."""
    rows: list[Line] = []
    moved = engine.kv_transfer
    if moved is not None:
        parts = [f"{units.rate(moved.tokens_per_s, 'tok/s')} of prompts"] if moved.tokens_per_s is not None else []
        parts += [units.bytes_per_s(moved.bytes_per_s)] if moved.bytes_per_s is not None else []
        parts += [f"{units.duration(moved.mean_transfer_s)} each"] if moved.mean_transfer_s is not None else []
        parts += [f"{units.count(moved.failed)} failed"] if moved.failed is not None else []
        rows += _pair("KV from elsewhere", " · ".join(parts) or units.DASH, width, "bad" if moved.failed else "")
    if engine.lora_max is not None:
        running = ", ".join(map(printable, engine.lora_running)) or "none"
        waiting = f" · waiting: {', '.join(map(printable, engine.lora_waiting))}" if engine.lora_waiting else ""
        rows += _pair("LoRA adapters", f"{running} running, of {engine.lora_max} at once{waiting}", width)
    if engine.sleep_state is not None:
        rows += _pair("sleep", engine.sleep_state.replace("_", " "), width)
    if engine.read_bytes_per_s is not None:
        flops = f" · {engine.flops_per_s / 1e12:.3g} TFLOP/s" if engine.flops_per_s is not None else ""
        rows += _pair(
            "vLLM's own estimate",
            f"reads {units.bytes_per_s(engine.read_bytes_per_s)}, writes {units.bytes_per_s(engine.write_bytes_per_s)}"
            f"{flops} a GPU",
            width,
        )
    return rows


def _gpu(gpu: GpuReading, width: int) -> list[Line]:
    rows = [
        Line(),
        Line(f" GPU {gpu.index}", "title").add(f"  {gpu.name}" + (f" in {gpu.host}" if gpu.host else ""), "dim"),
    ]
    bandwidth = gpu.bandwidth
    if bandwidth is None:
        rows += _pair("memory bandwidth", gpu.missing.get("bandwidth", "not reported by this card"), width, "dim")
    else:
        amount = bandwidth_amount(bandwidth)
        text = units.percent_of_100(bandwidth.percent) + (f", {amount}" if amount else "")
        rows += _pair("memory bandwidth", text, width)
        rows += _pair("where from", SOURCE_HELP.get(bandwidth.source, bandwidth.source), width)
        if bandwidth.peak_source:
            rows += _pair("peak from", bandwidth.peak_source, width)
    rows += _pair("memory busy, of time", units.percent_of_100(gpu.mem_busy_percent), width)
    rows += _pair(
        "compute",
        f"SM {units.percent_of_100(gpu.sm_percent)} · tensor {units.percent_of_100(gpu.tensor_percent)} · any kernel "
        f"{units.percent_of_100(gpu.gpu_util_percent)} of the time",
        width,
    )
    rows += _pair(
        "clocks",
        f"SM {units.megahertz(gpu.sm_clock_mhz)} · memory {units.megahertz(gpu.memory_clock_mhz)}"
        f" of {units.megahertz(gpu.memory_clock_max_mhz)}",
        width,
    )
    links = [
        f"{name} {units.bytes_per_s(value)}"
        for name, value in (
            ("PCIe in", gpu.pcie_rx_bytes_per_s),
            ("PCIe out", gpu.pcie_tx_bytes_per_s),
            ("NVLink in", gpu.nvlink_rx_bytes_per_s),
            ("NVLink out", gpu.nvlink_tx_bytes_per_s),
        )
        if value is not None
    ]
    if links:
        rows += _pair("links", " · ".join(links), width)
    if gpu.throttle:
        rows += _pair("slowed by", ", ".join(gpu.throttle), width, "warn")
    if gpu.ecc_uncorrected:
        rows += _pair("ECC errors", f"{gpu.ecc_uncorrected} uncorrected", width, "bad")
    for process in gpu.processes or ():
        memory = units.gib(process.memory_used_bytes)
        rows += _pair(f"pid {process.pid}", f"{process.name or 'of somebody else'}  {memory}", width)
    return rows + _pairs({key: why for key, why in gpu.missing.items() if key != "bandwidth"}, width)


class ExplainScreen(Page):
    """One text that follows the selected server."""

    NAME = "explain"
    HEADING = "Explain"
    AUTO_FOCUS = "#body"

    def compose_body(self) -> ComposeResult:
        """One text."""
        yield Pager(id="body")

    def paint_body(self, snapshot: Snapshot) -> None:
        """The newest numbers in it."""
        server = self.vtop.server_in(snapshot)
        glyphs = self.glyphs
        self.query_one("#body", Pager).fill(lambda width: explain_rows(snapshot, server, width, glyphs))

    def has_item(self) -> bool:
        """Nothing here is opened further."""
        return False

    def do_open(self) -> None:
        """This is what `enter` opens."""
