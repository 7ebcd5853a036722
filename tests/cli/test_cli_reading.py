"""The verbs that start nothing: presets, fit, diagnose, doctor; and what a verb imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.vtop_process import Vtop
from vtop.cli import main
from vtop.commands.diagnose import read_log
from vtop.preset_files import load_catalog

HEAVY = ("textual", "plotext", "vllm", "torch", "transformers")
"""Not `rich`: httpx imports it for a command line of its own wherever click is installed."""


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("status", "--window", "0.1"),
        ("load", "--list"),
        ("presets",),
        ("fit", "baseline", "--gpu", "H100"),
    ],
)
def test_a_verb_without_a_screen_imports_no_screen(vtop: Vtop, words: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom vtop.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print('IMPORTED', [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=vtop.environment(), check=False
    )
    assert "IMPORTED []" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("version", "flag"),
    [("0.6.6", "--speculative-model"), ("0.9.2", "--speculative-config"), ("0.33.0", "--speculative-config")],
)
def test_a_preset_is_shown_in_the_words_of_a_version(
    version: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["presets", "show", "spec-ngram", "--vllm-version", version]) == 0
    assert flag in capsys.readouterr().out


def test_a_preset_is_shown_with_the_gpus_that_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    """What is shown is what a start would run, and that sees only these."""
    assert main(["presets", "show", "baseline", "--vllm-version", "0.33.0", "--set", "gpus=[1]"]) == 0
    assert "CUDA_VISIBLE_DEVICES=1" in capsys.readouterr().out


def test_every_shipped_preset_is_listed_and_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    names = [preset["name"] for preset in listed["presets"]]
    assert listed["problems"] == []
    assert names == list(load_catalog().presets)
    for name in names:
        assert main(["presets", "show", name, "--vllm-version", "0.33.0", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["commands"][0]["argv"]


@pytest.mark.parametrize("words", [("Qwen/Qwen2.5-7B-Instruct", "--gpu", "RTX 4090"), ("awq", "--gpu", "H100")])
def test_fit_says_whether_it_fits_and_what_pays(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *words]) == 0
    out = capsys.readouterr().out
    assert "fits" in out
    assert "TPOT floor" in out
    assert main(["fit", *words, "--json", "--context", "2048", "--concurrency", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True


def test_fit_of_what_does_not_fit_is_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "tensor-parallel", "--gpu", "RTX 4090", "--set", "tensor_parallel=1", "--set", "gpus=1"]) == 1
    assert "does NOT fit" in capsys.readouterr().out


def test_diagnose_names_cause_and_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(
        "INFO 01-01 00:00:00 Loading weights\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "23.99 GiB of which 1.00 GiB is free.\n",
        encoding="utf-8",
    )
    assert main(["diagnose", str(log)]) == 0
    out = capsys.readouterr().out
    assert "memory" in out.lower()
    assert "Try:" in out
    assert main(["diagnose", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["line_number"] == 2
    assert found["remedies"]


def test_doctor_says_what_is_missing_and_is_content_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for what in ("Python", "GPU", "vLLM", "P/D router", "presets", "folders", "leftovers"):
        assert f" {what}: " in out
    assert main(["doctor", "--json"]) == 0
    assert all({"what", "ok", "found", "remedy"} == set(finding) for finding in json.loads(capsys.readouterr().out))


def test_doctor_fails_over_a_broken_preset(vtop: Vtop) -> None:
    folder = vtop.directory("CONFIG") / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("nonsense", encoding="utf-8")
    done = vtop("doctor", code=1)
    assert "MISSING presets: 1 broken" in done.out


def test_the_line_that_diagnose_names_is_the_line_of_an_editor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar that redraws itself, a form feed and a part that was too long to read do not move the count."""
    log = tmp_path / "vllm.log"
    log.write_bytes(b"a: 1%\ra: 50%\ra: 99%\nform\x0cfeed \xe2\x80\xa8 and such\nValueError: no such thing\n")
    assert main(["diagnose", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["line_number"] == 3
    lines, before = read_log(log, most_bytes=30)
    assert (lines[-2], before + lines.index("ValueError: no such thing") + 1) == ("ValueError: no such thing", 3)


def test_diagnose_reads_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`vtop diagnose <(docker logs NAME)`: what cannot be sought in is read to its end."""
    reading, writing = os.pipe()
    os.write(writing, b"one\nValueError: no such thing\n")
    os.close(writing)
    try:
        assert main(["diagnose", f"/dev/fd/{reading}"]) == 0
    finally:
        os.close(reading)
    assert "line 2 of" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("status",), ("start", "baseline", "--sim"), ("stop", "x", "--yes")])
def test_a_folder_that_cannot_be_made_is_told_with_its_variable(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VTOP_STATE_DIR", str(tmp_path / "file" / "state"))
    assert main(list(words)) == 1
    said = capsys.readouterr().err
    assert f"cannot make the folder {tmp_path}/file/state: Not a directory" in said
    assert "VTOP_STATE_DIR=..." in said
    assert "Traceback" not in said


def test_doctor_goes_on_where_a_folder_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VTOP_STATE_DIR", str(tmp_path / "file" / "state"))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "ok      presets" in said
    assert "MISSING folders: cannot make the folder" in said
    assert "MISSING leftovers: not looked for" in said


def test_a_terminal_without_utf_8_gets_all_of_the_text(vtop: Vtop) -> None:
    vtop.env["PYTHONIOENCODING"] = "ascii"
    shown = vtop("fit", "baseline", "--gpu", "H100")
    assert shown.code == 0, shown.err
    assert "Traceback" not in shown.err
    assert "CPU or edge" in shown.out.splitlines()[-1]
    told = vtop("fit", "baseline", "--gpu", "H100", "--json")
    assert "\u2192" in json.dumps(told.json(), ensure_ascii=False), "an arrow is an arrow in JSON"
