"""What holds for any page, any order of its lines, any restart and any number of servers behind one address."""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_pages import NAMES, Watcher, only, over_window, parse, version_page, versions

from vtop.telemetry.prometheus import PageParser
from vtop.telemetry.to_json import engine_to_json
from vtop.telemetry.window import TAKING_TURNS
from vtop.vllm.reading import Latency

TTFT = "vllm:time_to_first_token_seconds"


def tokens_page(total: float, started: float | None) -> bytes:
    labels = 'engine="0",model_name="m"'
    lines = [] if started is None else [f"process_start_time_seconds {started}"]
    lines += [f"vllm:num_requests_running{{{labels}}} 1", f"vllm:generation_tokens_total{{{labels}}} {total}"]
    return ("\n".join(lines) + "\n").encode()


# --- windows ------------------------------------------------------------------------------------------------------


@dataclass
class Process:
    """One run of one server."""

    started: float
    total: int = 0


WHO = st.sampled_from([0] * 8 + [1, 2])
STEP = st.tuples(st.integers(1, 9), WHO, st.integers(0, 5000), st.sampled_from([False] * 5 + [True]))


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, min_size=2, max_size=25), st.floats(2, 30))
def test_a_rate_is_always_one_process_own_growth_whoever_answers_and_whenever_it_restarts(
    steps: list[tuple[int, int, int, bool]], window_s: float
) -> None:
    """Up to three servers behind one address, each of which may restart; the process start tells them apart."""
    watcher = Watcher(window_s)
    processes = {0: Process(1.0, 10), 1: Process(2.0, 90_000), 2: Process(3.0, 400)}
    youngest, at_s = 3.0, 0
    seen: list[tuple[int, float, int]] = []
    for gap, who, tokens, restarts in steps:
        at_s += gap
        if restarts:
            youngest += 1
            processes[who] = Process(youngest)
        answering = processes[who]
        answering.total += tokens
        seen.append((at_s, answering.started, answering.total))
        engine = only(watcher.see(at_s, tokens_page(answering.total, answering.started)))
        assert engine.running == 1
        if engine.generation_tokens_per_s is None:
            assert engine.missing["generation_tokens_per_s"]
            continue
        began = round(at_s - engine.window_s)
        within = [(started, total) for then, started, total in seen if then >= began]
        assert {started for started, _ in within} == {answering.started}, "no window spans two processes"
        assert engine.generation_tokens_per_s * engine.window_s == pytest.approx(answering.total - within[0][1])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5000), st.booleans()), min_size=2, max_size=25),
    st.floats(2, 30),
)
def test_without_a_process_start_a_restart_never_adds_tokens(
    steps: list[tuple[int, int, bool]], window_s: float
) -> None:
    """What the counters hide may be missing from a rate, but a rate is never more than what was generated."""
    watcher = Watcher(window_s)
    at_s, total, generated = 0, 70, 70
    truth: dict[int, int] = {}
    for gap, tokens, restarts in steps:
        at_s += gap
        total = tokens if restarts else total + tokens
        generated += tokens
        truth[at_s] = generated
        engine = only(watcher.see(at_s, tokens_page(total, None)))
        if engine.generation_tokens_per_s is not None:
            counted = engine.generation_tokens_per_s * engine.window_s
            assert -1e-6 <= counted <= truth[at_s] - truth[round(at_s - engine.window_s)] + 1e-6


def test_an_older_process_after_a_younger_one_is_another_server_and_not_a_restart() -> None:
    watcher = Watcher(10)
    watcher.see(0, tokens_page(100, started=7))
    engine = only(watcher.see(5, tokens_page(50_000, started=3)))
    assert not engine.restarted
    assert engine.missing["generation_tokens_per_s"] == TAKING_TURNS


OBSERVED = st.lists(st.floats(0, 100), max_size=25)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(0.001, 90), min_size=1, max_size=8, unique=True).map(sorted),
    st.lists(st.tuples(OBSERVED, OBSERVED), min_size=1, max_size=3),
)
def test_the_bucket_that_is_shown_holds_the_true_percentile_of_all_engines_together(
    edges: list[float], engines: list[tuple[list[float], list[float]]]
) -> None:
    def page(moment: int) -> bytes:
        lines = []
        for number, halves in enumerate(engines):
            values = sorted(halves[0] + (halves[1] if moment else []))
            labels = f'engine="{number}",model_name="m"'
            lines.append(f"vllm:num_requests_running{{{labels}}} 1")
            lines += [f'{TTFT}_bucket{{{labels},le="{edge!r}"}} {bisect.bisect_right(values, edge)}' for edge in edges]
            lines.append(f'{TTFT}_bucket{{{labels},le="+Inf"}} {len(values)}')
            lines += [f"{TTFT}_count{{{labels}}} {len(values)}", f"{TTFT}_sum{{{labels}}} {math.fsum(values)!r}"]
        return ("\n".join(lines) + "\n").encode()

    found: Latency | None = only(over_window([page(0), page(1)])).ttft
    window = sorted(value for _, later in engines for value in later)
    if not window:
        assert found is None
        return
    assert found is not None
    assert found.count == len(window)
    assert found.mean_s == pytest.approx(math.fsum(window) / len(window), abs=1e-9)
    for share, quantile in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        truth = window[math.ceil(share * len(window)) - 1]
        assert quantile is not None
        assert quantile.low_s <= truth
        assert quantile.high_s is None or truth <= quantile.high_s
        assert (quantile.value_s is None) == (quantile.high_s is None)
        if quantile.value_s is not None and quantile.high_s is not None:
            assert quantile.low_s <= quantile.value_s <= quantile.high_s


# --- pages --------------------------------------------------------------------------------------------------------


def shuffled(body: bytes, seed: int) -> bytes:
    """The same samples in another order, as a merged page may have them."""
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    random.Random(seed).shuffle(lines)
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.parametrize("version", versions())
def test_the_order_of_lines_does_not_matter(version: str) -> None:
    body = version_page(version)
    more = body.replace(b"} 1\n", b"} 3\n")
    plain = engine_to_json(only(over_window([body, more])))
    for seed in range(3):
        mixed = engine_to_json(only(over_window([shuffled(body, seed), shuffled(more, seed + 10)])))
        assert mixed == plain


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(versions()), st.floats(0, 1))
def test_a_page_cut_anywhere_is_noticed_or_has_only_true_values(version: str, where: float) -> None:
    body = version_page(version)
    whole = parse(body)
    truth = dict(zip(whole.layout.series, whole.values, strict=True))
    page = parse(body[: int(where * len(body))])
    if page.complete:
        for series, value in zip(page.layout.series, page.values, strict=True):
            assert repr(value) == repr(truth[series])


BLANK = st.text(" \t", max_size=2)
END = st.sampled_from(["", " ", "\r", " 1760000000123", ' # {trace_id="a b"} 0.5', ' 17 # {a="}"} 0.5 1.6e9'])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.floats(0, 1e12), st.lists(BLANK, min_size=6, max_size=6), st.booleans(), END),
        min_size=1,
        max_size=8,
        unique_by=lambda drawn: drawn[0],
    )
)
def test_every_legal_spelling_of_a_page_reads_the_same(
    drawn: list[tuple[int, float, list[str], bool, str]],
) -> None:
    """Blanks, a trailing comma, timestamps, exemplars and CRLF say nothing; a parser that remembers lines agrees."""
    text = ""
    for number, value, blank, comma, end in drawn:
        last = "," * comma
        labels = f'{blank[1]}engine{blank[2]}={blank[3]}"{number}"{blank[4]},model_name="m"{last}{blank[5]}'
        text += f"{blank[0]}vllm:num_requests_running{{{labels}}} {value!r}{end}\n"
    expected = [(str(number), value) for number, value, *_ in drawn]
    parser = PageParser(NAMES)
    for _ in range(2):
        page = parser.parse(text.encode())
        assert page.bad_lines == 0
        assert [
            (dict(series.labels)["engine"], value)
            for series, value in zip(page.layout.series, page.values, strict=True)
        ] == expected
