"""What `vtop status` prints, from pictures that a screen could show as well."""

from __future__ import annotations

from dataclasses import replace

from rich.cells import cell_len

from vtop.commands.status import describe
from vtop.servers.status import ServerState, ServerStatus
from vtop.telemetry.history import HistoryStore
from vtop.telemetry.snapshot import GpuReading, GpuStatus, HostReading, ServerView, Snapshot, Verdict
from vtop.vllm.reading import EngineReading, ScrapeStatus


def picture(*engines: EngineReading, scrape: ScrapeStatus | None = None) -> Snapshot:
    """One foreign server with these models."""
    status = ServerStatus("s", "http://127.0.0.1:8000", ServerState.FOREIGN)
    view = ServerView(
        status, scrape or ScrapeStatus("ok"), engines, verdict=Verdict("unknown", "Cannot tell: no GPU is read here.")
    )
    return Snapshot(1, 1.0, 1.0, 2.0, HostReading("box"), GpuStatus(False, "no driver"), (), (view,), HistoryStore())


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("s ")]


def test_each_model_has_a_row_of_its_own() -> None:
    coder = EngineReading("coder", 2.0, running=4.0, kv_usage=0.9)
    embed = EngineReading("embed", 2.0, running=1.0, kv_usage=0.1)
    first, second = rows(describe(picture(coder, embed)))
    assert "coder" in first and "90 %" in first
    assert "embed" in second and "10 %" in second


def test_another_servers_figures_carry_its_name_and_the_reason_stands_once() -> None:
    engine = EngineReading("m", 2.0, server_kind="sglang", running=3.0)
    text = describe(picture(engine, scrape=ScrapeStatus("other-server", "an SGLang server answers here, not vLLM")))
    assert "m (sglang)" in rows(text)[0]
    assert text.count("SGLang") == 1
    assert "Cannot tell" not in text, "the page's own message says it already"


def test_a_model_without_a_name_is_a_dash_and_a_name_cannot_move_the_cursor() -> None:
    assert "– (tgi)" in describe(picture(EngineReading("", 2.0, server_kind="tgi")))
    text = describe(picture(EngineReading("line1\nline2\x1b[2J", 2.0)))
    assert r"line1\nline2\x1b[2J" in text
    assert "\x1b" not in text


def test_columns_stand_under_their_headings_beside_wide_characters() -> None:
    """`千问` takes four cells of a terminal, not two."""
    text = describe(picture(EngineReading("千问", 2.0), EngineReading("coder", 2.0)))
    wide, narrow = rows(text)
    assert cell_len(wide[: wide.index("http")]) == narrow.index("http")


def test_a_gpu_of_another_machine_says_where_it_is_and_a_lost_one_that_it_is_lost() -> None:
    there = GpuReading("GPU-a", 0, "NVIDIA A100", host="gpu-7")
    gone = GpuReading("GPU-b", 1, "NVIDIA H100", lost=True, missing={"lost": "it fell off the bus"})
    text = describe(replace(picture(), gpus=(there, gone)))
    assert "NVIDIA A100 in gpu-7" in text
    assert "NVIDIA H100 LOST" in text
    assert "GPU 1 is lost: it fell off the bus" in text


def test_the_password_in_an_address_is_not_printed() -> None:
    shown = picture(EngineReading("m", 2.0))
    (view,) = shown.servers
    for engines in (view.engines, ()):
        secret = replace(view, engines=engines, status=replace(view.status, url="http://me:pw@p@127.0.0.1:8000/v1"))
        text = describe(replace(shown, servers=(secret,)))
        assert "http://127.0.0.1:8000/v1" in text
        assert "pw" not in text and "p@" not in text
