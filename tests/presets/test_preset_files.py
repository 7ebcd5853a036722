"""Preset files: which count, what a broken one says, and what may not stand in one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop.errors import UsageError, VtopError
from vtop.preset_files import Catalog, load_catalog, parse_preset, warnings

MINIMAL = 'title = "T"\n[server]\nmodel = "m"\n'


def write(directory: Path, name: str, text: str | bytes = MINIMAL) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{name}.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def catalog(tmp_path: Path) -> Catalog:
    return load_catalog(user_dir=tmp_path / "user", shipped_dir=tmp_path / "shipped")


def refused(text: str, name: str = "p") -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_preset(text, name, "p.toml")
    return caught.value


def test_a_preset_knows_its_name_and_file(tmp_path: Path) -> None:
    file = write(tmp_path / "shipped", "one")
    preset = catalog(tmp_path).find("one")
    assert (preset.name, preset.source) == ("one", str(file))


def test_a_user_preset_shadows_the_shipped_one(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "one")
    write(tmp_path / "shipped", "two")
    write(tmp_path / "user", "one", MINIMAL.replace("T", "Mine"))
    found = catalog(tmp_path)
    assert found.find("one").title == "Mine"
    assert list(found.presets) == ["one", "two"]


@pytest.mark.parametrize("broken", ["title = ", b"\xff\xfe\x00", 'title = "x"\n[server]\n', ""])
def test_a_broken_file_blocks_only_itself(tmp_path: Path, broken: str | bytes) -> None:
    write(tmp_path / "user", "good")
    bad = write(tmp_path / "user", "bad", broken)
    found = catalog(tmp_path)
    assert list(found.presets) == ["good"]
    (problem,) = found.problems
    assert problem.file == str(bad)
    assert problem.what and problem.remedy


def test_a_broken_user_file_does_not_let_the_shipped_one_start_in_its_place(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "one")
    write(tmp_path / "user", "one", "title = \n")
    with pytest.raises(UsageError, match="line 1"):
        catalog(tmp_path).find("one")


def test_what_is_no_file_and_what_an_editor_left_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "user", "good")
    write(tmp_path / "user", ".#good", "half")
    (tmp_path / "user" / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "user" / "pipe.toml")  # reading one would wait for ever
    assert list(catalog(tmp_path).presets) == ["good"]
    assert catalog(tmp_path).problems == ()


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "prefix-caching")
    with pytest.raises(UsageError) as caught:
        catalog(tmp_path).find("prefix-cacheing")
    assert caught.value.remedy == "Did you mean prefix-caching?"
    assert caught.value.exit_code == 2


def test_a_damaged_installation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Path:
        raise FileNotFoundError("no shipped presets")

    monkeypatch.setattr("vtop.paths.shipped_presets_dir", lost)
    with pytest.raises(VtopError, match="no shipped presets"):
        load_catalog()


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        ("max_modle_len = 4096", "p.toml, line 4: there is no key max_modle_len in [server]", "max_model_len"),
        ('max_model_len = "4096"', "p.toml, line 4: server.max_model_len: must be a whole number, not text", "quotes"),
        ("max_model_len = 0", "server.max_model_len: must be a whole number >= 1, not 0", ""),
        ("gpu_memory_utilization = 1.5", "server.gpu_memory_utilization: must be a number <= 1.0, not 1.5", ""),
        ("gpu_memory_utilization = nan", "server.gpu_memory_utilization: must be a number > 0.0, not nan", ""),
        ('port = "atuo"', "server.port: must be a whole number or auto, not 'atuo'", "Did you mean auto?"),
        ("port = 70000", "server.port: must be a whole number <= 65535, not 70000", ""),
        ("gpus = []", "server.gpus: must be a list with 1 or more entries", ""),
        ("title = 3", "there is no key title in [server]", "at the top"),
        ("model = 'again'", "p.toml, line 4, column", "there twice"),
        ("host = 127.0.0.1", "p.toml, line 4, column 13: not valid TOML", "quotes"),
        ('speculative = { method = "ngrm", num_tokens = 3 }', "server.speculative.method: must be one of", "ngram?"),
        ('speculative = { method = "ngram" }', "num_tokens is missing in [server.speculative]", "num_tokens ="),
        ("[server.env]\nA = 1", "server.env: must be text, not a whole number", "in quotes"),
    ],
)
def test_errors_name_the_key_and_the_line(line: str, what: str, remedy: str) -> None:
    error = refused(MINIMAL + line + "\n")
    assert what in error.what
    assert remedy in error.remedy


def test_a_key_outside_its_table_is_sent_home() -> None:
    error = refused("max_model_len = 3\n" + MINIMAL)
    assert error.what == "p.toml, line 1: there is no key max_model_len at the top, before any [table]"
    assert error.remedy == "It belongs in [server]."


@pytest.mark.parametrize("missing", ["title", "server", "model"])
def test_what_must_be_there_is_missed_by_name(missing: str) -> None:
    text = {"title": '[server]\nmodel = "m"\n', "server": 'title = "T"\n', "model": 'title = "T"\n[server]\n'}[missing]
    assert f"{missing} is missing" in refused(text).what


def test_a_line_is_named_only_where_it_is_sure() -> None:
    """The same words inside a text of several lines could be meant as well."""
    twice = MINIMAL + 'served_name = """\nmax_model_len = 3\n"""\nmax_model_len = "4"\n'
    assert refused(twice).what == "p.toml: server.max_model_len: must be a whole number, not text"


@pytest.mark.parametrize("name", ["a b", "../up", "", "-x", "ä", "x" * 65])
def test_a_name_that_cannot_be_a_servers_is_refused(name: str) -> None:
    assert "cannot be a preset's name" in refused(MINIMAL, name).what


@pytest.mark.parametrize(
    "secret",
    [
        '[server.args]\napi-key = "k3y"',
        '[server.args]\napi_key = "k3y"',
        '[server.args]\nhf-token = "k3y"',
        '[server.disaggregated.prefill_args]\napi-key = "k3y"',
        '[server.env]\nHF_TOKEN = "k3y"',
        '[server.env]\nVLLM_API_KEY = "k3y"',
        '[server.env]\nAWS_SECRET_ACCESS_KEY = "k3y"',
        '[server.env]\nHTTPS_PROXY = "http://me:k3y@proxy:3128"',
        '[server.args]\nmiddleware = ["hf_k3yk3yk3yk3yk3yk3yk3yk3yk3y"]',
        '[server.args]\nx = { a = { b = "sk-k3yk3yk3yk3yk3yk3yk3yk3yk3y" } }',
        'api_key = "k3y"',
        'command = ["docker", "run", "-e", "HF_TOKEN=k3y", "image", "{args}"]',
        'command = ["vllm", "serve", "--api-key", "k3y"]',
    ],
)
def test_a_secret_in_a_file_is_refused_and_not_repeated(secret: str) -> None:
    error = refused(MINIMAL + secret + "\n")
    assert "k3y" not in str(error)
    assert error.remedy


@pytest.mark.parametrize(
    "harmless",
    [
        '[server.env]\nTOKENIZERS_PARALLELISM = "false"',
        'api_key = "env:MY_KEY"',
        'api_key = "file:~/key"',
        'command = ["docker", "run", "-e", "HF_TOKEN", "image", "{args}"]',
        '[server.args]\nmax-logprobs = 3\nlora-modules = ["a=b"]\ncompilation-config = { level = 3 }',
        "[server.args]\ncudagraph-capture-sizes = [1, 2, 4]",
    ],
)
def test_what_is_no_secret_passes(harmless: str) -> None:
    parse_preset(MINIMAL + harmless + "\n", "p")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('speculative = { method = "ngram", model = "d", num_tokens = 3 }', "ngram has no draft model"),
        ('speculative = { method = "eagle3", num_tokens = 3 }', "eagle3 needs a model"),
        ('stop_command = ["docker", "stop", "x"]', "only for a command"),
        ('command = ["x", "{args}"]\ndisaggregated = {}', "one process"),
        ("replicas = 2\ndisaggregated = {}", "does not go together"),
        ("[server.args]\nport = 1", "has a key of its own"),
        ('[server.args]\nhost = "0.0.0.0"', "has a key of its own"),
        ("[server.args]\n--enforce-eager = true", "without the dashes"),
        ('[server.args]\n"a b" = 1', "is no flag"),
    ],
)
def test_words_that_contradict_each_other_are_refused(line: str, what: str) -> None:
    error = refused(MINIMAL + line + "\n")
    assert what in error.what
    assert error.remedy


def test_a_container_may_listen_inside_where_it_must() -> None:
    parse_preset(MINIMAL + 'command = ["x", "{args}"]\n[server.args]\nhost = "0.0.0.0"\n', "p")


def warned(line: str) -> str:
    return " / ".join(warnings(parse_preset(MINIMAL + line + "\n", "p")))


def test_an_open_server_is_warned_about() -> None:
    assert warned("") == ""
    assert "without an API key" in warned('host = "0.0.0.0"')
    assert "without an API key" in warned('host = "::"')
    assert "/v1 only" in warned('host = "0.0.0.0"\napi_key = "env:K"')
    assert "for whoever asks" in warned('disaggregated = {}\napi_key = "env:K"')
    assert "runs Python code" in warned("trust_remote_code = true")


@given(st.text(max_size=300))
def test_no_text_gets_anything_but_a_preset_or_a_usage_error(text: str) -> None:
    for whole in (text, MINIMAL + text):
        try:
            parse_preset(whole, "p", "p.toml")
        except UsageError as error:
            assert error.what.startswith("p.toml")


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    assert refused("a = " + "[" * 5000).what == "p.toml: nested too deeply"


def test_a_link_to_nothing_is_told_and_keeps_its_shadow(tmp_path: Path) -> None:
    """Starting the shipped preset in the place of the one that was meant would be worse than none."""
    write(tmp_path / "shipped", "one")
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "one.toml").symlink_to(tmp_path / "gone.toml")
    (tmp_path / "user" / "folder.toml").mkdir()
    found = catalog(tmp_path)
    assert list(found.presets) == []
    assert [problem.what for problem in found.problems] == ["cannot be read: No such file or directory"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("[server.args]\nhf-overrides = { when = 2024-01-01 }", "server.args.hf-overrides.when is a date or time"),
        ("[server.args]\nhf-overrides = { x = nan }", "server.args.hf-overrides.x is nan, which JSON cannot say"),
        ('[server.args]\nrevision = "a\\u0000b"', "'server.args.revision' holds a byte that is no text"),
        ('[server.env]\n"A=B" = "c"', "'A=B' is no variable's name"),
        ('[server.env]\n"" = "c"', "'' is no variable's name"),
        ('served_name = ""', "server.served_name is empty"),
        ('served_name = "--foo"', "server.served_name: --foo looks like a flag"),
    ],
)
def test_what_no_command_line_can_carry_is_refused_when_it_is_read(words: str, said: str) -> None:
    assert said in refused(MINIMAL + words).what


@pytest.mark.parametrize("model", ["", " ", "--trust-remote-code"])
def test_a_model_is_a_name_and_no_flag(model: str) -> None:
    assert "server.model" in refused(f'title = "T"\n[server]\nmodel = "{model}"\n').what


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::0", "0", "*", ""])
def test_every_way_to_listen_everywhere_is_warned_about(host: str) -> None:
    (said,) = warnings(parse_preset(MINIMAL + f'host = "{host}"\n', "p"))
    assert "listens on every network interface" in said
