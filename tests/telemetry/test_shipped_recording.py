"""The recording that `vtop replay demo` plays: it loads, shows a real run from start to stop, gives nothing away."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from vtop.clock import FakeClock
from vtop.commands.replay import recording
from vtop.servers.status import ServerState
from vtop.service.replaying import ReplayService
from vtop.telemetry.recording import Replay
from vtop.telemetry.snapshot import Snapshot

FILE = recording("demo")
MOST_BYTES = 300 * 1024


def _every_snapshot(replay: Replay) -> list[Snapshot]:
    found: dict[int, Snapshot] = {}
    moment = 0.0
    while moment <= replay.duration_s:
        replay.seek(moment)
        found[replay.snapshot().sequence] = replay.snapshot()
        moment += 0.25
    return list(found.values())


def test_shows_a_real_server_start_work_and_stop() -> None:
    replay = Replay(FILE, FakeClock())
    snapshots = _every_snapshot(replay)
    assert not replay.cut
    assert len(snapshots) > 30
    assert all(snapshot.replayed and not snapshot.simulated for snapshot in snapshots)
    states = [view.status.state for snapshot in snapshots for view in snapshot.servers]
    order = [ServerState.STARTING, ServerState.READY, ServerState.STOPPED]
    assert [states.index(state) for state in order] == sorted(states.index(state) for state in order)
    engines = [engine for snapshot in snapshots for view in snapshot.servers for engine in view.engines]
    assert max(engine.generation_tokens_per_s or 0.0 for engine in engines) > 100
    assert any(engine.ttft is not None for engine in engines)


async def test_plays_through_the_facade_of_the_screen() -> None:
    service = ReplayService(FILE, speed=8.0)
    await service.open()
    try:
        seen: list[Snapshot] = []
        leave = service.subscribe(seen.append)
        service.replay.seek(service.replay.duration_s / 2)
        leave()
        assert service.snapshot().servers[0].status.model == "tiny"
        assert seen
    finally:
        await service.close()


def test_gives_away_no_path_no_address_but_loopback_and_no_key() -> None:
    text = gzip.decompress(FILE.read_bytes()).decode()
    assert re.findall(r'"[^"]*(?:/(?:home|root|tmp|work|usr|opt|var|etc)/)[^"]*"', text) == []
    assert set(re.findall(r"\d+\.\d+\.\d+\.\d+", text)) == {"127.0.0.1"}
    assert re.search(r"(?i)api[-_]?key|bearer|hf_[a-z0-9]{8}|sk-[a-z0-9]{8}", text) is None


def test_is_small() -> None:
    assert FILE.stat().st_size < MOST_BYTES


def test_a_file_named_demo_comes_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recording("demo") == FILE
    Path("demo").touch()
    assert recording("demo") == Path("demo")
