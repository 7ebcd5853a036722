"""The dashboard's facade before it is there: a first frame needs no import of it, and nothing asked is lost."""

from __future__ import annotations

import subprocess
import sys

from vtop.contract import playback_of
from vtop.service import ServiceOptions
from vtop.service.on_demand import service_on_demand
from vtop.telemetry.snapshot import Snapshot

OPTIONS = ServiceOptions(simulated=True, discover=False, window_s=20.0)


def test_what_the_first_frame_needs_leaves_out_what_measures_and_starts_servers() -> None:
    program = "import sys, vtop.commands.dashboard, vtop.ui.run, vtop.ui.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.split())
    assert "vtop.ui.screens.dashboard" in loaded
    late = {"vtop.service.facade", "vtop.telemetry.hub", "vtop.load.runner", "httpx", "psutil", "plotext", "pynvml"}
    assert not loaded & late


def test_before_it_is_opened_it_knows_of_nothing_and_says_so() -> None:
    service = service_on_demand(OPTIONS)
    first = service.snapshot()
    assert (first.gpus, first.servers, first.window_s) == ((), (), 20.0)
    assert first.gpu_status.message == "looking for GPUs"
    assert first.simulated and service.simulated and not service.readonly
    assert service.load_progress() is None
    assert service.compare_progress() is None
    assert playback_of(service) is None


async def test_who_subscribed_before_it_was_opened_gets_what_it_measures() -> None:
    service = service_on_demand(OPTIONS)
    got: list[Snapshot] = []
    ended: list[Snapshot] = []
    unsubscribe = service.subscribe(got.append)
    service.subscribe(ended.append)()
    service.set_window(30.0)
    assert [snapshot.sequence for snapshot in got] == [0]
    await service.open()
    try:
        assert got[-1] is service.snapshot()
        assert got[-1].window_s == 30.0
        count = len(got)
        unsubscribe()
        service.set_window(5.0)
        assert len(got) == count
    finally:
        await service.close()
    assert len(ended) == 1


async def test_leaving_before_it_was_opened_waits_for_nothing() -> None:
    await service_on_demand(OPTIONS).close()


def test_a_question_that_only_the_facade_can_answer_is_answered_at_once() -> None:
    service = service_on_demand(OPTIONS)
    presets, problems = service.presets()
    assert "baseline" in {preset.name for preset in presets}
    assert not problems
