"""Every optimization that a CPU can do starts from a preset, answers, and stops; a stop holds under hard conditions."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import zlib
from pathlib import Path

import httpx
import psutil
import pytest
from driving import Vtop, assert_nothing_left, port_is_free, tiny_settings

from ui.pseudo_terminal import Terminal

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

PROMPT = "What does a server do while it waits for its memory? Say it in a few plain words, and then say it again. " * 2

VARIANTS = {
    "awq": {"model": "tiny-awq"},
    "gptq": {"model": "tiny-gptq"},
    "w8a8": {"model": "tiny-w8a8"},
    "draft-model": {
        "speculative.method": "draft_model",
        "speculative.model": "tiny",
        "speculative.num_tokens": "3",
    },
    "kv-fp8": {"kv_cache_dtype": "fp8"},
    "tensor-parallel": {"tensor_parallel": "2", "env.VLLM_CPU_OMP_THREADS_BIND": "0|1"},
}
IN_CI = {"awq", "draft-model"}
"""The others need the same minute each and are run by `make test-long`."""

KEY = "sk-real-do-not-show-4711"
KEY_VARIABLE = "VTOP_TEST_KEY"


def settings_of(root: Path, name: str) -> list[str]:
    """`--set` words of a variant; model names become folders."""
    models = {"model", "speculative.model"}
    words = {key: str(root / "models" / value) if key in models else value for key, value in VARIANTS[name].items()}
    return tiny_settings(root, **words)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_CI else [pytest.mark.long]) for name in VARIANTS]
)
def test_it_starts_answers_and_stops(vtop: Vtop, real_env: Path, name: str) -> None:
    """READY means that it has answered; then one more answer, and nothing is left after the stop, its key nowhere."""
    vtop.extra_env[KEY_VARIABLE] = KEY
    keyed = ("--set", f"api_key=env:{KEY_VARIABLE}")
    vtop.run("start", "cpu-small", "--name", name, "--wait", *settings_of(real_env, name), *keyed, timeout=900)
    server = vtop.server(name)
    assert server is not None and server["state"] == "ready"
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True}
    bearer = {"Authorization": f"Bearer {KEY}"}
    assert httpx.post(f"{server['url']}/v1/completions", json=body, timeout=300).status_code == 401
    answer = httpx.post(f"{server['url']}/v1/completions", json=body, headers=bearer, timeout=300)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8
    if name == "draft-model":
        page = httpx.get(f"{server['url']}/metrics", timeout=30).text
        drafted = [line for line in page.splitlines() if line.startswith("vllm:spec_decode_num_draft_tokens_total")]
        assert float(drafted[0].rsplit(" ", 1)[1]) > 0
    words = every_argv()
    recording = vtop.home / f"{name}.rec.gz"
    record(vtop, recording)
    vtop.run("stop", name, "--yes", timeout=300)
    assert_nothing_left(vtop.home)
    assert port_is_free(server["port"])
    assert KEY not in words
    written = {path: path.read_bytes() for path in vtop.home.rglob("*") if path.is_file()}
    written[recording] = zlib.decompressobj(31).decompress(written[recording])
    assert f'"{name}"'.encode() in written[recording]
    assert {"server.log", "state.json"} <= {path.name for path in written}
    assert not [path for path, content in written.items() if KEY.encode() in content]


def every_argv() -> str:
    """The command lines of all processes, as `ps` shows them."""
    words = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words += process.cmdline()
    return "\n".join(words)


def record(vtop: Vtop, file: Path) -> None:
    """A short recording by the dashboard on a terminal of its own."""
    terminal = Terminal(vtop.command("--record", str(file)), (120, 40), vtop.env())
    try:
        terminal.wait_for("READY", 120)
        end = time.monotonic() + 60
        while file.stat().st_size < 2000 and time.monotonic() < end:
            terminal.read(0.2)
        terminal.press("q")
        assert terminal.ended(60) == 0
    finally:
        terminal.close()


class StreamingClient:
    """Reads a long answer in a thread until the server is gone."""

    def __init__(self, url: str) -> None:
        self.first_token = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,), daemon=True)
        self._thread.start()

    def _read(self, url: str) -> None:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": True}
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as response:
                for line in response.iter_lines():
                    if line.startswith("data:"):
                        self.first_token.set()
        except httpx.HTTPError:
            pass

    def join(self) -> None:
        """Waits for its end."""
        self._thread.join(60)


def stop_and_prove(vtop: Vtop, name: str, port: int, within_s: float) -> None:
    """Stops; nothing may be left, and in time."""
    began = time.monotonic()
    done = vtop.run("stop", name, "--yes", timeout=300)
    assert "no process left" in done.stdout
    assert time.monotonic() - began < within_s
    assert_nothing_left(vtop.home)
    assert port_is_free(port)


def test_a_stop_with_a_streaming_client_and_one_after_a_killed_api_server(vtop: Vtop, real_env: Path) -> None:
    """The API process waits for its client for ever, and leaves its engine behind when it is killed: both end."""
    words = tiny_settings(real_env)
    vtop.run("start", "cpu-small", "--name", "streaming", "--wait", *words, timeout=900)
    server = vtop.server("streaming")
    assert server is not None
    client = StreamingClient(server["url"])
    assert client.first_token.wait(120)
    stop_and_prove(vtop, "streaming", server["port"], within_s=90)
    client.join()

    vtop.run("start", "cpu-small", "--name", "killed", "--wait", *words, timeout=900)
    server = vtop.server("killed")
    assert server is not None
    psutil.Process(server["pid"]).send_signal(signal.SIGKILL)
    time.sleep(2)
    stop_and_prove(vtop, "killed", server["port"], within_s=90)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(5))
@pytest.mark.parametrize("phase", ["config", "engine", "weights"])
def test_a_stop_during_start_up(vtop: Vtop, real_env: Path, phase: str, round_: int) -> None:
    """vLLM loses a SIGTERM while it starts; the stop ends it all the same, whatever the phase."""
    name = f"early-{phase}-{round_}"
    vtop.run("start", "cpu-small", "--name", name, *tiny_settings(real_env), timeout=120)
    end = time.monotonic() + 180
    server = vtop.server(name)
    while time.monotonic() < end and server is not None and server["state"] == "starting":
        seen = {server["progress"]["phase"], *(done[0] for done in server["progress"]["done"])}
        if phase in seen:
            break
        time.sleep(0.2)
        server = vtop.server(name)
    assert server is not None and server["state"] == "starting"
    stop_and_prove(vtop, name, server["port"], within_s=90)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(3))
def test_an_idle_stop(vtop: Vtop, real_env: Path, round_: int) -> None:
    """The plain case, again and again."""
    name = f"idle-{round_}"
    vtop.run("start", "cpu-small", "--name", name, "--wait", *tiny_settings(real_env), timeout=900)
    server = vtop.server(name)
    assert server is not None
    stop_and_prove(vtop, name, server["port"], within_s=60)
