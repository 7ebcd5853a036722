"""An API process that was killed leaves its engine and worker behind: told at every door, ended by one command."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from cli.vtop_process import Vtop, until

FAKE = Path(__file__).parents[1] / "servers" / "fake_vllm.py"


def test_orphans_are_told_with_what_they_hold_and_ended_by_a_stop(vtop: Vtop) -> None:
    command = json.dumps([sys.executable, str(FAKE), "--port", "{port}", "--engine", "stubborn", "--worker"])
    own = ("--set", f"command={command}", "--set", "port=auto", "--set", "served_name=tiny")
    vtop("start", "baseline", "--name", "one", "--wait", *own, "--set", "max_model_len=2048")
    servers = vtop("status", "--json", "--window", "0.2").json()["servers"]
    (pid,) = [server["status"]["pid"] for server in servers if server["status"]["name"] == "one"]
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: "2 processes of one outlived it" in vtop("status", "--window", "0.2").out)
    status = vtop("status", "--window", "0.2").out
    told = [line for line in status.splitlines() if line.startswith("left over: ") and "of one outlived it" in line]
    assert len(told) == 1
    for word in ("VLLM::EngineCore", "VLLM::Worker_TP0", "iB of memory", "vtop stop one"):
        assert word in told[0]
    doctor = vtop("doctor", code=1).out
    assert "server one: 2 processes of one outlived it" in doctor
    assert "outlived it" in vtop("start", "baseline", "--name", "two", *own, "--dry-run").out
    assert "has left processes" in vtop.fails(1, "start", "baseline", "--name", "one", *own)
    assert "no process left" in vtop("stop", "one", "--yes").out
    assert "outlived it" not in vtop("status", "--window", "0.2").out
