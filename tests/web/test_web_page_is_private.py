"""`vtop web` answers this machine's own page, and no other page that a browser on this machine has open."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("textual_serve", reason="the extra `web` is not installed")

from vtop.commands.web import command_for
from web.web_process import WebProcess, environment, vtop

SOCKET = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """One server for all; no page is opened, so no dashboard runs."""
    with WebProcess(tmp_path_factory.mktemp("web") / "web.log") as process:
        yield process


def test_listens_on_loopback_alone_and_says_what_it_opens(web: WebProcess) -> None:
    assert set(web.listening()) == {"127.0.0.1"}
    assert "START AND STOP servers" in web.said()
    assert "no password" in web.said()


def test_its_own_page_is_served_and_may_load_nothing_from_elsewhere(web: WebProcess) -> None:
    for host in ("127.0.0.1", "localhost"):
        answer = httpx.get(web.url, headers={"Host": f"{host}:{web.port}"})
        assert answer.status_code == 200
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "https:" not in policy


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null", None])
def test_another_page_cannot_open_the_socket(web: WebProcess, origin: str | None) -> None:
    """Otherwise any web page that is open in the browser could press keys in vtop, and stop servers."""
    headers = SOCKET | ({} if origin is None else {"Origin": origin})
    assert httpx.get(f"{web.url}/ws", headers=headers).status_code == 403
    assert web.tabs() == []


def test_a_name_that_resolves_to_loopback_is_refused(web: WebProcess) -> None:
    """As after DNS rebinding: the page then has the origin of that name, and so has the socket."""
    host = f"evil.example:{web.port}"
    assert httpx.get(web.url, headers={"Host": host}).status_code == 403
    headers = SOCKET | {"Host": host, "Origin": f"http://{host}"}
    assert httpx.get(f"{web.url}/ws", headers=headers).status_code == 403
    assert web.tabs() == []


def test_a_taken_port_is_said(web: WebProcess) -> None:
    done = subprocess.run(
        vtop("web", "--port", str(web.port)), env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "taken" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_no_port_is_said(port: str) -> None:
    done = subprocess.run(vtop("web", "--port", port), env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "is no port" in done.stderr


def test_readonly_reaches_each_tab() -> None:
    for demo in (False, True):
        words = command_for(argparse.Namespace(readonly=True, demo=demo)).split()
        assert words[-1] == "--readonly"
        assert ("demo" in words) is demo


def test_the_dashboard_still_wants_a_terminal_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(vtop(), env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
