from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtop.load.answer import read_answer
from vtop.load.sse import SseParser

DATA = Path(__file__).parent / "data"
STREAMS = sorted(DATA.glob("*.sse"))


def parse(*reads: bytes, close: bool = False) -> list[bytes]:
    parser = SseParser()
    events = [event for read in reads for event in parser.feed(read)]
    return events + (parser.close() if close else [])


def test_lines_may_end_with_lf_crlf_or_cr() -> None:
    assert parse(b"data: a\n\ndata: b\r\n\r\ndata: c\r\r") == [b"a", b"b", b"c"]


def test_a_crlf_cut_between_two_reads_is_one_line_end() -> None:
    assert parse(b"data: a\r", b"\n\r", b"\ndata: b\n\n") == [b"a", b"b"]


def test_the_event_counts_at_the_cr_of_its_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\n") == []


def test_a_byte_order_mark_is_read_over_even_cut_in_the_middle() -> None:
    assert parse(b"\xef", b"\xbb", b"\xbfdata: a\n\n") == [b"a"]


def test_the_space_after_the_colon_is_optional_and_only_one_is_dropped() -> None:
    assert parse(b"data:a\n\ndata:  b\n\n") == [b"a", b" b"]


def test_comments_ids_events_and_retries_are_no_events() -> None:
    assert parse(b": ping\n\n:\n\nid: 7\nevent: ping\nretry: 10\n\ndata:\n\ndata\n\n") == []


def test_data_lines_of_one_event_are_joined() -> None:
    assert parse(b"data: a\ndata: b\n\n") == [b"a\nb"]


def test_an_event_without_its_blank_line_comes_only_with_an_orderly_end() -> None:
    assert parse(b"data: a\n\ndata: [DONE]") == [b"a"]
    assert parse(b"data: a\n\ndata: [DONE]", close=True) == [b"a", b"[DONE]"]


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    pieces = [
        "data: ",
        "data:",
        "data",
        ":",
        " ",
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "\ufeff",
        "é",
        "\U0001f680",
        '{"a":1}',
        "[DONE]",
    ]
    text = "".join(draw(st.lists(st.sampled_from(pieces), max_size=40)))
    data = text.encode()
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=12))
    return data, sorted(cuts)


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(borders)]


@given(cut_streams())
def test_any_cut_of_any_stream_gives_the_same_events(case: tuple[bytes, list[int]]) -> None:
    data, cuts = case
    assert parse(*_cut(data, cuts), close=True) == parse(data, close=True)


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_a_recorded_stream_reads_the_same_byte_by_byte(path: Path) -> None:
    data = path.read_bytes()
    whole = read_answer([(1.0, data)], ended_in_order=True)
    bytewise = read_answer([(1.0, data[i : i + 1]) for i in range(len(data))], ended_in_order=True)
    assert bytewise == whole


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 3000), max_size=10))
def test_a_recorded_stream_reads_the_same_however_it_is_cut(path: Path, cuts: list[int]) -> None:
    data = path.read_bytes()
    reads = [(1.0, part) for part in _cut(data, sorted(min(cut, len(data)) for cut in cuts))]
    assert read_answer(reads, ended_in_order=True) == read_answer([(1.0, data)], ended_in_order=True)
