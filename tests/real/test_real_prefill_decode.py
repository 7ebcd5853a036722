"""Prefill/decode disaggregation on a real vLLM for CPU: two servers that share a folder, the vLLM project's router."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from driving import Vtop, assert_nothing_left, counters, port_is_free, tiny_settings

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

NAME = "pair"


@pytest.fixture
def router(real_env: Path) -> Path:
    """The router's environment, or a skip."""
    place = real_env / "router"
    if not (place / ".complete").exists():
        pytest.skip(f"no router in {place}: run `python3 tests/real/make_env.py --router`")
    return place


def test_a_request_goes_through_both_halves(vtop: Vtop, real_env: Path, router: Path) -> None:
    """READY after a request through the router; the decode half reports prompt tokens that came from the other."""
    pair = {
        "disaggregated.connector": "shared-folder",
        "disaggregated.prefill": "1",
        "disaggregated.decode": "1",
        "disaggregated.router_python": str(router),
    }
    vtop.run("start", "cpu-small", "--name", NAME, "--wait", *tiny_settings(real_env, **pair), timeout=900)
    whole = vtop.server(NAME)
    assert whole is not None and whole["state"] == "ready"
    servers = [{**s, **s["status"]} for s in vtop.json("status", "--window", "0.5")["servers"]]
    halves = {s["role"]: s for s in servers if s["deployment"] == NAME or s["name"] == NAME}
    assert {"prefill", "decode"} <= set(halves)

    before = counters(halves["decode"]["url"])
    prompt = "Tell me how a server answers many people at once. " * 40
    answer = httpx.post(
        f"{whole['url']}/v1/completions",
        json={"model": "tiny", "prompt": prompt, "max_tokens": 8, "ignore_eos": True},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    after = counters(halves["decode"]["url"])
    page = httpx.get(f"{halves['decode']['url']}/metrics", timeout=30).text
    transferred = [
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith("vllm:prompt_tokens_by_source_total") and "external_kv_transfer" in line
    ]
    assert sum(transferred) > 128
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 8

    vtop.run("stop", NAME, "--yes", timeout=180)
    assert_nothing_left(vtop.home)
    assert all(port_is_free(s["port"]) for s in halves.values())
