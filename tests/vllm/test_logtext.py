"""Raw log bytes of a server are data: they are read and shown literally, whatever they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop.vllm.diagnosis import diagnose
from vtop.vllm.logtext import LONGEST_LINE, messages, parse, plain, redrawn, visible

DATA = Path(__file__).parent / "data"


def hostile() -> list[str]:
    return (DATA / "hostile-text.log").read_bytes().decode(errors="replace").split("\n")


def test_brackets_that_look_like_markup_stay_literal() -> None:
    text = "\n".join(visible(line) for line in hostile())
    assert "[core.py:396]" in text
    assert "[/opt/lib/x.so] [node_modules]" in text


def test_a_redrawn_bar_shows_its_last_state_only() -> None:
    text = "\n".join(visible(line) for line in hostile())
    assert "100% Completed | 3/3" in text
    assert "33% Completed" not in text


def test_colours_titles_and_screen_clears_are_removed_not_executed() -> None:
    line = next(line for line in hostile() if "owned" in line)
    assert visible(line) == "(APIServer pid=1) INFO   ok"


def test_bad_bytes_become_the_replacement_character() -> None:
    assert any("bad byte \ufffd\ufffd here" in visible(line) for line in hostile())


def test_only_the_head_of_a_runaway_line_is_read() -> None:
    assert len(parse("x" * 1_000_000).text) == LONGEST_LINE


@given(st.text())
def test_no_control_character_survives(text: str) -> None:
    assert not [char for char in plain(text) if ord(char) < 32 and char != "\t"]


def test_prefixes_of_every_era_are_taken_off() -> None:
    expected = {
        "(EngineCore_DP0 pid=4188) ERROR 11-20 10:00:21 [core.py:718] boom": ("EngineCore_DP0", "ERROR", "core.py"),
        "(VllmWorker rank=1 pid=901) ERROR 03-20 02:29:07 [x.py:375] boom": ("VllmWorker", "ERROR", "x.py"),
        "(VllmWorker-0 pid=29189) WARNING 11-30 03:08:36 [vllm.py:725] boom": ("VllmWorker-0", "WARNING", "vllm.py"),
        "(RayWorkerWrapper pid=7, ip=192.0.2.1) INFO 01-13 11:35:21 a.py:1] boom": ("RayWorkerWrapper", "INFO", "a.py"),
        "INFO 01-13 11:35:21 model_runner.py:1099] boom": ("", "INFO", "model_runner.py"),
        "(Worker_TP0 pid=7) boom": ("Worker_TP0", "", ""),
        "INFO:     boom": ("", "INFO", ""),
        "ERROR:    boom": ("", "ERROR", ""),
        "boom": ("", "", ""),
    }
    for raw, (process, level, source) in expected.items():
        line = parse(raw)
        assert (line.text, line.process, line.level, line.source) == ("boom", process, level, source), raw


def test_indentation_of_a_traceback_stays() -> None:
    assert parse('(A pid=1) ERROR 11-20 10:00:21 [core.py:718]   File "x"').text == '  File "x"'


def test_lines_cut_by_a_terminal_are_joined() -> None:
    lines = (DATA / "died-kv-too-small-hard-wrapped.log").read_text().split("\n")
    found = [line for line in messages(lines) if line.text.startswith("ValueError")]
    assert [line.number for line in found] == [9, 16]
    assert all("KV cache is needed" in line.text and "length is 99680. Try" in line.text for line in found)


def test_ranks_that_say_the_same_are_not_taken_for_cut_lines() -> None:
    """Two equally long longest lines are no terminal width."""
    lines = (DATA / "died-oom-sampler-two-ranks-0.8.log").read_text().split("\n")
    assert len(list(messages(lines))) == len([line for line in lines if line])


def test_what_follows_a_bar_in_the_same_line_is_a_message_of_its_own() -> None:
    assert redrawn("bar 1\rbar 2\r(APIServer pid=4100) TimeoutError: late\n") == [
        "bar 1",
        "bar 2",
        "(APIServer pid=4100) TimeoutError: late",
    ]


@pytest.mark.parametrize(
    "before",
    ["vllm-1  | ", "[pod/vllm-0/vllm] ", "Nov  3 10:00:00 host vllm[123]: ", "2026-01-01T00:00:00.000000000Z ",
     "vllm-1  | 2026-01-01T00:00:00.5+01:00 "],
)  # fmt: skip
@pytest.mark.parametrize("log", sorted(DATA.glob("*-0.32.log")), ids=lambda log: log.stem)
def test_what_a_collector_puts_before_every_line_changes_no_diagnosis(before: str, log: Path) -> None:
    """Without its level a warning would pass for the cause."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    assert diagnose([before + line for line in lines]) == diagnose(lines)
