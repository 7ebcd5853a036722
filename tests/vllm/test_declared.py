"""Flags and words read from the source text of vLLM, in the ways that it was written over the years."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_installs import MIDDLE_ENGINE, NEW_SOURCES, OLD_SOURCES, write_package

from vtop.vllm.declared import read_declared


def test_flags_that_are_written_out(tmp_path: Path) -> None:
    flags = read_declared(write_package(tmp_path, OLD_SOURCES)).flags
    assert flags == {
        "--model", "--tensor-parallel-size", "--enable-prefix-caching", "--enable-chunked-prefill",
        "--disable-log-requests", "--speculative-model", "--host", "--port",
    }  # fmt: skip


def test_boolean_flags_have_a_twin(tmp_path: Path) -> None:
    flags = read_declared(write_package(tmp_path, {**OLD_SOURCES, "engine/arg_utils.py": MIDDLE_ENGINE})).flags
    assert "--no-enable-prefix-caching" in flags
    assert "--no-enable-chunked-prefill" not in flags


def test_flags_that_are_generated_from_config_classes(tmp_path: Path) -> None:
    flags = read_declared(write_package(tmp_path, NEW_SOURCES)).flags
    twins = {flag for flag in flags if flag.startswith("--no-")}
    assert twins == {
        "--no-enforce-eager", "--no-enable-prefix-caching", "--no-trust-remote-code",
        "--no-enable-log-outputs", "--no-disable-uvicorn-access-log",
    }  # fmt: skip
    assert flags - twins == {
        "--model", "--enforce-eager", "--enable-prefix-caching", "--trust-remote-code", "--max-model-len", "--longest",
        "--speculative-config", "--chat-template", "--enable-log-outputs", "--host", "--disable-uvicorn-access-log",
        "--headless",
    }  # fmt: skip


def test_lists_of_words_are_followed_through_other_lists(tmp_path: Path) -> None:
    declared = read_declared(write_package(tmp_path, NEW_SOURCES))
    assert declared.speculative_methods == {"ngram", "suffix", "eagle", "eagle3", "deepseek_mtp", "mtp"}
    assert declared.kv_cache_dtypes == {"auto", "fp8", "nvfp4"}
    assert declared.quantizations == {"awq", "fp8"}


def test_a_list_that_names_itself_ends(tmp_path: Path) -> None:
    sources = {"config/cache.py": 'CacheDType = Literal["auto", CacheDType]\n'}
    assert read_declared(write_package(tmp_path, sources)).kv_cache_dtypes == {"auto"}


def test_flags_are_read_although_there_is_no_place_for_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VTOP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert "--model" in read_declared(write_package(tmp_path, OLD_SOURCES)).flags
