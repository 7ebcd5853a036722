"""Snapshots as JSON, recordings and their replay."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import math
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hub_parts import gpu, server
from metric_pages import over_window, version_page

from vtop.clock import FakeClock
from vtop.errors import VtopError
from vtop.telemetry.history import HistoryStore
from vtop.telemetry.recording import Recorder, Replay
from vtop.telemetry.snapshot import (
    Event,
    GpuProcess,
    GpuStatus,
    HostReading,
    ServerView,
    Snapshot,
    TreeReading,
    Verdict,
)
from vtop.telemetry.to_json import snapshot_from_json, snapshot_to_json
from vtop.vllm.reading import EngineReading, Latency, Quantile, ScrapeStatus


@functools.cache
def engine(tokens_per_s: float = 240.0) -> EngineReading:
    """A full reading of the newest page, with a quantile beyond the last bound."""
    body = version_page("0.32.0")
    lines = (line for line in body.decode().splitlines() if line.startswith("vllm:"))
    zeros = "\n".join(line.rsplit(" ", 1)[0] + " 0" for line in lines) + "\n"
    (found,) = over_window([zeros.encode(), body])
    beyond = Latency(12.0, 3, Quantile(0.15, 0.1, 0.25), Quantile(None, 2560.0, None), None, 4.0)
    return replace(found, ttft=beyond, generation_tokens_per_s=tokens_per_s)


def snapshot(sequence: int = 1, at_s: float = 100.0, **more: object) -> Snapshot:
    """One of everything."""
    status = server("a", "http://me:pw@p@127.0.0.1:8000", model="m", pids=(1, 2), gpu_uuids=("GPU-1",), simulated=True)
    view = ServerView(
        status,
        ScrapeStatus("ok", last_ok_age_s=0.1, duration_s=0.004),
        (engine(sequence * 10.0),),
        TreeReading(2, 30.0, 1 << 30),
        Verdict("bandwidth", "bandwidth-bound", "try fp8", 0.007, (("weights", "14.2 GB"),)),
        2.5,
    )
    values: dict[str, object] = {
        "sequence": sequence,
        "at_s": at_s,
        "at_wall_s": 1.8e9 + at_s,
        "window_s": 10.0,
        "host": HostReading("box", 12.5, 2, 1 << 33, 1 << 34, 0.5),
        "gpu_status": GpuStatus(True, driver="570.1"),
        "gpus": (gpu(processes=(GpuProcess(812, None),), throttle=("power cap",)),),
        "servers": (view,),
        "history": HistoryStore(),
        "events": (Event(at_s - 1, "state", "a", "starting → ready"),),
        "simulated": True,
        **more,
    }
    return Snapshot(**values)  # type: ignore[arg-type]


def same(left: object, right: object) -> bool:
    """Equality through the shapes that compare by identity."""
    if type(left) is not type(right) and not isinstance(left, (dict, int, float, Sequence)):
        return False
    if hasattr(left, "__dataclass_fields__"):
        names = [field.name for field in fields(left) if field.name != "history"]  # type: ignore[arg-type]
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, (tuple, list)):
        pairs = zip(left, right, strict=True)  # type: ignore[call-overload]
        return all(same(one, other) for one, other in pairs)
    return left == right


def test_a_snapshot_comes_back_from_its_json_as_it_was_but_for_the_password() -> None:
    before = snapshot()
    text = json.dumps(snapshot_to_json(before), allow_nan=False)
    after = snapshot_from_json(json.loads(text), HistoryStore())
    (view,) = before.servers
    status = replace(view.status, url="http://127.0.0.1:8000")
    assert same(replace(before, servers=(replace(view, status=status),)), after)


def test_keys_say_their_units_and_unknown_is_null() -> None:
    data = snapshot_to_json(snapshot())
    reading = data["servers"][0]["engines"][0]
    assert reading["ttft_mean_s"] == 12.0
    assert reading["ttft_count"] == 3
    assert reading["ttft_p50_s"] == 0.15
    assert (reading["ttft_p95_s"], reading["ttft_p95_low_s"], reading["ttft_p95_high_s"]) == (None, 2560.0, None)
    assert reading["ttft_age_s"] == 4.0
    assert reading["kv_usage_share"] == 0.0
    assert reading["swapped"] is None
    assert reading["missing"]["swapped"]
    assert reading["speculation"]["acceptance_share"] == 1.0
    assert data["servers"][0]["status"]["state"] == "ready"
    assert data["gpus"][0]["bandwidth"]["bytes_per_s"] == 2.0952e12
    assert "history" not in data


def test_no_number_in_the_json_is_not_a_number() -> None:
    broken = replace(snapshot(), gpus=(replace(gpu(), power_w=math.nan, temperature_c=math.inf),))
    data = snapshot_to_json(broken)
    json.dumps(data, allow_nan=False)
    assert (data["gpus"][0]["power_w"], data["gpus"][0]["temperature_c"]) == (None, None)


@pytest.mark.parametrize("data", [{}, {"sequence": "x"}, {"sequence": 1, "at_s": 0, "at_wall_s": 0, "window_s": None}])
def test_what_is_no_snapshot_is_a_value_error(data: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        snapshot_from_json(data, HistoryStore())


def recorded(path: Path, count: int = 20, step_s: float = 1.0) -> Path:
    recorder = Recorder(path, FakeClock())
    for number in range(count):
        at_s = 100.0 + number * step_s
        event = Event(at_s, "state", "a", f"event {number}")
        recorder.write(snapshot(number + 1, at_s, events=(event,)))
    recorder.close()
    return path


def tokens(replay: Replay) -> float:
    found = replay.snapshot().servers[0].engines[0].generation_tokens_per_s
    assert found is not None
    return found


def test_a_recording_is_played_back_at_its_own_pace(tmp_path: Path) -> None:
    clock = FakeClock()
    replay = Replay(recorded(tmp_path / "r.gz"), clock)
    seen: list[int] = []
    replay.subscribe(lambda found: seen.append(found.sequence))
    assert replay.duration_s == 19
    assert (tokens(replay), replay.snapshot().replayed, replay.snapshot().simulated) == (10, True, True)
    clock.advance(0.5)
    assert replay.advance() == pytest.approx(0.5)
    clock.advance(0.5)
    replay.advance()
    assert tokens(replay) == 20
    clock.advance(5)
    replay.advance()
    assert tokens(replay) == 70
    assert seen == [1, 2, 7]
    assert replay.history.series("server/a/generation_tokens_per_s")[1] == [10, 20, 30, 40, 50, 60, 70]
    assert [event.text for event in replay.snapshot().events] == [f"event {number}" for number in range(7)]


def test_pause_speed_seek_and_step(tmp_path: Path) -> None:
    clock = FakeClock()
    replay = Replay(recorded(tmp_path / "r.gz"), clock)
    replay.set_speed(4)
    clock.advance(2)
    replay.advance()
    assert (replay.position_s, tokens(replay)) == (8, 90)
    replay.pause()
    clock.advance(100)
    assert replay.advance() is None
    assert replay.position_s == 8
    replay.step()
    assert tokens(replay) == 100
    replay.step(-3)
    assert tokens(replay) == 70
    assert len(replay.history.series("server/a/running")[0]) == 7, "no point from the future stays"
    replay.seek(15.4)
    assert (replay.position_s, tokens(replay)) == (15.4, 160)
    replay.seek(-5)
    assert tokens(replay) == 10
    replay.seek(1e9)
    assert replay.at_end
    assert tokens(replay) == 200
    replay.resume()
    assert (replay.position_s, tokens(replay)) == (0, 10)
    with pytest.raises(ValueError, match="above 0"):
        replay.set_speed(0)


async def test_playing_publishes_without_being_driven(tmp_path: Path) -> None:
    replay = Replay(recorded(tmp_path / "r.gz", count=5, step_s=0.05))
    await replay.open()
    end = time.monotonic() + 20
    while not replay.at_end:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    await replay.close()
    await replay.close()
    assert tokens(replay) == 50


def test_a_file_cut_anywhere_is_played_up_to_the_cut(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "r.gz", count=80).read_bytes()
    played = []
    for keep in (0.95, 0.7, 0.5):
        path = tmp_path / f"{keep}.gz"
        path.write_bytes(whole[: int(len(whole) * keep)])
        replay = Replay(path, FakeClock())
        assert replay.cut
        replay.seek(1e9)
        played.append(tokens(replay))
    assert played == sorted(played, reverse=True)
    assert played[-1] >= 10


def test_what_was_recorded_is_readable_while_the_recording_goes_on(tmp_path: Path) -> None:
    """As after kill -9: nothing was closed."""
    recorder = Recorder(tmp_path / "r.gz", FakeClock())
    for number in range(25):
        recorder.write(snapshot(number + 1, 100.0 + number))
    replay = Replay(tmp_path / "r.gz", FakeClock())
    assert replay.cut
    assert replay.duration_s >= 15
    recorder.close()


def test_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    lines = gzip.decompress(recorded(tmp_path / "r.gz").read_bytes()).splitlines(keepends=True)
    lines[5] = b'{"at_s": 104.0, "sequence": "broken"}\n'
    lines[6] = b"\x00\xff\n"
    (tmp_path / "d.gz").write_bytes(gzip.compress(b"".join(lines)))
    replay = Replay(tmp_path / "d.gz", FakeClock())
    replay.seek(4)
    assert tokens(replay) == 40
    replay.seek(1e9)
    assert tokens(replay) == 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a vtop recording"),
        (b"hello", "not a vtop recording"),
        (b'{"kind":"other"}\n', "not a vtop recording"),
        (b'{"kind":"vtop-recording","format":99}\n', "later vtop"),
        (b'{"kind":"vtop-recording","format":1}\n', "no snapshot"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_what_is_no_recording_is_said_in_words(tmp_path: Path, content: bytes, words: str, packed: bool) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(VtopError) as caught:
        Replay(tmp_path / "x")
    assert (words if packed else "not a vtop recording") in caught.value.what
    assert caught.value.remedy


def test_a_missing_file_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(VtopError, match="cannot read"):
        Replay(tmp_path / "none.gz")


def test_a_recording_overwrites_nothing_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.gz", count=1)
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(VtopError, match="exists already"):
        Recorder(path)
    with pytest.raises(VtopError, match="cannot record"):
        Recorder(tmp_path / "no" / "such" / "place")


def test_a_recording_holds_no_password_of_an_address(tmp_path: Path) -> None:
    text = gzip.decompress(recorded(tmp_path / "r.gz", count=1).read_bytes())
    assert b"pw" not in text and b"p@" not in text
    assert b"http://127.0.0.1:8000" in text


def test_a_full_disk_ends_the_recording_and_not_the_program(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    recorder = Recorder(tmp_path / "r.gz", FakeClock())
    recorder._raw.close()
    recorder._raw = Path("/dev/full").open("wb")  # noqa: SIM115
    recorder._file.fileobj = recorder._raw  # type: ignore[union-attr]
    for number in range(200):
        recorder.write(snapshot(number + 1, 100.0 + number))
    assert "recording ended" in recorder.error
    recorder.close()


def test_the_same_snapshot_is_recorded_once_and_events_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.gz", FakeClock())
    first = snapshot(1, 100.0)
    recorder.write(first)
    recorder.write(first)
    recorder.write(replace(first, sequence=2, at_s=101.0))
    recorder.close()
    replay = Replay(tmp_path / "r.gz", FakeClock())
    replay.seek(5)
    assert replay.duration_s == 1
    assert len(replay.snapshot().events) == 1


def test_every_key_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    data = snapshot_to_json(snapshot())
    (view,) = data["servers"]
    (reading,) = view["engines"]
    latencies = tuple(f"{name}_" for name in ("ttft", "tpot", "itl", "e2e", "queue", "prefill", "decode"))
    keys = {*data, *view, *data["gpus"][0], *data["gpus"][0]["bandwidth"], *data["host"], *data["gpu_status"]}
    keys |= {*reading, *reading["speculation"], *view["scrape"], *view["verdict"], *view["tree"], *data["events"][0]}
    assert sorted(key for key in keys if f"`{key}`" not in text and not key.startswith(latencies)) == []
    assert all(f"`{prefix}*`" in text for prefix in latencies)


def test_an_event_that_comes_in_late_is_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.gz", FakeClock())
    early, late = Event(99.0, "xid", "GPU-1", "Xid 79"), Event(100.0, "state", "a", "ready")
    recorder.write(snapshot(1, 100.0, events=(late,)))
    recorder.write(snapshot(2, 101.0, events=(late, early)))
    recorder.close()
    replay = Replay(tmp_path / "r.gz", FakeClock())
    replay.seek(5)
    assert set(replay.snapshot().events) == {early, late}
