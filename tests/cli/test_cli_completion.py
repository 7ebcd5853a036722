"""TAB in real shells: verbs, options, and the names of presets and servers as they are now."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.vtop_process import Vtop
from ui.pseudo_terminal import Terminal
from vtop.cli import build_parser
from vtop.commands.completion import OFFERED, arguments_of
from vtop.commands.names import NAMES
from vtop.hardware import CARDS, find_card

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def shelled(vtop: Vtop, tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """The environment of a shell that finds `vtop` and its completion script, in a home of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "vtop"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m vtop "$@"\n', encoding="utf-8")
    command.chmod(0o755)

    def environment(shell: str) -> dict[str, str]:
        (tmp_path / "script").write_text(vtop("completion", shell).out, encoding="utf-8")
        return {**vtop.environment(), "HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}

    return environment


def _bash(words: list[str], environment: dict[str, str], home: Path) -> list[str]:
    typed = " ".join(shlex.quote(word) for word in words)
    code = (
        f"source {home}/script; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; "
        '_shtab_vtop; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout.split()


def _fish(words: list[str], environment: dict[str, str], home: Path) -> list[str]:
    code = f"source {home}/script; complete -C {shlex.quote(' '.join(words))}"
    done = subprocess.run(["fish", "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


def _zsh(words: list[str], environment: dict[str, str], home: Path) -> list[str]:
    """An interactive shell that lists its offers, since only such a one completes."""
    terminal = Terminal(["zsh", "-f", "-i"], (200, 40), environment)
    try:
        setup = "autoload -U compinit; compinit -u -D; LISTMAX=0; setopt list_rows_first no_auto_menu no_list_ambiguous"
        terminal.press(f"{setup}; eval \"$(<{home}/script)\"; PS1='pro''mpt '; echo is''ready\n")
        terminal.wait_for("isready")
        terminal.wait_for("prompt ")  # keys that come before it are not read by the line editor
        before = len(terminal.output)
        terminal.press(" ".join(words) + "\x04")
        terminal.press("\x15echo is''shown\n")
        terminal.wait_for("isshown")
        shown = bytes(terminal.output[before:]).decode(errors="replace")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", " ", shown).split()
    finally:
        terminal.close()


OFFERS = {"bash": _bash, "zsh": _zsh, "fish": _fish}


@pytest.fixture(params=[shell for shell in SHELLS])
def offers(
    request: pytest.FixtureRequest, shelled: Callable[[str], dict[str, str]], tmp_path: Path
) -> Callable[..., list[str]]:
    """What a shell offers for the words typed so far; the last may be a part of one."""
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} here")
    environment = shelled(request.param)
    return lambda *words: OFFERS[request.param](list(words), environment, tmp_path)


def test_verbs_options_presets_and_servers_as_they_are_now(vtop: Vtop, offers: Callable[..., list[str]]) -> None:
    assert {"start", "status", "stop"} <= set(offers("vtop", "st"))
    assert "--wait" in offers("vtop", "start", "--w")
    assert {"spec-ngram", "spec-draft"} <= set(offers("vtop", "start", "spec-"))
    own = vtop.directory("CONFIG") / "presets"
    own.mkdir(parents=True)
    (own / "spec-mine.toml").write_text("", encoding="utf-8")
    assert "spec-mine" in offers("vtop", "start", "spec-")
    for name, state in (("alpha", "ready"), ("alto", "stopped"), ("alpine", "failed")):
        folder = vtop.directory("STATE") / "servers" / name
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(f'{{"state": "{state}"}}', encoding="utf-8")
    assert {"alpha", "alpine", "alto"} <= set(offers("vtop", "logs", "al"))
    stoppable = offers("vtop", "stop", "al")
    assert {"alpha", "alpine"} <= set(stoppable)
    assert "alto" not in stoppable


def test_every_name_that_is_offered_belongs_to_an_argument_that_exists() -> None:
    known = {(verb, action.dest) for verb, action in arguments_of(build_parser())}
    assert set(OFFERED) <= known
    assert set(OFFERED.values()) <= set(NAMES)


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_names_are_words_of_a_shell(vtop: Vtop, kind: str) -> None:
    for name in vtop("_complete", kind).out.splitlines():
        assert shlex.quote(name) == name


def test_a_kind_that_a_later_script_asks_for_is_answered_with_nothing(vtop: Vtop) -> None:
    done = vtop("_complete", "weather", code=1)
    assert (done.out, done.err) == ("", "")


def test_cards_are_found_by_the_words_that_are_offered() -> None:
    for card in CARDS:
        assert find_card(card.name.replace(" ", "-")) is card


def test_presets_and_servers_are_named_without_anything_heavy() -> None:
    """A person waits for TAB: nothing of the network, the screen or the presets' contents is imported."""
    code = (
        "import sys; from vtop.cli import main; main(['_complete', 'presets']); main(['_complete', 'running']);"
        "print([m for m in ('httpx', 'textual', 'msgspec', 'psutil', 'asyncio', 'tomllib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_hidden_verb_is_offered_nowhere(offers: Callable[..., list[str]]) -> None:
    assert "_complete" not in build_parser().format_help()
    assert "_complete" not in offers("vtop", "_")
