"""Two vtops do not measure the same server or GPU at once, and a vtop that is gone keeps nobody waiting."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cli.vtop_process import until
from vtop.errors import VtopError
from vtop.servers.process import Place, ProcessIdentity, here
from vtop.service.measuring import COMPARISON, LOAD_TEST, Measurement, Measurements

HOLDER = """
import sys, time
from pathlib import Path
from vtop.service.measuring import Measurements
gpus = sys.argv[4].split(",") if sys.argv[4] else None
Measurements(Path(sys.argv[1])).claim(sys.argv[2], "theirs", servers=sys.argv[3].split(), gpus=gpus)
print("claimed", flush=True)
time.sleep(600)
"""


class Holder:
    """Another process that measures."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[str]] = []

    def __call__(self, kind: str, servers: str = "", gpus: str = "") -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HOLDER, str(self._directory), kind, servers, gpus]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Holder]:
    holder = Holder(tmp_path)
    yield holder
    holder.end()


def test_a_second_comparison_is_refused_with_who_runs_the_first(tmp_path: Path, other: Holder) -> None:
    pid = other(COMPARISON).pid
    with pytest.raises(
        VtopError, match=rf"a comparison \(theirs\) is running in another vtop \(pid {pid}, since \d\d:"
    ):
        Measurements(tmp_path).claim(COMPARISON, "ours")


def test_what_a_killed_vtop_measured_is_free_and_its_file_is_removed(tmp_path: Path, other: Holder) -> None:
    process = other(COMPARISON)
    process.send_signal(signal.SIGKILL)
    process.wait()
    Measurements(tmp_path).claim(COMPARISON, "ours").release()
    assert list(tmp_path.glob("*.json")) == []


def test_a_recycled_pid_holds_nothing(tmp_path: Path, other: Holder) -> None:
    other(COMPARISON)
    (path,) = tmp_path.glob("*.json")
    held = msgspec.json.decode(path.read_bytes(), type=Measurement)
    recycled = msgspec.structs.replace(held.owner, started=held.owner.started - 5)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(held, owner=recycled)))
    Measurements(tmp_path).claim(COMPARISON, "ours")
    assert not path.exists()


def test_a_released_claim_is_free_at_once(tmp_path: Path) -> None:
    measurements = Measurements(tmp_path)
    claim = measurements.claim(LOAD_TEST, "one", servers=["localhost:8000"])
    assert [m.title for m in measurements.running()] == ["one"]
    claim.release()
    claim.release()
    assert measurements.running() == []


def test_an_unreadable_file_and_another_machine_stop_nobody(tmp_path: Path, other: Holder) -> None:
    other(COMPARISON)
    (path,) = tmp_path.glob("*.json")
    held = msgspec.json.decode(path.read_bytes(), type=Measurement)
    elsewhere = msgspec.structs.replace(held, place=Place("another", "another boot", here().namespace))
    path.write_bytes(msgspec.json.encode(elsewhere))
    (tmp_path / "half.json").write_bytes(b'{"kind": "comp')
    Measurements(tmp_path).claim(COMPARISON, "ours")
    assert path.exists()


def test_only_one_of_many_that_ask_at_once_gets_it(tmp_path: Path) -> None:
    code = HOLDER.replace("time.sleep(600)", "sys.stdin.read()")
    words = [sys.executable, "-c", code, str(tmp_path), COMPARISON, "", ""]
    pipe = subprocess.PIPE
    asking = [subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    try:
        assert until(lambda: sum(process.poll() is not None for process in asking) == 3)
        losers = [process for process in asking if process.poll() is not None]
    finally:
        said = [process.communicate()[1] for process in asking]
    assert len(losers) == 3
    assert sum("is running in another vtop" in text for text in said) == 3


def _measurement(kind: str, server: str = "", gpus: tuple[str, ...] | None = None, local: bool = True) -> Measurement:
    owner = ProcessIdentity(1, 1.0, "boot")
    servers = (server,) if server else ()
    return Measurement(
        kind=kind, title="", servers=servers, gpus=gpus, local=local, owner=owner, place=here(), since_wall_s=0.0
    )


@pytest.mark.parametrize(
    ("one", "two", "disturbs"),
    [
        (_measurement(LOAD_TEST, "a:1"), _measurement(LOAD_TEST, "a:1"), True),
        (_measurement(LOAD_TEST, "a:1", local=False), _measurement(LOAD_TEST, "a:1", local=False), True),
        (_measurement(LOAD_TEST, "a:1"), _measurement(LOAD_TEST, "a:2"), False),
        (_measurement(LOAD_TEST, "a:1", ("g0",)), _measurement(LOAD_TEST, "a:2", ("g0", "g1")), True),
        (_measurement(LOAD_TEST, "a:1", ("g0",)), _measurement(LOAD_TEST, "a:2", ("g1",)), False),
        (_measurement(COMPARISON), _measurement(LOAD_TEST, "a:1"), True),
        (_measurement(COMPARISON), _measurement(LOAD_TEST, "far:1", local=False), False),
        (_measurement(COMPARISON, gpus=("g0",)), _measurement(LOAD_TEST, "a:1", ("g1",)), False),
        (_measurement(COMPARISON, gpus=("g0",)), _measurement(COMPARISON, gpus=("g1",)), False),
        (_measurement(COMPARISON, gpus=("g0",)), _measurement(COMPARISON), True),
    ],
)
def test_who_disturbs_whom(one: Measurement, two: Measurement, disturbs: bool) -> None:
    assert one.disturbs(two) is disturbs
    assert two.disturbs(one) is disturbs
