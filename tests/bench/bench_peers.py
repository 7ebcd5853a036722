"""What watching one server costs: vtop beside vllmstat, vllmpytop and nvitop, each on a terminal of 120x40, at 1 Hz.

The peers are installed by name into environments of their own below a temporary folder. All watch the same simulated
server through the same relay and the same stand-in for NVML's library; the relay then stops answering, and each
program is told to quit. CPU and memory are those of the whole process tree, by the system's account. A bare Textual
application stands beside them: what is below it no program with a Textual screen can reach.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from bench.as_installed import bare_textual, dashboard, environment_of
from telemetry_gpu.fake_nvml import H100, board, build_fake_nvml, compiler, environment, write_state

Row = tuple[str, str, str, str]
COLUMNS, LINES = 120, 40
STARTS = 3
"""First paint is the quickest of so many starts: other work on the machine only makes it later."""
SETTLE_S = 6.0
MEASURE_S = 15.0
STREAMS = 2
LEAST_MARKS = 60
"""Characters other than blanks that make a painted frame; the terminal's set-up writes none."""
CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[P\]^_].*?(?:\x1b\\|\x07)|\x1b[ -/]*[0-~]|[\x00-\x20]", re.DOTALL)

PEERS = {"vllmstat": "0.9.1", "vllmpytop": "0.3.0", "nvitop": "1.7.2"}
FLOOR = "bare Textual"


def command_of(name: str, executable: str, url: str) -> list[str]:
    """How each is started, at one reading a second."""
    return {
        "vtop": dashboard("--url", url, "--interval", "1"),
        FLOOR: bare_textual(),
        "vllmstat": [executable, "--url", url, "--interval", "1"],
        "vllmpytop": [executable, "--url", url, "--interval", "1"],
        "nvitop": [executable, "--monitor", "full", "--interval", "1"],
    }[name]


class Relay:
    """Passes requests on to the server, until it hangs: it then accepts connections and never answers."""

    def __init__(self, target: str) -> None:
        let_go = self._let_go = threading.Event()
        hung = self._hung = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if hung.is_set():
                    let_go.wait()
                    return
                try:
                    with urllib.request.urlopen(target + self.path, timeout=5) as answer:
                        code, body, kind = answer.status, answer.read(), answer.headers["Content-Type"]
                except urllib.error.HTTPError as error:
                    code, body, kind = error.code, error.read(), "text/plain"
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A program that was killed leaves its connections; that is no news."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def hang(self, hung: bool) -> None:
        """Stops answering, or answers again."""
        if hung:
            self._let_go.clear()
            self._hung.set()
        else:
            self._hung.clear()
            self._let_go.set()

    def close(self) -> None:
        """Ends it."""
        self.hang(False)
        self._server.shutdown()
        self._server.server_close()


class Program:
    """One program on its own terminal, read all the time."""

    def __init__(self, command: list[str], environ: Mapping[str, str], directory: Path) -> None:
        self.master, worker = pty.openpty()
        fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.begun_s = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=worker, stdout=worker, stderr=worker, env=dict(environ), cwd=directory,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(worker)
        self.output = bytearray()

    def read(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Reads for so long, or until something holds; whether it did."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if until():
                return True
            if select.select([self.master], [], [], min(left, 0.01))[0]:
                try:
                    data = os.read(self.master, 1 << 16)
                except OSError:
                    data = b""
                if not data:
                    # Its terminal is closed; the process itself ends a moment later.
                    time.sleep(0.005)
                self.output += data
        return until()

    def first_paint_s(self) -> float | None:
        """Seconds from the start to the first frame; None if it ended or never painted."""
        painted = self.read(20.0, lambda: len(CONTROL.sub(b"", self.output)) >= LEAST_MARKS)
        return time.monotonic() - self.begun_s if painted and self.process.poll() is None else None

    def tree(self) -> list[psutil.Process]:
        """It and its descendants."""
        with suppress(psutil.Error):
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def cpu_s(self) -> float:
        """CPU time of the tree until now."""
        total = 0.0
        for process in self.tree():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def memory_bytes(self) -> int:
        """Resident memory of the tree."""
        total = 0
        for process in self.tree():
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def quit_s(self, within_s: float = 15.0) -> float | None:
        """Seconds from the key `q` to the end; None if it did not end."""
        begun = time.monotonic()
        os.write(self.master, b"q")
        ended = self.read(within_s, lambda: self.process.poll() is not None)
        return time.monotonic() - begun if ended or self.process.poll() is not None else None

    def last_words(self) -> str:
        """The end of what it wrote, for a note on why it did not run."""
        lines = CONTROL.sub(b" ", self.output).decode(errors="replace").split()
        return " ".join(lines)[-100:]

    def close(self) -> None:
        """Ends it and what it started."""
        for process in reversed(self.tree()):
            with suppress(psutil.Error):
                process.kill()
        self.process.wait()
        os.close(self.master)


def install(name: str, directory: Path) -> tuple[str | None, str]:
    """Makes an environment with one peer; its command, or why there is none."""
    place = directory / name
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin" / "pip"), "install", "--quiet", f"{name}=={PEERS[name]}"],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            return None, f"installing {name} took more than 300 s"
        if done.returncode != 0:
            return None, f"{name} could not be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    return str(place / "bin" / name), ""


@contextmanager
def simulated_server(directory: Path) -> Iterator[str]:
    """A server at work for nobody; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [
        "--model",
        "Qwen/Qwen3-8B",
        "--served-model-name",
        "bench",
        "--port",
        str(port),
        "--startup-s",
        "0",
        "--max-model-len",
        "8192",
    ]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vtop.sim", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 60
        while True:
            with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
                break
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(
                    f"the simulated server did not start: {(directory / 'server.log').read_text()[-500:]}"
                )
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def traffic(url: str) -> Iterator[None]:
    """A few requests at a time, so that every number on a screen moves."""
    stop = threading.Event()
    body = json.dumps({"model": "bench", "prompt": "Count the ways. " * 20, "max_tokens": 96}).encode()

    def send() -> None:
        while not stop.is_set():
            request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
            with suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()

    threads = [threading.Thread(target=send, daemon=True) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


Start = tuple[list[str], Mapping[str, str]]
"""A command and its environment."""


def first_frames(starts: Mapping[str, Start], directory: Path) -> dict[str, dict[str, Any]]:
    """Time and CPU until the first frame of each program; they take turns, so that the machine's mood is shared."""
    paints: dict[str, list[float]] = {name: [] for name in starts}
    cpus: dict[str, list[float]] = {name: [] for name in starts}
    found: dict[str, dict[str, Any]] = {}
    for turn in range(STARTS + 1):
        for name, (command, environ) in starts.items():
            program = Program(command, environ, directory)
            try:
                paint = program.first_paint_s()
                cpu_s = program.cpu_s()
                if paint is None:
                    found[name] = {"why": f"did not paint: {program.last_words()}"}
                elif turn == 0:
                    # The first start leaves bytecode and fills the disk's cache, for all alike; it is not counted.
                    program.read(SETTLE_S)
                else:
                    paints[name].append(paint)
                    cpus[name].append(cpu_s)
            finally:
                program.close()
    for name in starts:
        if name not in found:
            found[name] = {"paint": min(paints[name]), "paint_cpu": min(cpus[name])}
    return found


def measure(start: Start, directory: Path, relay: Relay, server: str) -> dict[str, Any]:
    """What one program costs while it runs; `why` where that could not be had."""
    found: dict[str, Any] = {}
    program = Program(*start, directory)
    try:
        painted = program.first_paint_s() is not None
        program.read(SETTLE_S)
        if not painted or program.process.poll() is not None:
            return {"why": f"ended by itself: {program.last_words()}"}
        found["idle"] = _window(program)
        found["memory"] = program.memory_bytes()
        with traffic(server):
            program.read(3.0)
            found["busy"] = _window(program)
        relay.hang(True)
        program.read(4.0)
        found["quit"] = program.quit_s()
    finally:
        program.close()
        relay.hang(False)
    return found


def _window(program: Program) -> tuple[float, float]:
    """Percent of a core, and bytes a second to the terminal."""
    cpu, sent, begun = program.cpu_s(), len(program.output), time.monotonic()
    program.read(MEASURE_S)
    took = time.monotonic() - begun
    return (program.cpu_s() - cpu) / took * 100, (len(program.output) - sent) / took


def _cells(found: Mapping[str, Mapping[str, Any]], show: Callable[[Mapping[str, Any]], str]) -> tuple[str, str]:
    def cell(numbers: Mapping[str, Any]) -> str:
        try:
            return show(numbers)
        except (KeyError, TypeError):
            return "–"

    return cell(found["vtop"]), ", ".join(f"{name} {cell(found[name])}" for name in (*PEERS, FLOOR))


def run() -> list[Row]:
    """Rows of what, vtop, against, note."""
    notes = []
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="vtop-bench-") as temporary:
        directory = Path(temporary)
        private = {f"VTOP_{name}_DIR": str(directory / name.lower()) for name in ("CONFIG", "STATE", "RUNS", "CACHE")}
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("TEXTUAL", "SSH", "VTOP"))}
        environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", **private}
        if compiler() is None:
            notes.append("no C compiler for the stand-in NVML library: nobody saw a GPU")
        else:
            state = write_state(directory / "gpus", [board(0, H100)])
            environ = environment(build_fake_nvml(directory / "nvml"), state, environ)
        with simulated_server(directory) as server:
            relay = Relay(server)
            try:
                starts: dict[str, Start] = {}
                for name in ("vtop", FLOOR, *PEERS):
                    executable, why = ("", "") if name not in PEERS else install(name, directory)
                    if executable is None:
                        found[name] = {"why": why}
                    else:
                        own = environ if name in PEERS else environment_of(environ, directory)
                        starts[name] = (command_of(name, executable, relay.url), own)
                found |= first_frames(starts, directory)
                for name, start in starts.items():
                    if "why" not in found[name]:
                        found[name] |= measure(start, directory, relay, server)
                notes += [f"{name}: {numbers['why']}" for name, numbers in found.items() if "why" in numbers]
            finally:
                relay.close()
    said = "; ".join(notes)
    rate = "1 reading a second, 120x40; nvitop asks no server"
    return [
        ("watching, idle server: CPU", *_cells(found, lambda n: f"{n['idle'][0]:.1f} %"), said or rate),
        ("watching, server at work: CPU", *_cells(found, lambda n: f"{n['busy'][0]:.1f} %"), rate),
        ("watching: memory", *_cells(found, lambda n: f"{n['memory'] / 2**20:.0f} MiB"), "RSS of the process tree"),
        (
            "first paint", *_cells(found, lambda n: f"{n['paint']:.2f} s"),
            f"first frame with {LEAST_MARKS} characters, quickest of {STARTS} starts",
        ),
        (
            "CPU until the first frame", *_cells(found, lambda n: f"{n['paint_cpu']:.2f} s"),
            "least of the same starts; what else runs on the machine delays the frame, not this",
        ),
        (
            "quit with a hung server", *_cells(found, lambda n: f"{n['quit']:.2f} s"),
            "from the key q to the end of the process; – did not end in 15 s",
        ),
        ("bytes to the terminal, idle", *_cells(found, lambda n: f"{n['idle'][1] / 1024:.2f} KiB/s"), rate),
        ("bytes to the terminal, at work", *_cells(found, lambda n: f"{n['busy'][1] / 1024:.2f} KiB/s"), rate),
    ]  # fmt: skip


if __name__ == "__main__":
    for row in run():
        print(" | ".join(row))
