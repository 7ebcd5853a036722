"""The dashboard in a real browser: what the page shows, what keys do there, what `--readonly` leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("textual_serve", reason="the extra `web` is not installed")

from web.headless_chromium import Browser, find_chromium
from web.web_process import WebProcess, run_vtop

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(240),
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine (apt-get install chromium)"),
]


@pytest.fixture
def server(private_directories: Path) -> Iterator[str]:
    """A simulated server that is ready; its name."""
    run_vtop("start", "baseline", "--sim", "--wait", "--set", "port=auto")
    yield "baseline"
    run_vtop("stop", "--all", "--yes")


async def test_the_page_shows_the_dashboard_and_a_key_acts(server: str, tmp_path: Path) -> None:
    """`?` opens help; the page asks nothing of the internet; the tab's vtop ends with the tab."""
    with WebProcess(tmp_path / "web.log") as web:
        async with Browser(tmp_path / "profile") as browser:
            await browser.open(web.url)
            await browser.wait_for(server)
            await browser.wait_for("SIMULATED")
            assert "READ ONLY" not in await browser.wait_for("READY")
            assert len(await browser.picture()) > 20_000
            await browser.press("?")
            await browser.wait_for("▸ Help")
            assert f"{web.url}/" in browser.sent()
            assert [address for address in browser.sent() if not address.startswith((web.url, "data:"))] == []
            assert web.tabs()
        end = time.monotonic() + 30
        while web.tabs():
            assert time.monotonic() < end, web.tabs()
            await asyncio.sleep(0.2)


async def test_readonly_refuses_in_the_browser_too(server: str, tmp_path: Path) -> None:
    with WebProcess(tmp_path / "web.log", "--readonly") as web:
        async with Browser(tmp_path / "profile") as browser:
            await browser.open(web.url)
            await browser.wait_for("READ ONLY")
            await browser.wait_for("READY")
            await browser.press("x")
            await browser.wait_for("not possible with --readonly")
            await browser.press("s")
            await asyncio.sleep(1.0)
            assert "READ ONLY" in await browser.shown()
    assert "ready" in run_vtop("status").lower()


async def test_the_demonstration_plays_in_the_browser(tmp_path: Path) -> None:
    with WebProcess(tmp_path / "web.log", "--demo") as web:
        try:
            async with Browser(tmp_path / "profile") as browser:
                await browser.open(web.url)
                await browser.wait_for("DEMO")
                await browser.wait_for("SIMULATED")
        finally:
            run_vtop("stop", "--all", "--yes")
