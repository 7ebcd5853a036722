"""Comparisons on a real vLLM for CPU: a difference that is there is found, one that is not is not claimed.

The short ones check what must come out; the long ones put every other optimization through a comparison and check that
the table is whole and its verdict follows from its interval, whatever it is on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from driving import Vtop

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]

PRESETS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "cached": {"prefix_caching": "true"},
    "ngram": {"speculative": '{ method = "ngram", num_tokens = 5, prompt_lookup_max = 4 }'},
    "sequential": {"max_num_seqs": "1"},
    "drafted": {"speculative": '{ method = "draft_model", model = "MODELS/tiny", num_tokens = 3 }'},
    "w8a8": {"model": '"MODELS/small-w8a8"'},
    "pair": {
        "disaggregated": '{ connector = "shared-folder", prefill = 1, decode = 1, router_python = "ROOT/router" }'
    },
}
"""What each changes of `plain`: bf16, batched, no prefix cache, no speculation, one server."""


@pytest.fixture(scope="module")
def presets(vtop: Vtop, real_env: Path) -> Vtop:
    """A vtop whose user presets are those above."""
    folder = vtop.home / "config" / "presets"
    folder.mkdir(parents=True)
    plain = {
        "model": '"MODELS/small"',
        "served_name": '"small"',
        "port": '"auto"',
        "load_format": '"dummy"',
        "enforce_eager": "true",
        "max_model_len": "4096",
        "prefix_caching": "false",
        "python": '"ROOT/vllm"',
    }
    for name, changes in PRESETS.items():
        server = "\n".join(f"{key} = {value}" for key, value in {**plain, **changes}.items())
        server = server.replace("MODELS", str(real_env / "models")).replace("ROOT", str(real_env))
        text = f'title = "{name}"\n\n[server]\n{server}\n\n[server.env]\nVLLM_CPU_KVCACHE_SPACE = "1"\n'
        (folder / f"{name}.toml").write_text(text)
    return vtop


def compare(presets: Vtop, *words: str) -> list[dict[str, Any]]:
    """Runs an interleaved comparison to its end, shows its table in the test's output, returns its rows.

    Interleaved, so that each run has a start of its own: on a shared machine two starts of one preset differ more than
    two runs on one server.
    """
    outcome = presets.json("compare", *words, "--order", "interleaved", "--repeats", "3", timeout=2300)
    assert outcome["state"] == "finished", outcome["message"]
    print(presets.run("report", outcome["run_id"]).stdout)
    assert all(row["failed"] == 0 and row["runs"] == 3 for row in outcome["rows"])
    return list(outcome["rows"])


def assert_verdict_follows(row: Mapping[str, Any]) -> None:
    """The words say what the interval says."""
    low, high, verdict = row["ratio_low"], row["ratio_high"], row["verdict"]
    assert low is not None and 0 < low <= row["ratio"] <= high
    if verdict == "faster":
        assert low > 1
    elif verdict == "slower":
        assert high < 1
    else:
        assert verdict.startswith(("no difference seen (could be up to", "not comparable: ")), verdict


def test_prefix_caching_is_faster_on_shared_prefixes(presets: Vtop) -> None:
    """TTFT of 2,048 shared tokens that need not be computed again: an interval that leaves out 1, and *faster*."""
    words = ["--workload", "prefix", "-n", "30", "-c", "1", "--max-tokens", "4"]
    plain, cached = compare(presets, "plain", "cached", *words)
    assert plain["prefix_hit_rate"] is None and cached["prefix_hit_rate"] > 0.5
    assert cached["ttft_ratio_high"] < 1
    assert cached["ttft_verdict"] == "faster", cached
    assert cached["verdict"] == "faster", cached


def test_ngram_speculation_is_faster_on_text_that_repeats(presets: Vtop) -> None:
    """Greedy answers of random weights run in circles: what the look-up proposes is what comes."""
    words = ["--workload", "repeat", "-n", "8", "-c", "1", "--max-tokens", "96"]
    _, ngram = compare(presets, "plain", "ngram", *words)
    assert ngram["acceptance"] > 0.8 and ngram["tokens_per_step"] > 1.5
    assert ngram["tpot_ratio_high"] < 1
    assert ngram["verdict"] == "faster", ngram


def test_ngram_speculation_is_not_faster_on_random_text(presets: Vtop) -> None:
    """Sampled answers of random weights repeat nothing: hardly a guess, hence nothing gained.

    A 95 % interval is on the wrong side once in forty such comparisons: then it is made once more.
    """
    words = ["--workload", "random", "-n", "8", "-c", "1", "--max-tokens", "48"]
    verdicts: list[str] = []
    while len(verdicts) < 2 and (not verdicts or verdicts[-1] == "faster"):
        _, ngram = compare(presets, "plain", "ngram", *words)
        assert ngram["tokens_per_step"] is None or ngram["tokens_per_step"] < 1.1
        assert_verdict_follows(ngram)
        verdicts.append(ngram["verdict"])
    assert verdicts[-1] != "faster", verdicts


def test_a_preset_against_itself_shows_no_difference(presets: Vtop) -> None:
    """By its definition a 95 % interval leaves out 1 once in twenty such comparisons: then it is made once more."""
    words = ["--workload", "chat", "-n", "12", "-c", "1", "--max-tokens", "32"]
    verdicts: list[str] = []
    while len(verdicts) < 2 and not any(verdict.startswith("no difference seen") for verdict in verdicts):
        _, again = compare(presets, "plain", "plain", *words)
        assert_verdict_follows(again)
        verdicts.append(again["verdict"])
    assert verdicts[-1].startswith("no difference seen (could be up to"), verdicts


LONG = {
    "sequential": ("plain", ["--workload", "chat", "-n", "24", "-c", "8", "--max-tokens", "32"]),
    "drafted": ("plain", ["--workload", "repeat", "-n", "8", "-c", "1", "--max-tokens", "48"]),
    "w8a8": ("plain", ["--workload", "decode", "-n", "8", "-c", "1", "--max-tokens", "64"]),
    "pair": ("plain", ["--workload", "chat", "-n", "12", "-c", "2", "--max-tokens", "16"]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_every_other_optimization_goes_through_a_comparison(presets: Vtop, real_env: Path, name: str) -> None:
    """On this CPU it may be slower; the table must be whole and say so."""
    if name == "pair" and not (real_env / "router" / ".complete").exists():
        pytest.skip("no router: run `python3 tests/real/make_env.py --router`")
    base, words = LONG[name]
    _, row = compare(presets, *((name, base) if name == "sequential" else (base, name)), *words)
    assert_verdict_follows(row)
    assert row["output_tokens_per_s"] > 0 and row["ttft_p50_s"] > 0 and row["tpot_p50_s"] > 0
    if name == "drafted":
        assert row["acceptance"] is not None
    if name == "sequential":
        # Eight at once instead of one after the other: the one gain that no machine hides.
        assert row["ratio_low"] > 1
