"""`--set KEY=VALUE`: dotted keys, values typed by the schema, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop.errors import UsageError
from vtop.preset_files import parse_preset, parse_set, with_overrides
from vtop.presets import Preset, Speculative

BASE = parse_preset(
    """
    title = "T"
    [server]
    model = "m"
    quantization = "fp8"
    speculative = { method = "ngram", num_tokens = 5, prompt_lookup_max = 4 }
    [server.args]
    max-logprobs = 5
    [server.env]
    A = "1"
    """,
    "p",
)


def changed(overrides: Mapping[str, str]) -> Preset:
    return with_overrides(BASE, overrides)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("max_model_len", "4096", 4096),
        ("server.max_model_len", "4096", 4096),
        ("max_model_len", "none", None),
        ("gpu_memory_utilization", "0.5", 0.5),
        ("gpu_memory_utilization", "1", 1.0),
        ("enforce_eager", "true", True),
        ("enforce_eager", "off", False),
        ("model", "8", "8"),
        ("model", "none", "none"),
        ("served_name", "1e5", "1e5"),
        ("quantization", "none", None),
        ("quantization", "", None),
        ("port", "auto", "auto"),
        ("port", "9000", 9000),
        ("gpus", "2", 2),
        ("gpus", "[0]", [0]),
        ("gpus", "0,1", [0, 1]),
        ("gpus", "GPU-a,GPU-b", ["GPU-a", "GPU-b"]),
        ("gpus", "GPU-a", ["GPU-a"]),
        ("api_key", "env:K", "env:K"),
        ("command", '["a", "{args}"]', ["a", "{args}"]),
        ("speculative", "none", None),
        ("args", '{"seed": 1}', {"seed": 1}),
    ],
)
def test_a_value_is_read_as_its_key_says(key: str, text: str, value: object) -> None:
    assert getattr(changed({key: text}).server, key.removeprefix("server.")) == value


def test_tables_change_key_by_key() -> None:
    assert changed({"speculative.num_tokens": "3"}).server.speculative == Speculative(
        method="ngram", num_tokens=3, prompt_lookup_max=4
    )
    assert BASE.server.speculative is not None and BASE.server.speculative.num_tokens == 5


def test_a_table_can_be_made_from_its_parts() -> None:
    bare = with_overrides(BASE, {"speculative": "none"})
    made = with_overrides(
        bare, {"speculative.method": "eagle3", "speculative.num_tokens": "2", "speculative.model": "h"}
    )
    assert made.server.speculative == Speculative(method="eagle3", num_tokens=2, model="h")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("3", 3),
        ("0.5", 0.5),
        ("half", "half"),
        ("[1, 2]", [1, 2]),
        ('{"level": 3}', {"level": 3}),
        ("NaN", "NaN"),
    ],
)
def test_flags_of_vllm_take_what_json_says(text: str, value: object) -> None:
    assert changed({"args.some-flag": text}).server.args == {"max-logprobs": 5, "some-flag": value}


def test_a_flag_is_the_same_with_underscores_and_goes_with_none() -> None:
    assert changed({"args.max_logprobs": "7"}).server.args == {"max_logprobs": 7}
    assert changed({"args.max_logprobs": "none"}).server.args == {}


def test_dots_in_a_flag_stay() -> None:
    assert "kv-transfer-config.kv_role" in changed({"args.kv-transfer-config.kv_role": "x"}).server.args


def test_the_environment_is_text() -> None:
    assert changed({"env.X": "1", "env.A": "none"}).server.env == {"X": "1"}


def test_keys_outside_the_server_table_change_too() -> None:
    assert changed({"title": "Other"}).title == "Other"


def test_name_and_file_stay() -> None:
    assert changed({"max_model_len": "1"}).name == "p"


@pytest.mark.parametrize(
    ("overrides", "what", "remedy"),
    [
        ({"max_modle_len": "3"}, "--set max_modle_len: there is no such key", "Did you mean max_model_len?"),
        ({"speculative.tokens": "3"}, "--set speculative.tokens: there is no such key", "Did you mean num_tokens?"),
        ({"server.title": "3"}, "there is no such key", ""),
        ({"name": "x"}, "there is no such key", ""),
        ({"model.x": "3"}, "model has no keys of its own", "--set model=VALUE"),
        ({"max_model_len": "long"}, "server.max_model_len: must be a whole number, not text", ""),
        ({"max_model_len": "0"}, "must be a whole number >= 1", ""),
        ({"port": "0"}, "must be a whole number >= 1", ""),
        ({"speculative.method": "ngrm"}, "must be one of", "Did you mean ngram?"),
        ({"api_key": "abc"}, "by reference", "env:NAME"),
        ({"args.api-key": "abc"}, "would put a secret on the command line", ""),
        ({"env.HF_TOKEN": "abc"}, "looks like a secret", "export HF_TOKEN"),
        ({"args": "3"}, "must be a table", ""),
    ],
)
def test_a_wrong_override_says_which_and_what_instead(overrides: dict[str, str], what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        changed(overrides)
    assert what in caught.value.what
    assert remedy in caught.value.remedy
    assert "abc" not in str(caught.value)


def test_words_are_split_at_the_first_equals_sign() -> None:
    assert parse_set(["args.lora-modules=a=b", "max_model_len = 1", "max_model_len=2"]) == {
        "args.lora-modules": "a=b",
        "max_model_len": "2",
    }


@pytest.mark.parametrize("word", ["max_model_len", "=3", " =3"])
def test_a_word_without_a_key_or_equals_sign_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        parse_set([word])


KEYS = st.sampled_from(
    [
        "port",
        "gpus",
        "max_model_len",
        "speculative",
        "args.x",
        "env.X",
        "command",
        "disaggregated.prefill",
        "model",
        "args",
    ]
)


@given(KEYS, st.text(max_size=40))
def test_no_value_gets_anything_but_a_preset_or_a_usage_error(key: str, value: str) -> None:
    try:
        assert isinstance(changed({key: value}), Preset)
    except UsageError as error:
        assert error.what


@pytest.mark.parametrize("text", ["1.10", "12e4", "1.0", "5", "-1", "007"])
def test_a_flags_value_is_passed_as_it_was_written(text: str) -> None:
    """A branch called 1.10 is not the branch 1.1, nor a commit 12e4 the number 120000.0."""
    assert str(changed({"args.revision": text}).server.args["revision"]) == text


@pytest.mark.parametrize("key", ["served_name", "title", "args.revision", "env.A"])
def test_bytes_that_are_no_text_are_refused_before_anything_starts(key: str) -> None:
    """Python carries such bytes of an argument as lone surrogates, which no record could be written with."""
    with pytest.raises(UsageError, match="holds a byte that is no text"):
        changed({key: "a\udcff"})


def test_a_table_nested_too_deeply_is_an_error_and_no_crash() -> None:
    """JSON of such a depth can still be read on some Pythons; whatever walks through it cannot."""
    for depth in (900, 985, 991, 995, 3000):
        try:
            assert isinstance(changed({"args.x": '{"a":' * depth + "1" + "}" * depth}), Preset)
        except UsageError as error:
            assert "nested too deeply" in error.what
