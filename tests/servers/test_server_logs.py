"""Logs stay small and readable: floods, rotation, partial lines, bars, garbage."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from pathlib import Path

import pytest
from fake_servers import QUICK, eventually, fake

from vtop.servers import logs
from vtop.servers.logs import LogTail, clean_line, follow, last_lines, last_raw_lines, rotate_if_large, rotated_path
from vtop.servers.supervisor import Supervisor


def add(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = LogTail(log)
    assert tail.read() == []
    add(log, b"one\ntw")
    assert tail.read() == ["one"]
    assert tail.rest() == "tw"
    add(log, b"o\r\nthree\n")
    assert tail.read() == ["two", "three"]


def test_truncation_and_replacement_begin_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(log, b"a long first line\n")
    tail = LogTail(log)
    assert tail.read() == ["a long first line"]
    os.truncate(log, 0)
    add(log, b"cut\n")
    assert tail.read() == ["cut"]
    log.rename(tmp_path / "previous")
    add(log, b"another file that is longer\n")
    assert tail.read() == ["another file that is longer"]


def test_a_ten_megabyte_line_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(log, b"x" * 10_000_000 + b"\nnext\n")
    tail = LogTail(log)
    lines = [line for _ in range(4) for line in tail.read()]
    assert [len(line) for line in lines] == [logs.LONGEST_LINE_BYTES, 4]
    assert lines[1] == "next"
    assert last_lines(log, 1) == ["next"]
    assert len(last_raw_lines(log, 2)[0]) <= logs.LONGEST_LINE_BYTES


def test_an_endless_progress_bar_shows_its_newest_state(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = LogTail(log, longest_line_bytes=1000)
    add(log, b"".join(b"\rLoading: %3d%%" % step for step in range(101)))
    lines = tail.read()
    assert clean_line(lines[-1]) == "Loading: 100%" or tail.rest() == "Loading: 100%"
    add(log, b"\rLoading: done\n")
    assert clean_line(tail.read()[-1]) == "Loading: done"


def test_garbage_becomes_plain_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(log, b"\xff\xfe\x1b[31mred\x1b[0m [bold]not markup[/bold]\x07\x1b]0;title\x07\n")
    (line,) = last_lines(log, 5)
    assert line == "\ufffd\ufffdred [bold]not markup[/bold]"


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(log, b"".join(b"line %d\n" % number for number in range(200_000)))
    assert last_lines(log, 3) == ["line 199997", "line 199998", "line 199999"]
    assert last_lines(tmp_path / "missing", 3) == []
    assert last_lines(log, 0) == []


def test_rotation_keeps_the_end_and_the_writer_goes_on_at_the_front(tmp_path: Path) -> None:
    """The server holds the file open in append mode, so cutting in place is enough."""
    log = tmp_path / "log"
    with open(log, "ab", buffering=0) as server:
        for number in range(1000):
            server.write(b"line %d\n" % number)
        assert not rotate_if_large(log, above_bytes=1_000_000)
        assert rotate_if_large(log, above_bytes=1000, kept_bytes=100)
        server.write(b"after\n")
    assert log.read_bytes() == b"after\n"
    assert rotated_path(log).stat().st_size == 100
    assert last_lines(log, 3) == ["line 998", "line 999", "after"]


def test_a_log_on_a_full_disk_is_cut_nevertheless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    add(log, b"x" * 5000)
    real_open = os.open

    def full(path: object, *arguments: object) -> int:
        if str(path).endswith(".1"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        rotate_if_large(log, above_bytes=1000)
    assert log.stat().st_size == 0


async def test_a_flood_stays_bounded_while_the_server_runs(root: Path) -> None:
    """Two megabytes a second: the file is cut again and again, and the end stays readable."""
    limit = 300_000
    one = Supervisor(root, patience=QUICK, rotate_above_bytes=limit)
    await one.open()
    await one.start("one", "baseline", [fake("--flood", "2000000")])
    await one.wait_ready("one", 30)
    log = one.log_path("one")
    sizes: list[int] = []

    def cut_twice() -> bool:
        sizes.append(log.stat().st_size)
        return sum(after < before for before, after in itertools.pairwise(sizes)) >= 2

    await eventually(cut_twice)
    assert rotated_path(log).stat().st_size <= limit // 8
    assert last_lines(log, 1)[0].startswith("x")
    assert (await one.stop("one")).stopped
    await one.close()


async def test_following_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(log, b"old\nlast\n")
    lines = follow(log, last=1, interval_s=0.01)
    assert await anext(lines) == "last"
    waiting = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0.05)
    add(log, b"\x1b[32mgreen\x1b[0m\n")
    assert await asyncio.wait_for(waiting, 20) == "green"
    await lines.aclose()  # type: ignore[attr-defined]


async def test_what_is_written_while_the_last_lines_are_read_comes_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(log, b"one\ntwo\n")
    lines = follow(log, last=2, interval_s=0.01)
    assert await anext(lines) == "one"
    add(log, b"three\n")
    assert await anext(lines) == "two"
    assert await asyncio.wait_for(anext(lines), 20) == "three"
    await lines.aclose()  # type: ignore[attr-defined]


def test_the_last_lines_before_a_place(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(log, b"one\ntwo\nthree\n")
    assert last_raw_lines(log, 2, end=8) == ["one", "two"]
    assert last_raw_lines(log, 2, end=999) == ["two", "three"]
    assert last_raw_lines(log, 2, end=0) == []
