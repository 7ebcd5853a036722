"""The facade with real simulated servers: aim, windows, refusals, chat, a quit that does not wait."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from vtop.errors import UsageError, VtopError
from vtop.load.progress import LoadRequest
from vtop.servers.ports import answered_by_another
from vtop.servers.status import ServerState
from vtop.service import ServiceOptions, VtopService

QUICK = {"port": "auto", "args.startup-s": "0.2"}
READY_WITHIN_S = 60.0


async def _started(service: VtopService, name: str = "one", fault: str | None = None) -> str:
    await service.start_server("baseline", QUICK, name, fault=fault)
    await service.supervisor.wait_ready(name, READY_WITHIN_S)
    return name


@pytest.fixture
async def service() -> AsyncIterator[VtopService]:
    """A facade whose servers are simulated; they end with the test."""
    own = VtopService(ServiceOptions(simulated=True, discover=False))
    await own.open()
    try:
        yield own
    finally:
        for status in own.supervisor.statuses():
            await own.supervisor.stop(status.name)
        await own.close()


async def test_a_load_test_by_name_is_aimed_counted_and_answered_like_the_chat(service: VtopService) -> None:
    name = await _started(service)
    aimed = service.aim(LoadRequest(server=name))
    assert aimed.url == service.known(name).url
    assert aimed.model == "qwen2.5-7b"
    assert aimed.simulated

    small = LoadRequest(server=name, requests=6, concurrency=3, max_tokens=10, ignore_eos=True, warmup=0)
    await service.start_load(small)
    with pytest.raises(VtopError):
        await service.start_load(small)
    result = await service.wait_load()
    assert result.completed == 6
    assert result.server["generation_tokens"] == result.output_tokens == 60
    server_ttft_s = result.server["ttft_mean_s"]
    assert server_ttft_s is not None
    assert result.ttft.mean is not None
    assert server_ttft_s <= result.ttft.mean + 0.002

    events = [event async for event in service.chat(name, "Say something.")]
    assert "".join(event.text for event in events)
    last = events[-1]
    assert (last.done, last.error) == (True, "")
    assert last.ttft_s is not None
    assert last.completion_tokens is not None

    report = await service.stop_server(name)
    assert report.stopped
    assert report.left == ()
    with pytest.raises(VtopError, match="not ready"):
        service.aim(LoadRequest(server=name))


async def test_a_chat_with_a_server_that_is_gone_ends_with_its_error(service: VtopService) -> None:
    name = await _started(service)
    await service.stop_server(name)
    events = [event async for event in service.chat(name, "Hello?")]
    assert events[-1].done
    assert events[-1].error


async def test_an_unknown_server_is_named_with_those_that_are_known(service: VtopService) -> None:
    with pytest.raises(UsageError, match="no server is called nobody"):
        service.aim(LoadRequest(server="nobody"))


async def test_no_load_test_at_an_address_where_somebody_else_answers(
    service: VtopService, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await _started(service)
    told = replace(service.known(name), state=ServerState.DEGRADED, message=answered_by_another(8000, "old-model"))
    monkeypatch.setattr(service, "known", lambda _: told)
    with pytest.raises(VtopError, match="answered by another server"):
        service.aim(LoadRequest(server=name))


async def test_a_start_that_fails_carries_its_diagnosis(service: VtopService) -> None:
    await service.start_server("baseline", QUICK, "poor", fault="oom")
    with pytest.raises(VtopError, match="memory"):
        await service.supervisor.wait_ready("poor", READY_WITHIN_S)
    diagnosis = service.known("poor").diagnosis
    assert diagnosis is not None
    assert diagnosis.remedies
    assert any("OutOfMemory" in line for line in service.log_lines("poor"))
    await service.forget_server("poor")
    with pytest.raises(UsageError):
        service.known("poor")


async def test_a_remedy_changes_only_its_keys_of_the_start_that_failed(service: VtopService) -> None:
    """Name, preset, overrides and the simulated card stay, also for a vtop that did not start it."""
    own = {**QUICK, "served_name": "mine", "max_model_len": "9000"}
    await service.start_server("baseline", own, "poor", fault="oom", gpu="H100")
    with pytest.raises(VtopError):
        await service.supervisor.wait_ready("poor", READY_WITHIN_S)
    later = VtopService(ServiceOptions(discover=False))
    await later.open()
    try:
        assert await later.start_again("poor", {"max_model_len": "2048"}) == "poor"
        status = await later.supervisor.wait_ready("poor", READY_WITHIN_S)
        (line,) = later.command_of("poor")
    finally:
        await later.close()
    assert (status.model, status.simulated, status.max_model_len) == ("mine", True, 2048)
    assert "H100" in line


async def test_quitting_does_not_wait_for_a_server_that_hangs(service: VtopService) -> None:
    await _started(service, "slow")
    other = VtopService(ServiceOptions(simulated=True, discover=False))
    await other.open()
    await other.start_load(LoadRequest(server="slow", requests=500, concurrency=4, max_tokens=500))
    pid = service.known("slow").pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        await other.close()
        assert time.monotonic() - began < 2.0
    finally:
        os.kill(pid, signal.SIGCONT)
    await service.stop_server("slow")


async def test_readonly_refuses_everything_that_changes_something() -> None:
    watcher = VtopService(ServiceOptions(simulated=True, discover=False, readonly=True))
    await watcher.open()
    try:
        for change in (
            watcher.start_server("baseline", QUICK),
            watcher.stop_server("baseline"),
            watcher.start_again("baseline", {}),
            watcher.forget_server("baseline"),
            watcher.start_load(LoadRequest(url="http://127.0.0.1:9", model="m")),
            watcher.resume_compare("any"),
        ):
            with pytest.raises(VtopError, match="--readonly"):
                await change
        with pytest.raises(VtopError, match="--readonly"):
            watcher.delete_run("any")
        plan = await watcher.plan_start("baseline", QUICK)
        assert plan.refusal == ""
        assert plan.simulated
        assert (await watcher.plan_start("no-such-preset")).refusal
    finally:
        await watcher.close()
