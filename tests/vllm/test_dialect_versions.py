"""Every neutral word in every vLLM from 0.6 to 0.33: only flags that the version has, or a refusal that says why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from vtop.errors import UsageError, VtopError
from vtop.presets import Disaggregated, Preset, ServerSpec, Speculative
from vtop.vllm.dialect import commands
from vtop.vllm.launch import LaunchCommand
from vtop.vllm.number_formats import KV_CACHE_DTYPES, QUANTIZATIONS
from vtop.vllm.versions import flags_of, hypothetical_installation, known_versions, lifetime, nearest_release

VERSIONS = known_versions()


def spec(**words: Any) -> ServerSpec:
    return ServerSpec(model="org/model", **words)


def start(version: str, device: str = "cuda", **words: Any) -> tuple[LaunchCommand, ...]:
    preset = Preset(title="T", server=spec(**words))
    return commands(preset, hypothetical_installation(version, device), port=8000, name="t")


def argv(version: str, **words: Any) -> list[str]:
    return list(start(version, **words)[0].argv)


def flags(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def value(words: Sequence[str], flag: str) -> str:
    return words[words.index(flag) + 1]


NEUTRAL: list[dict[str, Any]] = [
    {"served_name": "s"},
    {"max_model_len": 4096},
    {"gpu_memory_utilization": 0.5},
    {"kv_cache_memory_bytes": 10**9},
    {"max_num_seqs": 4},
    {"max_num_batched_tokens": 8192},
    {"tensor_parallel": 2},
    {"pipeline_parallel": 2},
    {"data_parallel": 2},
    {"prefix_caching": True},
    {"prefix_caching": False},
    {"chunked_prefill": True},
    {"chunked_prefill": False},
    {"enforce_eager": True},
    {"enforce_eager": False},
    {"trust_remote_code": True},
    {"trust_remote_code": False},
    {"dtype": "half"},
    {"load_format": "dummy"},
    {"shutdown_timeout_s": 3.5},
    {"mfu_metrics": True},
    {"mfu_metrics": False},
    {"disaggregated": Disaggregated()},
    {"disaggregated": Disaggregated(connector="shared-folder", prefill=2, decode=3)},
    {"replicas": 2},
    *({"quantization": name} for name in [*QUANTIZATIONS, "from-a-plugin"]),
    *({"kv_cache_dtype": name} for name in KV_CACHE_DTYPES),
    *(
        {"speculative": Speculative(method=method, num_tokens=3, model=model, draft_tensor_parallel_size=1)}  # type: ignore[arg-type]
        for method, model in [
            ("ngram", None), ("draft_model", "d"), ("eagle", "h"), ("eagle3", "h"), ("mtp", None), ("medusa", "h"),
            ("suffix", None), ("mlp_speculator", "h"),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize("words", NEUTRAL, ids=str)
def test_each_word_is_said_in_flags_that_the_version_has(words: dict[str, Any]) -> None:
    spoken = 0
    for version in VERSIONS:
        try:
            made = start(version, **words)
        except VtopError as error:
            assert version in error.what, "a refusal names the version"
            assert error.remedy
            continue
        spoken += 1
        for command in made:
            if command.role != "router":
                assert flags(command.argv) <= flags_of(version), version
                assert flags(command.fallback_argv or ()) <= flags_of(version), version
    assert spoken > 0, "no version at all can do it"


OLD_NGRAM = ["--speculative-model", "[ngram]", "--num-speculative-tokens", "5", "--ngram-prompt-lookup-max", "4"]


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.6.0", [*OLD_NGRAM, "--use-v2-block-manager"]),
        ("0.6.6.post1", [*OLD_NGRAM, "--use-v2-block-manager"]),
        ("0.7.3", OLD_NGRAM),
        ("0.8.1", OLD_NGRAM),
        ("0.8.2", {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}),
        ("0.33.0", {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}),
    ],
)  # fmt: skip
def test_ngram_speculation_in_its_spellings(version: str, said: list[str] | dict[str, object]) -> None:
    plan = Speculative(method="ngram", num_tokens=5, prompt_lookup_max=4)
    words = argv(version, speculative=plan, mfu_metrics=False)
    if isinstance(said, dict):
        assert json.loads(value(words, "--speculative-config")) == said
        assert "--num-speculative-tokens" not in words
    else:
        at = words.index("--speculative-model")
        assert words[at : at + len(said)] == said
        assert ("--use-v2-block-manager" in words) == ("--use-v2-block-manager" in said)


def test_old_ngram_needs_a_longest_match_so_it_gets_one() -> None:
    assert (
        value(argv("0.6.0", speculative=Speculative(method="ngram", num_tokens=5)), "--ngram-prompt-lookup-max") == "4"
    )


DRAFT = Speculative(method="draft_model", model="d", num_tokens=3)


@pytest.mark.parametrize(
    ("version", "table"),
    [
        ("0.8.5.post1", {"model": "d", "num_speculative_tokens": 3}),
        ("0.9.2", {"model": "d", "num_speculative_tokens": 3}),
        ("0.15.1", {"method": "draft_model", "model": "d", "num_speculative_tokens": 3}),
        ("0.33.0", {"method": "draft_model", "model": "d", "num_speculative_tokens": 3}),
    ],
)
def test_a_draft_model_is_named_a_method_once_there_is_such_a_word(version: str, table: dict[str, object]) -> None:
    assert json.loads(value(argv(version, speculative=DRAFT), "--speculative-config")) == table


@pytest.mark.parametrize("version", ["0.10.0", "0.10.2", "0.11.2", "0.12.0", "0.13.0", "0.14.1"])
def test_draft_models_are_refused_where_they_were_missing(version: str) -> None:
    with pytest.raises(VtopError, match="cannot speculate with a draft model") as caught:
        start(version, speculative=DRAFT)
    assert "0.15" in caught.value.remedy


@pytest.mark.parametrize(
    ("method", "model", "there", "missing"),
    [
        ("eagle3", "h", ["0.8.3", "0.33.0"], ["0.6.0", "0.8.2"]),
        ("mtp", None, ["0.8.3", "0.33.0"], ["0.7.3"]),
        ("suffix", None, ["0.11.2", "0.33.0"], ["0.11.0"]),
        ("medusa", "h", ["0.6.0", "0.32.0"], ["0.33.0"]),
        ("mlp_speculator", "h", ["0.6.0", "0.32.0"], ["0.33.0"]),
    ],
)
def test_methods_come_and_go(method: Any, model: str | None, there: list[str], missing: list[str]) -> None:
    plan = Speculative(method=method, model=model, num_tokens=3)
    for version in there:
        start(version, speculative=plan)
    for version in missing:
        with pytest.raises(VtopError, match=f"has no speculation method {method}"):
            start(version, speculative=plan)


def test_mtp_is_one_word_only_in_newer_versions() -> None:
    plan = Speculative(method="mtp", num_tokens=1)
    old, new = (json.loads(value(argv(v, speculative=plan), "--speculative-config")) for v in ("0.10.2", "0.33.0"))
    assert old == {"num_speculative_tokens": 1}, "vLLM finds each model's own word itself"
    assert new == {"method": "mtp", "num_speculative_tokens": 1}


@pytest.mark.parametrize(
    ("version", "on", "off"),
    [
        ("0.6.0", "--enable-prefix-caching", None),
        ("0.6.4.post1", "--enable-prefix-caching", None),
        ("0.6.6.post1", "--enable-prefix-caching", "--no-enable-prefix-caching"),
        ("0.33.0", "--enable-prefix-caching", "--no-enable-prefix-caching"),
    ],
)
def test_prefix_caching_on_and_off(version: str, on: str, off: str | None) -> None:
    """Before there was a --no- form, leaving the flag out was off."""
    assert on in argv(version, prefix_caching=True)
    words = argv(version, prefix_caching=False)
    assert on not in words
    assert off is None or off in words
    assert not {word for word in argv(version) if "prefix-caching" in word}, "left to vLLM"


@pytest.mark.parametrize(
    ("version", "off"),
    [
        ("0.6.0", ["--enable-chunked-prefill", "false"]),
        ("0.8.0", ["--enable-chunked-prefill", "false"]),
        ("0.8.5.post1", ["--no-enable-chunked-prefill"]),
        ("0.33.0", ["--no-enable-chunked-prefill"]),
    ],
)
def test_chunked_prefill_off_before_and_after_the_boolean_form(version: str, off: list[str]) -> None:
    words = argv(version, chunked_prefill=False)
    at = words.index(off[0])
    assert words[at : at + len(off)] == off
    assert "--enable-chunked-prefill" in argv(version, chunked_prefill=True)


def test_without_chunked_prefill_a_whole_prompt_must_fit_a_step() -> None:
    with pytest.raises(VtopError, match="must hold a whole prompt") as caught:
        start("0.33.0", chunked_prefill=False, max_num_batched_tokens=2048, max_model_len=8192)
    assert "max_num_batched_tokens=8192" in caught.value.remedy


QUIET = {"--disable-log-requests", "--enable-log-requests", "--disable-uvicorn-access-log",
         "--disable-access-log-for-endpoints"}  # fmt: skip


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.6.0", {"--disable-log-requests"}),
        ("0.8.2", {"--disable-log-requests", "--disable-uvicorn-access-log"}),
        ("0.10.0", {"--disable-log-requests", "--disable-uvicorn-access-log"}),
        ("0.10.1.1", {"--disable-uvicorn-access-log"}),
        ("0.16.0", {"--disable-access-log-for-endpoints"}),
        ("0.17.1", {"--disable-access-log-for-endpoints"}),
        ("0.33.0", {"--disable-access-log-for-endpoints"}),
    ],
)
def test_the_log_is_kept_quiet_in_the_words_of_the_version(version: str, said: set[str]) -> None:
    words = argv(version)
    assert flags(words) & QUIET == said
    if "--disable-access-log-for-endpoints" in said:
        assert value(words, "--disable-access-log-for-endpoints") == "/metrics,/health"


@pytest.mark.parametrize(
    ("version", "there"), [("0.14.1", False), ("0.16.0", False), ("0.17.1", True), ("0.33.0", True)]
)
def test_byte_counters_are_asked_for_only_where_they_reach_the_page(version: str, there: bool) -> None:
    assert ("--enable-mfu-metrics" in argv(version)) == there
    assert "--enable-mfu-metrics" not in argv(version, mfu_metrics=False)


def test_the_shutdown_timeout_is_whole_seconds_where_there_is_one() -> None:
    (new,) = start("0.18.1", shutdown_timeout_s=3.2)
    assert value(new.argv, "--shutdown-timeout") == "4"
    assert new.shutdown_timeout_s == 4.0
    (old,) = start("0.17.1", shutdown_timeout_s=3.2)
    assert "--shutdown-timeout" not in old.argv
    assert old.shutdown_timeout_s == 0.0
    assert any("shutdown_timeout_s has no effect" in note for note in old.notes)


@pytest.mark.parametrize(
    ("words", "flag", "first"),
    [
        ({"kv_cache_memory_bytes": 1}, "--kv-cache-memory-bytes", "0.10.2"),
        ({"data_parallel": 2}, "--data-parallel-size", "0.8.3"),
    ],
)
def test_a_word_without_a_flag_is_refused_with_the_first_version(words: dict[str, Any], flag: str, first: str) -> None:
    assert flag in argv(first, **words)
    with pytest.raises(VtopError, match=f"vLLM 0.7.3 has no {flag}; vLLM {first} and newer has it"):
        start("0.7.3", **words)


@pytest.mark.parametrize(
    ("name", "there", "missing", "reason"),
    [
        ("marlin", ["0.6.0", "0.10.0"], ["0.10.1.1", "0.33.0"], "0.6.0 to 0.10.0"),
        ("squeezellm", ["0.6.0"], ["0.6.3.post1"], "vLLM 0.6.0 has it"),
        ("hqq", ["0.14.1"], ["0.15.1"], "0.14.1"),
        ("torchao", ["0.8.5"], ["0.8.0"], "0.8.5.post1 and newer"),
        ("mxfp4", ["0.10.2"], ["0.10.0"], "0.10.2 and newer"),
        ("fp8_per_block", ["0.20.2"], ["0.19.1"], "0.20.2 and newer"),
        ("nvfp4_per_token", ["0.26.0"], ["0.25.1"], "0.26.0 and newer"),
    ],
)
def test_quantization_names_come_and_go(name: str, there: list[str], missing: list[str], reason: str) -> None:
    for version in there:
        assert value(argv(version, quantization=name), "--quantization") == name
    for version in missing:
        with pytest.raises(VtopError) as caught:
            start(version, quantization=name)
        assert reason in caught.value.what
        assert caught.value.remedy.startswith("It has ")


@pytest.mark.parametrize(
    ("name", "built_in", "plugged_in", "plugin"),
    [("gguf", "0.23.0", "0.24.0", "vllm-gguf-plugin"), ("bitsandbytes", "0.27.1", "0.28.0", "vllm-bnb-plugin")],
)
def test_what_moved_into_a_plugin_is_said_and_not_refused(
    name: str, built_in: str, plugged_in: str, plugin: str
) -> None:
    assert not [note for note in start(built_in, quantization=name)[0].notes if plugin in note]
    (command,) = start(plugged_in, quantization=name)
    assert value(command.argv, "--quantization") == name
    assert any(f"needs the plugin {plugin}" in note and f"pip install {plugin}" in note for note in command.notes)
    real = replace(hypothetical_installation(plugged_in), plugins=frozenset({plugin}))
    (there,) = commands(Preset(title="T", server=spec(quantization=name)), real, port=8000, name="t")
    assert not any("pip install" in note for note in there.notes)


def test_a_deprecated_quantization_is_allowed_with_the_flag_that_it_needs() -> None:
    (command,) = start("0.33.0", quantization="fbgemm_fp8")
    assert "--allow-deprecated-quantization" in command.argv
    assert any("deprecated" in note for note in command.notes)
    assert "--allow-deprecated-quantization" not in argv("0.13.0", quantization="fbgemm_fp8")


@pytest.mark.parametrize(
    ("name", "there", "missing"),
    [("fp8", "0.6.0", None), ("bfloat16", "0.11.0", "0.10.2"), ("nvfp4", "0.20.2", "0.19.1"),
     ("int4_per_token_head", "0.25.1", "0.24.0"), ("ultraquant_4bit", "0.32.0", "0.31.0")],
)  # fmt: skip
def test_kv_cache_types_by_version(name: str, there: str, missing: str | None) -> None:
    assert value(argv(there, kv_cache_dtype=name), "--kv-cache-dtype") == name
    if missing is not None:
        with pytest.raises(VtopError, match=f"vLLM {missing} has no KV cache type {name}"):
            start(missing, kv_cache_dtype=name)


def test_what_the_installation_declares_outweighs_the_table() -> None:
    """A version that vtop has never seen is asked for its own words."""
    future = replace(
        hypothetical_installation("0.50.0"),
        quantizations=frozenset({"fp8", "one-bit"}),
        kv_cache_dtypes=frozenset({"auto", "one-bit"}),
        speculative_methods=frozenset({"eagle3"}),
    )

    def made(**words: Any) -> LaunchCommand:
        return commands(Preset(title="T", server=spec(**words)), future, port=8000, name="t")[0]

    command = made(quantization="one-bit", kv_cache_dtype="one-bit")
    assert any("0.50.0 is newer than those that vtop was written for" in note for note in command.notes)
    for words in (
        {"quantization": "awq"},
        {"kv_cache_dtype": "fp8"},
        {"speculative": Speculative(method="ngram", num_tokens=3)},
    ):
        with pytest.raises(VtopError, match=r"0\.50\.0 has no"):
            made(**words)


def test_a_flag_that_a_future_version_dropped_is_named() -> None:
    future = hypothetical_installation("0.50.0")
    without = replace(future, flags=future.flags - {"--max-num-seqs"})
    with pytest.raises(VtopError) as caught:
        commands(Preset(title="T", server=spec(max_num_seqs=3)), without, port=8000, name="t")
    assert "vLLM 0.50.0 has no --max-num-seqs" in caught.value.what


def test_a_build_without_a_version_counts_as_the_newest() -> None:
    checkout = replace(hypothetical_installation("0.33.0"), version="0.1.dev1+gabcdef", plugins=frozenset())
    made = commands(Preset(title="T", server=spec(speculative=DRAFT)), checkout, port=8000, name="t")[0]
    assert "draft_model" in value(made.argv, "--speculative-config")
    assert "--enable-mfu-metrics" in made.argv


def test_flags_that_could_not_be_read_are_taken_from_the_table() -> None:
    unreadable = replace(hypothetical_installation("0.12.0"), flags=frozenset(), plugins=frozenset())
    made = commands(Preset(title="T", server=spec(max_num_seqs=3)), unreadable, port=8000, name="t")[0]
    assert "--max-num-seqs" in made.argv
    assert any("could not be read" in note for note in made.notes)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.8.1", "0.8.0"),
        ("0.6.6", "0.6.6.post1"),
        ("0.32.0", "0.32.0"),
        ("0.34.1", "0.33.0"),
        ("v0.11.1rc2", "0.11.1"),
    ],
)
def test_a_version_in_between_counts_as_the_release_before(version: str, release: str) -> None:
    assert nearest_release(version) == release


@pytest.mark.parametrize("version", ["0.5.5", "latest", ""])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="is not a vLLM version"):
        hypothetical_installation(version)


def test_the_life_of_a_flag() -> None:
    assert lifetime("--speculative-model") == ("0.6.0", "0.8.2")
    assert lifetime("--model") == ("0.6.0", None)
    assert lifetime("--not-a-flag") is None
