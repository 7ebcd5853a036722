"""Starts and stops through the command line: what is left, what is adopted, where a key may stand."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cli.vtop_process import Outcome, Vtop, until
from sim.simprocess import free_port
from ui.pseudo_terminal import Terminal

QUICK = ("--set", "port=auto", "--set", "args.startup-s=0.2")
KEY = "sk-do-not-show-4711"


def _every_argv() -> str:
    words = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words += process.cmdline()
    return "\n".join(words)


def _recorded(vtop: Vtop, file: Path, during: Callable[[], object]) -> bytes:
    """All that the dashboard wrote to its terminal while it recorded something."""
    terminal = Terminal([sys.executable, "-m", "vtop", "--record", str(file)], (120, 40), vtop.environment())
    try:
        terminal.wait_for("READY", 60)
        during()
        assert until(lambda: terminal.read(0.1) >= 0 and file.stat().st_size > 2000)
        terminal.press("q")
        assert terminal.ended(30) == 0
        return bytes(terminal.output)
    finally:
        terminal.close()


def test_a_key_stands_in_the_environment_and_nowhere_else(vtop: Vtop) -> None:
    """Not in `ps`, the screen, what is printed, the log, the state, the runs, the cache, nor in a recording."""
    vtop.env["MY_KEY"] = KEY
    keyed = ("--set", "api_key=env:MY_KEY")
    shown = vtop("start", "baseline", "--sim", *QUICK, *keyed, "--dry-run")
    started = vtop("start", "baseline", "--sim", *QUICK, *keyed, "--wait")
    argv = _every_argv()
    done: list[Outcome] = []
    load = ("load", "demo", "-n", "4", "-c", "2", "--max-tokens", "8")
    recording = vtop.home / "screen.rec.gz"
    screen = _recorded(vtop, recording, lambda: done.append(vtop(*load)))
    status = vtop("status", "--json", "--window", "0.5")
    (server,) = [s for s in status.json()["servers"] if s["status"]["name"] == "baseline"]
    assert server["scrape"]["state"] == "ok"
    stopped = vtop("stop", "baseline", "--yes")
    words = [text for outcome in (shown, started, *done, status, stopped) for text in (outcome.out, outcome.err)]
    assert not [text for text in (argv, screen.decode(errors="replace"), *words) if KEY in text]
    files = {**vtop.files(), recording: zlib.decompressobj(31).decompress(recording.read_bytes())}
    assert b'"baseline"' in files[recording]
    assert {"server.log", "state.json", "result.json"} <= {path.name for path in files}
    assert not [path for path, content in files.items() if KEY.encode() in content]
    assert "4 of 4 ok" in done[0].out


def test_a_start_whose_vtop_is_killed_is_adopted_by_the_next(vtop: Vtop) -> None:
    process = vtop.spawn("start", "baseline", "--sim", "--wait", "--set", "port=auto", "--set", "args.startup-s=1")
    assert until(lambda: any("vtop.sim" in p.cmdline() for p in vtop.processes() if p.is_running()))
    assert until(lambda: any(vtop.directory("STATE").rglob("*.json")))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    end = time.monotonic() + 40
    while "READY SIMULATED" not in (out := vtop("status", "--window", "0.2").out) and time.monotonic() < end:
        time.sleep(0.1)
    assert "baseline" in out
    assert "READY SIMULATED" in out
    assert "no process left" in vtop("stop", "baseline", "--yes").out


def test_ctrl_c_while_a_start_is_awaited_leaves_the_server_to_the_next_vtop(vtop: Vtop) -> None:
    process = vtop.spawn("start", "baseline", "--sim", "--wait", "--set", "port=auto", "--set", "args.startup-s=20")
    assert until(lambda: any(vtop.directory("STATE").rglob("*.json")))
    assert process.stderr is not None
    assert process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    assert "STARTING" in vtop("status", "--window", "0.2").out
    assert "stopped" in vtop("stop", "--all", "--yes").out


@pytest.mark.long
def test_a_start_that_takes_too_long_is_stopped(vtop: Vtop) -> None:
    slow = ("--set", "port=auto", "--set", "args.startup-s=60")
    said = vtop.fails(1, "start", "baseline", "--sim", *slow, "--wait", "--timeout", "1")
    assert "was not ready within 1 s and was stopped" in said


@pytest.mark.long
def test_a_server_that_another_one_started_is_watched_and_never_stopped(vtop: Vtop, tmp_path: Path) -> None:
    other = Vtop(tmp_path / "other")
    try:
        other("start", "baseline", "--sim", *QUICK, "--wait", "--name", "theirs")
        (url,) = [word for word in other("status", "--window", "0.2").out.split() if word.startswith("http://")][:1]
        status = vtop("status", "--json", "--window", "0.2", "--url", url).json()
        (name,) = [s["status"]["name"] for s in status["servers"] if s["status"]["url"] == url]
        assert name in vtop.fails(2, "stop", name, "--yes")
        assert "READY" in other("status", "--window", "0.2").out
        other("stop", "--all", "--yes")
        assert other.nothing_runs()
    finally:
        other.end_everything()


@pytest.mark.parametrize(("fault", "reason"), [("cut-streams", "cut"), ("stream-errors", "error"), ("refuse", "503")])
def test_answers_that_fail_are_counted_and_exit_1(vtop: Vtop, fault: str, reason: str, tmp_path: Path) -> None:
    port = free_port()
    words = ["--served-model-name", "m", "--startup-s", "0.1", "--speed", "20", "--fault", fault, "--port", str(port)]
    with (tmp_path / "sim.log").open("wb") as log:
        sim = subprocess.Popen([sys.executable, "-m", "vtop.sim", *words], stdout=log, stderr=log)
    try:
        assert until(lambda: "startup complete" in (tmp_path / "sim.log").read_text(), 60)
        url = f"http://127.0.0.1:{port}"
        done = vtop("load", "demo", "--url", url, "-n", "8", "-c", "2", "--max-tokens", "12", "--warmup", "0", code=1)
        assert "6 of 8 ok" in done.out
        assert reason in done.out.lower()
    finally:
        sim.kill()
        sim.wait()
