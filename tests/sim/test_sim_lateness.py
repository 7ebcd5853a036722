"""A simulated server that this machine held up says so, so that a comparison can refuse the run."""

from __future__ import annotations

import os
import signal
import threading
import time

import httpx
from simprocess import StartSim

from vtop.service.comparing import simulation_late_s

HELD_UP_S = 0.8


async def test_time_that_the_host_took_is_counted_and_nothing_else_is(start_sim: StartSim) -> None:
    sim = start_sim(speed=1.0)
    before_s = await simulation_late_s(sim.url)
    assert before_s is not None

    def hold_up() -> None:
        time.sleep(0.3)
        os.kill(sim.process.pid, signal.SIGSTOP)
        time.sleep(HELD_UP_S)
        os.kill(sim.process.pid, signal.SIGCONT)

    holding = threading.Thread(target=hold_up)
    holding.start()
    body = {"model": "sim", "prompt": "One two three.", "max_tokens": 120, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=60) as client:
        answered = await client.post(f"{sim.url}/v1/completions", json=body)
    holding.join()
    assert answered.json()["usage"]["completion_tokens"] == 120
    late_s = await simulation_late_s(sim.url)
    assert late_s is not None
    assert late_s - before_s > HELD_UP_S / 2


async def test_what_is_no_simulated_server_says_nothing() -> None:
    assert await simulation_late_s("http://127.0.0.1:1") is None
