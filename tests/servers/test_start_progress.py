"""Where a start stands, also when the log was written before this vtop looked."""

from __future__ import annotations

import os
import time
from pathlib import Path

import httpx
import pytest
from fake_servers import QUICK

from vtop.clock import FakeClock
from vtop.servers.life import LifeTools, ServerLife
from vtop.servers.managed import ManagedServer, draft_record, stamp_of
from vtop.servers.process import identify
from vtop.servers.state_files import StateFolder, folders
from vtop.servers.status import ServerState
from vtop.servers.supervisor import diagnose_log
from vtop.vllm.launch import LaunchCommand

NCCL_HANG = (
    "INFO 08-31 09:50:44 config.py:890] Defaulting to use mp for distributed inference\n"
    "(VllmWorkerProcess pid=1927) INFO 08-31 09:50:45 multiproc_worker_utils.py:215] Worker ready; awaiting tasks\n"
    "INFO 08-31 09:50:46 utils.py:975] Found nccl from library libnccl.so.2\n"
    "INFO 08-31 09:50:46 pynccl.py:63] vLLM is using nccl==2.20.5\n"
    "(VllmWorkerProcess pid=1927) INFO 08-31 09:50:46 pynccl.py:63] vLLM is using nccl==2.20.5\n"
)


def server(tmp_path: Path, clock: FakeClock, log: str, started_wall_s: float) -> ManagedServer:
    """A start under way whose log holds this; its process is this test."""
    folder = StateFolder(tmp_path / "one")
    folder.create()
    folder.log_path.write_text(log)
    return adopted(tmp_path, clock, started_wall_s)


def adopted(tmp_path: Path, clock: FakeClock, started_wall_s: float) -> ManagedServer:
    """A start under way as a vtop finds it, with the log that is there."""
    folder = StateFolder(tmp_path / "one")
    command = LaunchCommand(argv=("vllm",), served_name="tiny", host="127.0.0.1", port=8000)
    record = draft_record(folder, "baseline", command, None, started_wall_s)
    record.leader = identify(os.getpid())
    return ManagedServer(folder, record, clock, lambda changed: None)


def wall(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


def test_a_hang_in_nccl_is_stuck_and_neither_failed_nor_ready(tmp_path: Path) -> None:
    clock = FakeClock(wall=wall("2026-08-31 09:50:46"))
    stuck = server(tmp_path, clock, NCCL_HANG, wall("2026-08-31 09:50:16"))
    clock.advance(30)
    early = stuck.status()
    assert early.state is ServerState.STARTING
    assert early.progress is not None
    assert early.progress.stuck == ""
    clock.advance(270)
    late = stuck.status()
    assert late.state is ServerState.STARTING
    assert late.progress is not None
    assert late.progress.phase == "nccl"
    assert late.progress.silent_s == pytest.approx(300)
    assert "NCCL_P2P_DISABLE=1" in late.progress.stuck


def test_phases_of_an_adopted_start_last_as_long_as_they_did(tmp_path: Path) -> None:
    """vtop comes 100 s after the start; the log's own time stamps tell what took how long."""
    log = (
        "INFO 11-30 10:00:10 [config.py:1] Resolved architecture: Qwen2ForCausalLM\n"
        "INFO 11-30 10:00:12 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='tiny'\n"
        "INFO 11-30 10:00:20 [gpu_model_runner.py:1] Starting to load model tiny...\n"
        "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:03<00:03,  1.6s/it]\n"
        "INFO 11-30 10:01:20 [kv_cache_utils.py:1] GPU KV cache size: 12,345 tokens\n"
    )
    clock = FakeClock(wall=wall("2026-11-30 10:01:40"))
    adopted = server(tmp_path, clock, log, wall("2026-11-30 10:00:00"))
    progress = adopted.status().progress
    assert progress is not None
    assert progress.elapsed_s == pytest.approx(100)
    assert progress.silent_s == pytest.approx(20)
    assert dict(progress.done) == {"launch": 10.0, "config": 2.0, "engine": 8.0, "weights": 60.0}


def test_time_stamps_have_no_year() -> None:
    """A start on the last evening of a year goes on in the next."""
    started = wall("2026-12-31 23:59:50")
    assert stamp_of("INFO 12-31 23:59:55 [a.py:1] x", started) == wall("2026-12-31 23:59:55")
    assert stamp_of("INFO 01-01 00:00:05 [a.py:1] x", started) == wall("2027-01-01 00:00:05")
    assert stamp_of("no stamp here", started) is None


def test_states_change_only_along_the_known_ways(tmp_path: Path) -> None:
    one = server(tmp_path, FakeClock(), "", 0.0)
    one.change_state(ServerState.STOPPING)
    with pytest.raises(ValueError, match="no way from stopping to ready"):
        one.change_state(ServerState.READY)


def test_a_bar_that_redraws_itself_in_one_line_is_progress_and_no_silence(tmp_path: Path) -> None:
    """A download of an hour writes no line end: it must not pass for a start that stands still, nor be given up."""
    clock = FakeClock(wall=1_000_000.0)
    one = server(tmp_path, clock, "", 1_000_000.0)
    for done in (1, 2, 3):
        clock.advance(1000)
        with open(one.folder.log_path, "a", encoding="utf-8") as log:
            log.write(f"\rmodel.safetensors:  {done}0%|#    | {done}.00G/10.0G [16:40<2:30:00, 1.0MB/s]")
        one.read_log()
    clock.advance(5)
    progress = one.status().progress
    assert progress is not None
    assert (progress.phase, progress.share) == ("download", pytest.approx(0.3))
    assert (progress.silent_s, progress.stuck) == (5.0, "")
    with open(one.folder.log_path, "a", encoding="utf-8") as log:
        log.write("\rmodel.safetensors:  99%|#    | 9")  # half written
    one.read_log()
    progress = one.status().progress
    assert progress is not None
    assert (progress.share, progress.silent_s) == (pytest.approx(0.3), 0.0)


def test_a_bar_that_stood_still_before_this_vtop_looked_is_silence(tmp_path: Path) -> None:
    """Each `vtop status` looks for the first time: the old end of a log must not pass for news."""
    folder = tmp_path / "one"
    folder.mkdir()
    log = "\rmodel.safetensors:  30%|#    | 3.00G/10.0G [16:40<2:30:00, 1.0MB/s]"
    clock = FakeClock(wall=1_003_600.0)
    (folder / "server.log").write_text(log)
    os.utime(folder / "server.log", (1_000_100.0, 1_000_100.0))
    one = adopted(tmp_path, clock, 1_000_000.0)
    one.read_log()
    progress = one.status().progress
    assert progress is not None
    assert (progress.phase, progress.share, progress.silent_s) == ("download", pytest.approx(0.3), 3500.0)


class SteppedClock(FakeClock):
    """A wall clock that is set while the other one runs on."""

    def step_wall(self, seconds: float) -> None:
        self._wall += seconds


@pytest.mark.parametrize(("step_s", "ran_s", "overdue"), [(86_400, 100, False), (-86_400, 1900, True)])
async def test_a_start_is_overdue_by_time_that_passed_and_not_by_a_clock_that_was_set(
    tmp_path: Path, step_s: float, ran_s: float, overdue: bool
) -> None:
    clock = SteppedClock(wall=1_000_000.0)
    one = server(tmp_path, clock, "", 1_000_000.0)
    async with httpx.AsyncClient() as client:
        life = ServerLife(one, LifeTools(client, clock, diagnose_log, QUICK, lambda router: ()))
        clock.step_wall(step_s)
        clock.advance(ran_s)
        assert life._overdue() is overdue


def test_a_link_in_a_circle_does_not_hide_the_servers_beside_it(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "nowhere").symlink_to("gone")
    assert [folder.name for folder in folders(tmp_path)] == ["one"]
