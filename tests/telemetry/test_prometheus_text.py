"""The text format: what is read, what is dropped, and that nothing a page can hold makes the parser fail."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_pages import NAMES, parse, version_page

from vtop.telemetry.prometheus import PageParser, family_names

RUNNING = "vllm:num_requests_running"


def one(line: str) -> tuple[dict[str, str], float]:
    page = parse((line + "\n").encode())
    assert page.bad_lines == 0
    assert len(page.values) == 1
    return dict(page.layout.series[0].labels), page.values[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.5e+03", 1500),
        ("-2", -2),
        ("+3", 3),
        ("1E-3", 0.001),
        (".5", 0.5),
        ("+Inf", math.inf),
        ("0x", None),
    ],
)
def test_numbers(text: str, value: float | None) -> None:
    page = parse(f'{RUNNING}{{model_name="m"}} {text}\n'.encode())
    assert list(page.values) == ([] if value is None else [value])
    assert page.bad_lines == (1 if value is None else 0)


def test_nan_is_kept_as_nan() -> None:
    assert math.isnan(one(f'{RUNNING}{{model_name="m"}} NaN')[1])


@pytest.mark.parametrize(
    "line",
    [
        RUNNING + '{model_name="m",engine="0"} 4',
        RUNNING + ' { model_name = "m" , engine = "0" , } 4',
        RUNNING + '{engine="0",model_name="m"} 4 1760000000123',
        RUNNING + '{engine="0",model_name="m"}\t4',
        "  " + RUNNING + '{engine="0",model_name="m"} 4 ',
        RUNNING + '{engine="0",model_name="m"} 4\r',
        RUNNING + '{engine="0",model_name="m"} 4 # {trace_id="a b#}c"} 0.5 1.6e9',
    ],
)
def test_one_sample_in_every_legal_spelling(line: str) -> None:
    assert one(line) == ({"model_name": "m", "engine": "0"}, 4)


def test_the_same_line_is_read_the_same_when_its_labels_are_remembered() -> None:
    parser = PageParser(NAMES)
    first = parser.parse(f'{RUNNING}{{model_name="a 1 2"}} 4\n'.encode())
    again = parser.parse(f'{RUNNING}{{model_name="a 1 2"}} 5\n'.encode())
    stamped = parser.parse(f'{RUNNING}{{model_name="a 1 2"}} 6 1760000000123\n'.encode())
    assert [page.values[0] for page in (first, again, stamped)] == [4, 5, 6]
    assert first.layout is again.layout is stamped.layout


def test_only_exact_names_are_kept() -> None:
    text = "".join(
        f'{name}{{model_name="m"}} 1\n'
        for name in (
            "vllm:generation_tokens_total",
            "vllm:generation_tokens_created",
            "vllm:generation_tokens_total_extra",
            "xvllm:generation_tokens_total",
            "vllm:generation_tokens",
        )
    )
    assert [series.name for series in parse(text.encode()).layout.series] == ["vllm:generation_tokens_total"]


def test_of_a_series_that_stands_twice_on_a_page_the_later_line_counts_once() -> None:
    page = parse(f'{RUNNING}{{model_name="m"}} 1\n{RUNNING}{{model_name="m"}} 2\n'.encode())
    assert list(page.values) == [2]


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.8, 0.99])
def test_a_page_cut_in_the_middle_is_not_complete(keep: float) -> None:
    body = version_page("0.32.0")
    page = parse(body[: int(len(body) * keep)])
    assert not page.complete or body[: int(len(body) * keep)].endswith(b"\n")


def test_a_page_cut_between_two_lines_of_a_histogram_is_not_complete() -> None:
    body = version_page("0.32.0")
    end = body.index(b"vllm:e2e_request_latency_seconds_count")
    assert not parse(body[:end]).complete


def test_openmetrics_without_its_eof_is_not_complete() -> None:
    parser = PageParser(NAMES)
    assert not parser.parse(b'vllm:num_requests_running{model_name="m"} 1\n', openmetrics=True).complete
    assert parser.parse(b'vllm:num_requests_running{model_name="m"} 1\n# EOF\n', openmetrics=True).complete


def test_unreadable_lines_are_counted_and_the_others_are_read() -> None:
    lines = ('{model_name="m} 1', '{model_name="m"} 2', '{model_name="n"} x')
    page = parse("".join(f"{RUNNING}{line}\n" for line in lines).encode())
    assert list(page.values) == [2]
    assert page.bad_lines == 2


def test_labels_that_are_not_utf8_are_shown_with_a_mark() -> None:
    page = parse(RUNNING.encode() + b'{model_name="caf\xe9"} 1\n')
    assert dict(page.layout.series[0].labels) == {"model_name": "caf\ufffd"}


def test_family_names_come_from_samples_and_from_type_comments() -> None:
    assert family_names(b"# HELP a x\n# TYPE sglang:x gauge\nllamacpp:y 1\n") == ("sglang:x", "llamacpp:y")


def test_memory_of_remembered_labels_is_bounded() -> None:
    parser = PageParser(NAMES)
    for page in range(30):
        lines = (f'vllm:lora_requests_info{{running_lora_adapters="a{page}-{n}"}} 1' for n in range(2000))
        parser.parse(("\n".join(lines) + "\n").encode())
    assert len(parser._known) < 30_000


def test_a_10_mb_page_is_read_whole() -> None:
    lines = [line for line in version_page("0.32.0").decode().splitlines() if line.startswith("vllm:")]
    big = "\n".join(line.replace('engine="0"', f'engine="{n}"') for n in range(260) for line in lines).encode() + b"\n"
    assert len(big) > 10_000_000
    page = parse(big)
    assert page.bad_lines == 0
    assert sum(series.name == RUNNING for series in page.layout.series) == 260


LABEL_VALUE = st.text(max_size=30)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@given(st.lists(LABEL_VALUE.filter(lambda text: "\r" not in text), unique=True, max_size=8), st.floats())
def test_any_label_value_comes_back_as_it_was_written(models: list[str], value: float) -> None:
    models = [model.encode("utf-8", "ignore").decode() for model in models]
    models = list(dict.fromkeys(models))
    text = "".join(f'{RUNNING}{{model_name="{escaped(model)}",engine="0"}} {value!r}\n' for model in models)
    parser = PageParser(NAMES)
    for _ in range(2):
        page = parser.parse(text.encode())
        assert [dict(series.labels)["model_name"] for series in page.layout.series] == models
        assert all(found == value or (math.isnan(found) and math.isnan(value)) for found in page.values)


NOISE = st.lists(
    st.one_of(
        st.binary(max_size=80),
        st.sampled_from(
            [
                b'vllm:num_requests_running{model_name="m"} 1',
                b"vllm:num_requests_running{",
                b'vllm:num_requests_running{model_name="m',
                b"vllm:num_requests_running",
                b"vllm:num_requests_running 1 2 3 4",
                b'vllm:time_to_first_token_seconds_bucket{le="x",model_name="m"} 1',
                b"# TYPE vllm:num_requests_running",
                b"process_start_time_seconds 1",
            ]
        ),
    ),
    max_size=20,
)


@settings(max_examples=200)
@given(NOISE)
def test_no_page_makes_the_parser_fail_and_two_readings_agree(lines: list[bytes]) -> None:
    parser = PageParser(NAMES)
    body = b"\n".join(lines)
    first, second = parser.parse(body), parser.parse(body)
    assert first.layout.series == second.layout.series
    assert repr(first.values) == repr(second.values)
    assert len(first.layout.series) == len(first.values) == len(set(first.layout.series))
