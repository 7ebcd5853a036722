"""One model over two nodes (`--nnodes`), both on this machine: the first answers once the headless second is there."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest
from driving import Vtop, assert_nothing_left, port_is_free, tiny_settings

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(1200)]


def words(root: Path, rank: int, meet_at: int) -> list[str]:
    """`--set` words of one node; each has a core of its own."""
    more = {
        "tensor_parallel": "2",
        "env.VLLM_CPU_OMP_THREADS_BIND": str(rank),
        "args.nnodes": "2",
        "args.node-rank": str(rank),
        "args.master-addr": "127.0.0.1",
        "args.master-port": str(meet_at),
        "args.distributed-executor-backend": "mp",
        **({"args.headless": "true"} if rank else {}),
    }
    return tiny_settings(root, **more)


def test_the_first_is_ready_when_the_headless_second_has_joined(vtop: Vtop, real_env: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        meet_at = probe.getsockname()[1]
    vtop.run("start", "cpu-small", "--name", "first", *words(real_env, 0, meet_at))
    second = vtop.run("start", "cpu-small", "--name", "second", "--wait", *words(real_env, 1, meet_at))
    assert "second is headless" in second.stderr
    first = vtop.until("first", "ready")
    headless = vtop.server("second")
    assert headless is not None
    assert headless["state"] == "starting"
    assert headless["message"].startswith("headless: it answers no requests itself")
    body = {
        "model": "tiny",
        "prompt": "What does a server do while it waits? " * 8,
        "max_tokens": 8,
        "ignore_eos": True,
    }
    answer = httpx.post(f"{first['url']}/v1/completions", json=body, timeout=300)
    assert answer.json()["usage"]["completion_tokens"] == 8
    for name in ("first", "second"):
        assert "no process left" in vtop.run("stop", name, "--yes").stdout
    assert_nothing_left(vtop.home)
    assert port_is_free(first["port"])
