"""Pages of tests/telemetry/data, and the path from their text to readings."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

from vtop.telemetry.prometheus import Page, PageParser
from vtop.telemetry.window import ScrapeWindow
from vtop.vllm.metric_names import PROCESS_START, VLLM_NAMES
from vtop.vllm.metrics import MetricsReader
from vtop.vllm.reading import EngineReading

DATA = Path(__file__).parent / "data"
NAMES = VLLM_NAMES | {PROCESS_START}


def case(name: str) -> bytes:
    """A page of data/cases."""
    return (DATA / "cases" / name).read_bytes()


def version_page(version: str) -> bytes:
    """The page of a vLLM version."""
    return gzip.decompress((DATA / "pages" / f"vllm-{version}.prom.gz").read_bytes())


def versions() -> list[str]:
    """Every version that has a page."""
    return sorted(path.name[5:-8] for path in (DATA / "pages").glob("*.gz"))


def parse(body: bytes) -> Page:
    """A page by a fresh parser."""
    return PageParser(NAMES).parse(body)


class Watcher:
    """One server's pages, one after the other, as the poller takes them."""

    def __init__(self, window_s: float = 10.0) -> None:
        self.parser = PageParser(NAMES)
        self.window = ScrapeWindow(window_s)
        self.reader = MetricsReader()

    def see(self, at_s: float, body: bytes) -> tuple[EngineReading, ...]:
        page = self.parser.parse(body)
        self.window.add(at_s, page.layout, page.values)
        differences = self.window.differences()
        assert differences is not None
        return self.reader.read(differences, at_s)


def over_window(bodies: Sequence[bytes], span_s: float = 10.0) -> tuple[EngineReading, ...]:
    """The readings after the last of the pages, which came span_s apart."""
    watcher = Watcher(span_s)
    readings: tuple[EngineReading, ...] = ()
    for number, body in enumerate(bodies):
        readings = watcher.see(100.0 + number * span_s, body)
    return readings


def only(readings: Sequence[EngineReading]) -> EngineReading:
    """The one reading of a page with one model."""
    assert len(readings) == 1, [reading.model_name for reading in readings]
    return readings[0]
