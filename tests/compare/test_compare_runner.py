"""A comparison does its steps in order, survives what goes wrong, and leaves no server behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from compare.comparing import Machine
from vtop.compare.record import load_record
from vtop.errors import UsageError, VtopError
from vtop.results import store
from vtop.results.comparison import CompareRequest, ConfigurationFacts
from vtop.results.pictures import Picture, ServerPicture

TWO = CompareRequest(presets=("A", "B"), repeats=3, seed=500)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "runs")


async def test_each_step_starts_loads_and_stops_in_interleaved_order(machine: Machine) -> None:
    runner = machine.runner()
    runner.start(TWO)
    progress = await runner.wait()
    assert progress is not None
    assert progress.state == "finished"
    one = [f"{deed} {preset}" for preset in "ABBAAB" for deed in ("start", "ready", "load", "stop")]
    assert machine.log == one
    assert not machine.up
    assert [row.verdict for row in progress.rows] == ["first row", "faster"]
    assert progress.rows[1].ratio == pytest.approx(1.5, rel=0.02)
    assert progress.rows[1].kv_capacity_tokens == 1000


async def test_prompts_are_fresh_each_round_and_the_same_within_it(machine: Machine) -> None:
    runner = machine.runner()
    runner.start(TWO)
    await runner.wait()
    assert [request.seed for request in machine.loads] == [501, 501, 502, 502, 503, 503]
    assert all(request.ignore_eos for request in machine.loads), "answers of equal length"


async def test_without_a_seed_each_comparison_takes_its_own(machine: Machine) -> None:
    seeds = set()
    for _ in range(2):
        runner = machine.runner()
        runner.start(CompareRequest(presets=("A", "B"), repeats=1))
        progress = await runner.wait()
        assert progress is not None
        seeds.add(load_record(Path(progress.directory)).seed)
    assert len(seeds) == 2


async def test_a_preset_against_itself(machine: Machine) -> None:
    runner = machine.runner()
    runner.start(CompareRequest(presets=("A", "A"), repeats=3))
    progress = await runner.wait()
    assert progress is not None
    assert [row.preset for row in progress.rows] == ["A", "A (2)"]
    assert progress.rows[1].verdict.startswith("no difference seen")


async def test_blocks_start_each_configuration_once_and_check_for_drift(machine: Machine) -> None:
    runner = machine.runner()
    runner.start(CompareRequest(presets=("A", "B"), repeats=2, order="blocks"))
    progress = await runner.wait()
    assert progress is not None
    assert [word for word in machine.log if word.startswith(("start", "stop"))] == [
        "start A", "stop A", "start B", "stop B", "start A", "stop A",
    ]  # fmt: skip
    assert progress.rows[0].runs == 2, "the drift check is not in the table"
    assert progress.rows[1].runs == 2


async def test_the_states_of_a_step_are_seen_live(machine: Machine) -> None:
    runner = machine.runner()
    runner.start(CompareRequest(presets=("A", "B"), repeats=1))
    await runner.wait()
    states = list(dict.fromkeys(progress.steps[0].state for progress in machine.seen))
    assert states == ["waiting", "starting", "warming-up", "loading", "stopping", "done"]
    live = next(progress for progress in machine.seen if progress.steps[0].state == "loading")
    assert live.steps[0].output_tokens_per_s == 90.0
    assert live.state == "running"


async def test_a_plan_tells_the_time_and_starts_nothing(machine: Machine) -> None:
    runner = machine.runner(last_starts_s={"A": 30, "B": 40}, last_loads_s={"A": 10, "B": 20})
    plan = runner.plan(TWO)
    assert (plan.state, len(plan.steps)) == ("planned", 6)
    assert plan.expected_s == 3 * (30 + 40 + 10 + 20) + 6 * 5
    assert machine.log == []
    assert not machine.runs_dir.exists()


async def test_the_estimate_follows_what_was_measured(machine: Machine) -> None:
    runner = machine.runner()
    runner.start(TWO)
    await runner.wait()
    assert machine.seen[0].expected_s is None
    first = next(progress for progress in machine.seen if sum(step.state == "done" for step in progress.steps) == 2)
    assert first.expected_s is not None
    last = machine.seen[-1]
    assert last.elapsed_s == last.expected_s == 6 * (30 + 10 + 2)


async def test_a_configuration_that_does_not_start_says_why_and_the_others_go_on(machine: Machine) -> None:
    machine.broken_starts = {"B": "KV cache too small for max_model_len 262144"}
    runner = machine.runner()
    runner.start(CompareRequest(presets=("A", "B", "C"), repeats=3))
    progress = await runner.wait()
    assert progress is not None
    assert progress.state == "finished"
    assert machine.log.count("start B") == 1, "it is not tried again"
    assert not machine.up
    assert progress.rows[1].verdict == "not comparable: did not start: KV cache too small for max_model_len 262144"
    assert progress.rows[2].verdict == "faster"
    assert "Change it." in progress.warnings[0]


async def test_nothing_that_starts_is_a_failed_comparison(machine: Machine) -> None:
    machine.broken_starts = {"A": "no GPU", "B": "no GPU"}
    runner = machine.runner()
    runner.start(TWO)
    progress = await runner.wait()
    assert progress is not None
    assert progress.state == "failed"
    assert not machine.up


async def test_a_load_that_fails_costs_its_own_step_only(machine: Machine) -> None:
    machine.broken_loads = {3}
    runner = machine.runner()
    runner.start(TWO)
    progress = await runner.wait()
    assert progress is not None
    assert progress.state == "finished"
    assert [step.state for step in progress.steps].count("failed") == 1
    assert [row.runs for row in progress.rows] == [3, 2]
    assert "the server stopped answering" in progress.warnings[0]
    assert not machine.up


async def test_stopping_keeps_what_was_measured_and_leaves_no_server(machine: Machine) -> None:
    machine.pause_in_load = 4
    runner = machine.runner()
    runner.start(TWO)
    await asyncio.wait_for(machine.paused.wait(), 10)
    await runner.stop()
    progress = runner.progress()
    assert progress is not None
    assert progress.state == "cancelled"
    assert [step.state for step in progress.steps] == ["done"] * 3 + ["waiting"] * 3
    assert not machine.up
    assert not runner.running
    assert store.list_runs(machine.runs_dir)[0].headline.endswith("(cancelled: 3 of 6 runs)")


async def test_stopping_during_a_start_stops_that_server_too(machine: Machine) -> None:
    machine.pause_in_start = "B"
    runner = machine.runner()
    runner.start(TWO)
    await asyncio.wait_for(machine.paused.wait(), 10)
    await runner.stop()
    assert not machine.up


async def test_a_cancelled_caller_does_not_cut_the_stop(machine: Machine) -> None:
    machine.pause_in_load = 1
    runner = machine.runner()
    runner.start(TWO)
    await asyncio.wait_for(machine.paused.wait(), 10)
    stopping = asyncio.create_task(runner.stop())
    await asyncio.sleep(0)
    await runner.stop()
    await stopping
    assert not machine.up


async def test_a_stopped_comparison_goes_on_where_it_was(machine: Machine) -> None:
    machine.pause_in_load = 4
    runner = machine.runner()
    runner.start(TWO)
    await asyncio.wait_for(machine.paused.wait(), 10)
    await runner.stop()
    before = runner.progress()
    assert before is not None
    again = machine.runner()
    assert again.resume(Path(before.directory)) == before.run_id
    progress = await again.wait()
    assert progress is not None
    assert progress.state == "finished"
    assert [row.runs for row in progress.rows] == [3, 3]
    assert [request.seed for request in machine.loads] == [501, 501, 502, 502, 502, 503, 503], (
        "the cut run is made again"
    )
    assert progress.elapsed_s > before.elapsed_s
    with pytest.raises(VtopError, match="is finished"):
        again.resume(Path(before.directory))


async def test_a_server_that_cannot_be_stopped_ends_the_comparison(machine: Machine) -> None:
    """Nothing else may start on a GPU that is still held."""
    machine.stays = True
    runner = machine.runner()
    runner.start(TWO)
    progress = await runner.wait()
    assert progress is not None
    assert progress.state == "failed"
    assert "pid 99 holds 20 GiB" in progress.message
    assert machine.log.count("start A") == 1
    assert "start B" not in machine.log
    assert len(load_record(Path(progress.directory)).measured) == 1


async def test_only_one_at_a_time(machine: Machine) -> None:
    machine.pause_in_load = 1
    runner = machine.runner()
    runner.start(TWO)
    await asyncio.wait_for(machine.paused.wait(), 10)
    with pytest.raises(UsageError, match="running already"):
        runner.start(TWO)
    await runner.stop()


async def test_a_comparison_that_another_process_runs_is_not_taken_over(machine: Machine) -> None:
    machine.pause_in_load = 1
    runner = machine.runner()
    runner.start(TWO)
    await asyncio.wait_for(machine.paused.wait(), 10)
    progress = runner.progress()
    assert progress is not None
    path = Path(progress.directory) / "compare.json"
    parent = os.getppid()
    document = json.loads(path.read_text())
    document["comparison"] |= {"owner_pid": parent, "owner_created_s": psutil.Process(parent).create_time()}
    other = Path(progress.directory).with_name("copied")
    os.mkdir(other)
    await asyncio.to_thread((other / "compare.json").write_text, json.dumps(document))
    with pytest.raises(VtopError, match=f"another vtop \\(pid {parent}\\)"):
        machine.runner().resume(other)
    document["comparison"]["owner_created_s"] -= 100
    await asyncio.to_thread((other / "compare.json").write_text, json.dumps(document))
    stranger = machine.runner()
    stranger.resume(other)
    await stranger.stop()
    await runner.stop()


async def test_the_saved_comparison_is_the_one_that_ran(machine: Machine) -> None:
    runner = machine.runner()
    run_id = runner.start(
        CompareRequest(presets=("A", "B"), repeats=2, simulated=True, gpu="RTX 4090", overrides={"max_num_seqs": "8"})
    )
    progress = await runner.wait()
    assert progress is not None
    record = load_record(Path(progress.directory))
    assert record.rows == progress.rows
    assert record.simulated
    words = "--workload chat --repeats 2 --order interleaved --set max_num_seqs=8 --sim --gpu 'RTX 4090'"
    assert record.repeat_command == f"vtop compare A B {words}"
    entry = store.list_runs(machine.runs_dir)[0]
    assert (entry.run_id, entry.kind, entry.simulated, entry.complete) == (run_id, "compare", True, True)
    assert entry.headline.startswith("B 1.5")
    assert mode(progress.directory) == 0o700
    assert mode(f"{progress.directory}/compare.json") & 0o077 == 0


def test_damaged_and_missing_files_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(VtopError, match="there is no comparison"):
        load_record(tmp_path)
    (tmp_path / "compare.json").write_text('{"vtop_schema": 1, "comparison": {"run_id"')
    with pytest.raises(VtopError, match="is damaged"):
        load_record(tmp_path)


KILLED = textwrap.dedent(
    """
    import asyncio, subprocess, sys
    from pathlib import Path
    sys.path[:0] = {path!r}
    from compare.comparing import Machine
    from vtop.results.comparison import CompareRequest

    class Real(Machine):
        async def start(self, preset, overrides, name):
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            (self.runs_dir / f"{{name}}.pid").write_text(str(child.pid))
            return await super().start(preset, overrides, name)

        async def stop(self, name):
            pid = self.runs_dir / f"{{name}}.pid"
            subprocess.run(["kill", "-9", pid.read_text()])
            pid.unlink()
            return await super().stop(name)

    async def main():
        machine = Real(Path({runs!r}), pause_in_load=4)
        runner = machine.runner()
        runner.start(CompareRequest(presets=("A", "B"), repeats=3))
        await machine.paused.wait()
        print("paused", flush=True)
        await runner.wait()

    asyncio.run(main())
    """
)


async def test_a_comparison_killed_with_sigkill_resumes_and_leaves_no_server(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    kill_in_the_fourth_load(runs)
    (pid_file,) = runs.glob("*.pid")
    server = int(pid_file.read_text())
    assert alive(server), "the server outlives a kill of vtop"
    (directory,) = [path for path in runs.iterdir() if path.is_dir()]
    record = load_record(directory)
    assert (record.state, len(record.measured), record.server) == ("running", 3, pid_file.stem)

    machine = Machine(runs)
    stopped: list[str] = []
    plain_stop = machine.stop

    async def stop(name: str) -> object:
        if name == pid_file.stem and not stopped:
            os.kill(server, signal.SIGKILL)
        stopped.append(name)
        return await plain_stop(name)

    machine.stop = stop  # type: ignore[method-assign,assignment]
    runner = machine.runner()
    runner.resume(directory)
    progress = await runner.wait()
    assert progress is not None
    assert progress.state == "finished"
    assert stopped[0] == pid_file.stem, "what the killed vtop left is stopped before anything starts"
    assert [row.runs for row in progress.rows] == [3, 3]
    await asyncio.to_thread(wait_until_gone, server)
    assert not alive(server)
    assert not machine.up


def kill_in_the_fourth_load(runs: Path) -> None:
    script = KILLED.format(path=[str(Path(__file__).parents[1])], runs=str(runs))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "paused\n"
        child.send_signal(signal.SIGKILL)
        child.wait(30)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)


def mode(path: str) -> int:
    return os.stat(path).st_mode & 0o777


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_each_configuration_keeps_the_picture_of_its_last_load(machine: Machine) -> None:
    asked: list[tuple[str, str | None]] = []

    def observe(label: str, server: str, facts: ConfigurationFacts | None) -> Picture | None:
        asked.append((label, machine.up.get(server)))
        if label == "B":
            return None  # idle again: nothing to see
        return Picture(preset=label, servers=(ServerPicture(running=16),))

    runner = machine.runner(observe=observe)
    runner.start(CompareRequest(presets=("A", "B"), workload="chat", repeats=1))
    progress = await runner.wait()
    assert progress is not None
    assert asked == [("A", "A"), ("B", "B")]
    assert [picture.preset for picture in progress.pictures] == ["A"]
