"""A real vLLM for CPU from start to stop, through vtop: one server, in the order of a working day."""

from __future__ import annotations

import asyncio
import html
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from driving import Vtop, assert_nothing_left, counters, marked_processes, port_is_free, tiny_settings
from textual.app import App

from vtop.servers.status import ServerState, ServerStatus
from vtop.telemetry.hub import Hub

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

NAME = "real"
CLIENT_OVERHEAD_S = 0.5
"""How much later than the server's own clock the client may see the first token: a few milliseconds on an idle machine,
60 on two cores that three other programs want. What the client adds of itself is for the benchmarks to say; this only
holds that both clocks measure the same thing."""


@pytest.fixture(scope="module")
def server(vtop: Vtop, real_env: Path) -> Iterator[dict[str, Any]]:
    """A READY server whose `vtop start --wait` was killed with SIGKILL in the middle of the start."""
    # Random weights answer at random: one token is all that such an answer may share with its prompt.
    speculation = {
        "speculative.method": "ngram",
        "speculative.num_tokens": "3",
        "speculative.prompt_lookup_min": "1",
        "speculative.prompt_lookup_max": "2",
    }
    # Each answer then says how many of its prompt tokens were cached, and what became of its drafts.
    telling = {"args.enable-prompt-tokens-details": "true", "args.per-request-spec-decode-metrics": "summary"}
    words = tiny_settings(real_env, prefix_caching="true", **speculation, **telling)
    starter = vtop.popen("start", "cpu-small", "--name", NAME, "--wait", *words)
    end = time.monotonic() + 60
    while time.monotonic() < end and starter.poll() is None:
        seen = vtop.server(NAME)
        if seen is not None and seen["state"] == "starting" and seen["pid"]:
            break
        time.sleep(0.5)
    if starter.poll() is not None:
        pytest.fail(f"vtop start ended early: {starter.communicate()[0]}\n{vtop.logs()}")
    starter.send_signal(signal.SIGKILL)
    starter.wait(10)
    yield vtop.until(NAME, "ready")
    vtop.run("stop", NAME, "--yes", check=False)


def test_a_killed_vtop_leaves_the_server_and_the_next_one_adopts_it(server: dict[str, Any]) -> None:
    """The server became READY although the vtop that started it was killed; the phases were read from its log."""
    assert server["owned"] is True
    assert server["model"] == "tiny"
    assert server["version"].startswith("0.32")
    phases = [name for name, _ in server["progress"]["done"]]
    assert "weights" in phases
    assert "kv-cache" in phases


def test_the_page_is_read(vtop: Vtop, server: dict[str, Any]) -> None:
    """`vtop status` has the engine's quantities, and says which this server does not have."""
    seen = vtop.server(NAME)
    assert seen is not None
    engine = seen["engines"][0]
    assert engine["model_name"] == "tiny"
    assert engine["running"] == 0
    assert engine["kv_capacity_tokens"] > 1000
    assert engine["kv_transfer"] is None


def test_a_load_test_counts_the_tokens_that_the_server_counted(vtop: Vtop, server: dict[str, Any]) -> None:
    """Output tokens equal the server's own counter exactly; the client's TTFT is the server's plus a small overhead."""
    name = "vllm:time_to_first_token_seconds"
    overheads = []
    for _ in range(3):
        before = counters(server["url"])
        words = ["--server", NAME, "-c", "4", "-n", "24", "--max-tokens", "24", "--warmup", "0"]
        result = vtop.json("load", "demo", *words)
        after = counters(server["url"])
        assert result["completed"] == 24
        assert result["failed"] == 0
        generated = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
        assert result["output_tokens"] == generated
        assert result["prompt_tokens"] == after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"]
        sums, counts = (after[f"{name}_{end}"] - before[f"{name}_{end}"] for end in ("sum", "count"))
        assert counts == 24
        assert result["server"]["ttft_mean_s"] == pytest.approx(sums / counts)
        overheads.append(result["ttft_mean_s"] - sums / counts)
    # Client and server share two cores with whatever else runs: the quietest of three runs is the client's own share.
    assert 0 < min(overheads) < CLIENT_OVERHEAD_S


def test_speculation_and_prefix_cache_are_the_counters_own_quotients(vtop: Vtop, server: dict[str, Any]) -> None:
    """Prompts that share a long prefix: hit rate and acceptance of the run are what the server's counters say."""
    before = counters(server["url"])
    words = ["--server", NAME, "-c", "2", "-n", "24", "--max-tokens", "16", "--warmup", "0"]
    result = vtop.json("load", "prefix", *words)
    after = counters(server["url"])

    def grown(name: str) -> float:
        return after[f"vllm:{name}_total"] - before[f"vllm:{name}_total"]

    assert result["failed"] == 0
    assert grown("prefix_cache_hits") > 0
    assert result["server"]["prefix_hit_rate"] == pytest.approx(
        grown("prefix_cache_hits") / grown("prefix_cache_queries")
    )
    assert grown("spec_decode_num_draft_tokens") > 0
    assert result["server"]["acceptance"] == pytest.approx(
        grown("spec_decode_num_accepted_tokens") / grown("spec_decode_num_draft_tokens")
    )


def ask(url: str, number: int) -> dict[str, Any]:
    """One chat request; its prompt shares its beginning with those of two thirds of the others.

    What the model surely says next repeats itself, and guesses come true; what it draws at random does not.
    """
    beginning = "Here is a long story about a fox and a hound. " * 25 if number % 3 else f"Number {number}: "
    question = {"role": "user", "content": f"{beginning}What happens in chapter {number % 5}, and {number}?"}
    body = {"model": "tiny", "messages": [question], "max_tokens": 40 if number % 2 else 12 + number % 7}
    body |= {"temperature": number % 2, "seed": number}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_the_readings_are_what_a_client_counted_for_itself(server: dict[str, Any]) -> None:
    """Tokens, cache hits and drafts as every single answer told them, against the snapshot over the same window."""
    status = ServerStatus("real", server["url"], ServerState.READY)
    hub = Hub(server_statuses=lambda: [status], window_s=1e6)
    await hub.tick(60)
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda number: ask(server["url"], number), range(30)))
    usages = [answer["usage"] for answer in answers]
    drafts = [answer["metrics"]["speculative_decoding"] for answer in answers]

    def said(rows: list[dict[str, Any]], key: str) -> int:
        return int(sum(row[key] for row in rows))

    prompts, outputs = said(usages, "prompt_tokens"), said(usages, "completion_tokens")
    cached = said([usage["prompt_tokens_details"] for usage in usages], "cached_tokens")
    steps, drafted = said(drafts, "num_spec_steps"), said(drafts, "num_draft_tokens")
    accepted = said(drafts, "num_accepted_draft_tokens")
    assert cached > 0
    assert 0 < accepted < drafted

    engine, end = None, time.monotonic() + 30
    while time.monotonic() < end:
        # The server counts an answer a moment after it has sent it.
        await hub.tick(60)
        engine = hub.snapshot().servers[0].engine
        if engine is not None and sum(engine.finished_by_reason.values()) == len(answers):
            break
        await asyncio.sleep(0.2)
    await hub.close()
    assert engine is not None
    window_s = engine.window_s
    assert sum(engine.finished_by_reason.values()) == len(answers)
    assert engine.generation_tokens_per_s == pytest.approx(outputs / window_s, rel=1e-9)
    assert engine.prompt_tokens_per_s == pytest.approx(prompts / window_s, rel=1e-9)
    assert engine.prefix_hit_rate == pytest.approx(cached / prompts, rel=1e-9)
    assert engine.prompt_cached_share == pytest.approx(cached / prompts, rel=1e-9)
    assert engine.prompt_computed_share == pytest.approx(1 - cached / prompts, rel=1e-9)
    for latency in (engine.ttft, engine.e2e, engine.queue, engine.prefill):
        assert latency is not None
        assert latency.count == len(answers)
    speculation = engine.speculation
    assert speculation is not None
    assert speculation.acceptance == pytest.approx(accepted / drafted, rel=1e-9)
    assert speculation.mean_length == pytest.approx(1 + accepted / steps, rel=1e-9)
    assert speculation.drafted_tokens_per_s == pytest.approx(drafted / window_s, rel=1e-9)
    assert speculation.wasted_tokens_per_s == pytest.approx((drafted - accepted) / window_s, rel=1e-9)
    longer = [sum(sum(draft["acceptance_histogram"][place:]) for draft in drafts) for place in (1, 2, 3)]
    assert speculation.per_position == pytest.approx([count / steps for count in longer], rel=1e-9)


def test_attach_by_url(vtop: Vtop, server: dict[str, Any], tmp_path: Path) -> None:
    """Another vtop, which started nothing, watches the same server by its address and may not stop it."""
    stranger = Vtop(tmp_path / "stranger", vtop.root)
    status = stranger.json("status", "--url", server["url"], "--window", "1")
    seen = next({**s, **s["status"]} for s in status["servers"] if s["status"]["url"] == server["url"])
    assert seen["owned"] is False
    assert seen["state"] == "foreign"
    assert seen["engines"][0]["model_name"] == "tiny"
    refused = stranger.run("stop", seen["name"], "--yes", check=False)
    assert refused.returncode == 1 or refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert psutil.pid_exists(server["pid"])


def shown(app: App[Any]) -> str:
    """What stands on the screen, as text: the words of the exported picture."""
    words = re.findall(r"<text[^>]*>([^<]*)</text>", app.export_screenshot())
    return html.unescape(" ".join(words)).replace("\xa0", " ")


async def test_the_dashboard_shows_it(vtop: Vtop, server: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The real screen over the real facade against the live server."""
    for key, value in vtop.env().items():
        monkeypatch.setenv(key, value)
    from vtop.service import ServiceOptions, VtopService
    from vtop.ui.app import VtopApp

    app = VtopApp(VtopService(ServiceOptions(discover=False)))
    async with app.run_test(size=(120, 40)) as pilot:
        end = time.monotonic() + 30
        text = ""
        while time.monotonic() < end and not ("READY" in text and "KV" in text and "tiny" in text):
            await pilot.pause(0.5)
            text = shown(app)
        assert "READY" in text
        assert "tiny" in text
        assert "SIMULATED" not in text
    assert psutil.pid_exists(server["pid"])


def test_stop_leaves_nothing(vtop: Vtop, server: dict[str, Any]) -> None:
    """After a stop no process of the tree lives and the port is free; a second stop is harmless."""
    assert len(marked_processes(vtop.home)) >= 3
    done = vtop.run("stop", NAME, "--yes", timeout=120)
    assert "stopped" in done.stdout
    assert_nothing_left(vtop.home)
    assert port_is_free(server["port"])
