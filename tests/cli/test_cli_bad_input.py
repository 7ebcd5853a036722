"""What bad input gets: a cause, a remedy, the exit code, and never a traceback (`Vtop.fails` looks for one)."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cli.vtop_process import Vtop
from vtop.cli import main


def test_an_unknown_preset_names_the_nearest_one(vtop: Vtop) -> None:
    assert "baseline" in vtop.fails(2, "start", "basline", "--sim")


def test_a_dry_run_of_an_unknown_preset_is_the_same_usage_error(vtop: Vtop) -> None:
    assert "baseline" in vtop.fails(2, "start", "basline", "--sim", "--dry-run")


def test_a_wrong_key_names_the_nearest_key(vtop: Vtop) -> None:
    assert "max_model_len" in vtop.fails(2, "start", "baseline", "--sim", "--set", "max_model_length=2048")


@pytest.mark.parametrize("words", [("--set", "port"), ("--set", "port=eighty"), ("--gpu", "Voodoo 2")])
def test_a_value_that_cannot_be_used_starts_nothing(vtop: Vtop, words: tuple[str, str]) -> None:
    assert vtop("start", "baseline", "--sim", *words, code=None).code in {1, 2}


def test_a_broken_preset_file_blocks_only_itself(vtop: Vtop) -> None:
    folder = vtop.directory("CONFIG") / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("title = 'never closed\n", encoding="utf-8")
    said = vtop.fails(2, "start", "mine", "--sim")
    assert "mine.toml" in said
    listed = vtop("presets", code=1)
    assert "mine.toml" in listed.err
    assert "baseline" in listed.out
    assert "--served-model-name" in vtop("start", "baseline", "--sim", "--dry-run").out


def test_a_port_that_is_taken_names_who_has_it(vtop: Vtop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plan = vtop("start", "baseline", "--set", f"port={port}", "--set", 'command=["/bin/sleep", "60"]', "--dry-run")
        assert f"port {port} is taken by pid" in plan.out
        said = vtop.fails(1, "start", "baseline", "--set", f"port={port}", "--set", 'command=["/bin/sleep", "60"]')
    assert said.count(f"port {port}") == 1
    assert "pid" in said
    assert "warning" not in said


def test_a_vllm_that_is_not_there_is_named(vtop: Vtop) -> None:
    said = vtop.fails(1, "start", "baseline", "--vllm", "/nowhere/at/all")
    assert "/nowhere/at/all does not exist" in said


class _Page(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"<html>some page</html>")

    def log_message(self, *words: object) -> None:
        """Silent."""


@pytest.mark.parametrize(("status", "words"), [(200, "not an OpenAI-compatible server"), (401, "API key")])
def test_load_against_what_is_not_vllm_or_wants_a_key(vtop: Vtop, status: int, words: str) -> None:
    handler = type("Page", (_Page,), {"status": status})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert words in vtop.fails(1, "load", "--url", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_load_where_nobody_listens(vtop: Vtop) -> None:
    assert "no answer" in vtop.fails(1, "load", "--url", "http://127.0.0.1:9")


def test_load_without_any_server(vtop: Vtop) -> None:
    assert "vtop start" in vtop.fails(2, "load")


@pytest.mark.parametrize(
    "words",
    [
        ("load", "no-such-workload", "--url", "http://127.0.0.1:9", "--model", "m"),
        ("load", "--url", "not an address"),
        ("load", "-n", "0", "--url", "http://127.0.0.1:9", "--model", "m"),
        ("load", "--rate", "-1"),
        ("load", "--server", "nobody"),
        ("load", "--url", "http://127.0.0.1:9", "--api-key", "sk-secret"),
        ("load", "--file", "/nowhere.jsonl", "--url", "http://127.0.0.1:9", "--model", "m"),
        ("logs", "nobody"),
        ("stop", "nobody", "--yes"),
        ("stop",),
        ("compare",),
        ("compare", "basline", "--sim"),
        ("compare", "baseline", "--sim", "--repeats", "0"),
        ("presets", "show"),
        ("presets", "show", "basline"),
        ("presets", "show", "baseline", "--vllm-version", "banana"),
        ("fit", "no-such-model", "--gpu", "H100"),
        ("fit", "baseline", "--gpu", "Voodoo 2"),
        ("fit", "baseline", "--gpu", "H100", "--context", "0"),
        ("diagnose", "/nowhere.log"),
        ("web", "--port", "0"),
        ("no-such-verb",),
        (),
    ],
)
def test_wrong_usage_is_exit_2_with_a_way_out(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vtop")]
    assert code == 2
    assert len(said) == 1


@pytest.mark.parametrize("words", [("report", "no-such-run"), ("compare", "--resume", "no-such-run"), ("import", "X")])
def test_a_run_that_does_not_exist_is_said_in_words(vtop: Vtop, words: tuple[str, ...]) -> None:
    assert words[-1] in vtop(*words, code=None).err


@pytest.mark.parametrize("content", [b"", b"not a recording", b"\x1f\x8b\x08\x00cut"])
def test_replay_of_a_bad_file(vtop: Vtop, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.vtop"
    file.write_bytes(content)
    done = vtop("replay", str(file), code=None)
    assert done.code in {1, 2}
    assert "bad.vtop" in done.err


def test_a_reader_that_goes_away_is_no_error_of_ours(vtop: Vtop) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "vtop", "presets"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=vtop.environment(), text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(60) in {0, 1}


@pytest.mark.parametrize("words", [("load", "demo", "--url"), ("fit",)])
def test_a_password_in_an_address_is_not_repeated_by_an_error(vtop: Vtop, words: tuple[str, ...]) -> None:
    said = vtop.fails(1, *words, "http://me:hunter2@127.0.0.1:1")
    assert "http://127.0.0.1:1" in said
    assert "hunter2" not in said
