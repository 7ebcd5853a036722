"""The machine and process trees."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from vtop.telemetry.host import HostSource, container_memory


def test_the_machine(tmp_path: Path) -> None:
    source = HostSource(tmp_path)
    first, second = source.read_host(), source.read_host()
    assert first.cpu_percent is None, "a percentage needs two looks"
    assert second.cpu_percent is not None and 0 <= second.cpu_percent <= 100
    assert second.memory_total_bytes is not None and second.memory_used_bytes is not None
    assert 0 < second.memory_used_bytes < second.memory_total_bytes
    assert second.cpu_count is not None and second.cpu_count >= 1
    assert second.hostname


def test_reading_does_not_block(tmp_path: Path) -> None:
    source = HostSource(tmp_path)
    begun_s = time.perf_counter()
    for _ in range(5):
        source.read_host()
    assert time.perf_counter() - begun_s < 2.0


def test_limits_of_a_container_count_instead_of_the_machines(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1073741824\n")
    (tmp_path / "memory.current").write_text("800000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 300000000\nactive_file 7\n")
    assert container_memory(tmp_path) == (500000000, 1073741824)
    reading = HostSource(tmp_path).read_host()
    assert (reading.memory_used_bytes, reading.memory_total_bytes) == (500000000, 1073741824)


def test_older_cgroups_and_no_limit(tmp_path: Path) -> None:
    assert container_memory(tmp_path) is None
    old = tmp_path / "memory"
    old.mkdir()
    (old / "memory.usage_in_bytes").write_text("500\n")
    (old / "memory.stat").write_text("total_inactive_file 100\n")
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert container_memory(tmp_path) is None
    (old / "memory.limit_in_bytes").write_text("2000\n")
    assert container_memory(tmp_path) == (400, 2000)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1\n")
    (tmp_path / "memory.stat").write_text("")
    assert container_memory(tmp_path) == (400, 2000), "no limit in version 2: version 1 is looked at"


def test_a_process_tree_together() -> None:
    code = "import sys, time\nend = time.time() + 60\nsys.stdin.read(1)\nwhile time.time() < end: pass\n"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        source = HostSource()
        first = source.read_tree([os.getpid(), child.pid])
        assert first.processes == 2 and first.cpu_percent is None, "not 0: it was not measured yet"
        assert first.rss_bytes is not None and first.rss_bytes > 2**20
        assert child.stdin is not None
        child.stdin.write(b"x")
        child.stdin.flush()
        end_s = time.monotonic() + 30
        busy = 0.0
        while busy < 20 and time.monotonic() < end_s:
            time.sleep(0.2)
            busy = source.read_tree([child.pid]).cpu_percent or 0.0
        assert busy >= 20, "a busy child shows"
    finally:
        child.kill()
        child.wait()
    gone = source.read_tree([child.pid])
    assert (gone.processes, gone.cpu_percent, gone.rss_bytes) == (0, None, None)
