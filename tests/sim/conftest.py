"""Simulated servers for the tests in this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from simprocess import SimProcess, StartSim, free_port


@pytest.fixture
def start_sim(tmp_path: Path) -> Iterator[StartSim]:
    """Starts `python -m vtop.sim` with some arguments; everything ends with the test."""
    started: list[SimProcess] = []

    def start(*arguments: str, wait: bool = True, env: dict[str, str] | None = None, speed: float = 20.0) -> SimProcess:
        port = free_port()
        log = tmp_path / f"sim-{len(started)}.log"
        command = [sys.executable, "-m", "vtop.sim", "--port", str(port), "--startup-s", "0.2", "--speed", str(speed)]
        command += ["--served-model-name", "sim", "--max-model-len", "4096", *arguments]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
        sim = SimProcess(process, port, log)
        started.append(sim)
        return sim.until_healthy() if wait else sim

    yield start
    for sim in started:
        if sim.process.poll() is None:
            sim.process.kill()
            sim.process.wait()
