"""The poller against real sockets: servers that drip, redirect, refuse, lie, hang, or are something else."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import itertools
import random
import re
import time
from pathlib import Path

import pytest
from metric_pages import case, version_page
from raw_server import Asked, Handler, Writer, answer, serving, write_answer

from vtop.clock import FakeClock, SystemClock
from vtop.telemetry import scrape
from vtop.telemetry.scrape import Poller, ServerAccess, version_in
from vtop.vllm.reading import ScrapeStatus

PAGE = version_page("0.33.0")
SECRET = "sk-very-secret-42"


async def polled(handler: Handler, access: ServerAccess | None = None, deadline_s: float = 5.0) -> Poller:
    """A poller after one look at a server with this handler."""
    async with serving(handler) as server:
        poller = Poller(server.url, SystemClock(), 10, access, deadline_s)
        await poller.poll()
        await poller.close()
    return poller


async def outcome(handler: Handler, deadline_s: float = 5.0) -> ScrapeStatus:
    """How that look went; without a good page there must be no figures."""
    poller = await polled(handler, deadline_s=deadline_s)
    status = poller.status()
    if status.state not in ("ok", "other-server"):
        assert poller.engines == ()
    return status


async def test_a_good_page_is_read_and_the_version_asked_for_once() -> None:
    async def handle(asked: Asked, writer: Writer) -> None:
        if asked.path == "/version":
            body = b'{"version": "0.33.0"}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        else:
            write_answer(asked, writer, PAGE)

    async with serving(handle) as server:
        poller = Poller(server.url, SystemClock(), 10)
        for _ in range(3):
            await poller.poll()
        await poller.close()
        assert [asked.path for asked in server.asked] == ["/metrics", "/version", "/metrics", "/metrics"]
    assert poller.status().state == "ok"
    assert poller.version == "0.33.0"
    assert poller.engines[0].running == 12
    assert poller.engines[0].generation_tokens_per_s == 0


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/metrics", "/metrics/"])
async def test_an_address_may_be_given_with_or_without_its_usual_endings(suffix: str) -> None:
    async with serving(answer(PAGE)) as server:
        poller = Poller(server.url + suffix, SystemClock(), 10)
        await poller.poll()
        await poller.close()
        assert server.paths() == ["/metrics"]
    assert poller.status().state == "ok"


async def test_an_empty_page_is_serving_without_metrics() -> None:
    status = await outcome(answer(b"", headers=[("content-type", "text/plain; version=0.0.4; charset=utf-8")]))
    assert (status.state, status.message) == ("empty", "serving, but the metrics page is empty")


async def test_an_empty_chunked_page_is_the_same() -> None:
    async def handle(asked: Asked, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")

    assert (await outcome(handle)).state == "empty"


async def test_a_redirect_within_the_server_is_followed_and_remembered() -> None:
    async def handle(asked: Asked, writer: Writer) -> None:
        if asked.path == "/metrics":
            place = f"http://{asked.headers['host']}/metrics/"
            write_answer(asked, writer, b"", 307, [("location", place)])
        else:
            write_answer(asked, writer, case("redirect.txt"))

    async with serving(handle) as server:
        poller = Poller(server.url, SystemClock(), 10)
        await poller.poll()
        await poller.poll()
        await poller.close()
        assert server.paths() == ["/metrics", "/metrics/", "/metrics/"]
    assert poller.status().state == "ok"
    assert poller.engines[0].running == 1


async def test_a_key_is_never_sent_to_another_place(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    async with serving(answer(PAGE)) as other:
        handler = answer(b"", 302, [("location", f"{other.url}/?next=/metrics")])
        async with serving(handler) as server:
            poller = Poller(server.url, SystemClock(), 10, ServerAccess(f"file:{key}"))
            await poller.poll()
            await poller.close()
            assert server.asked[0].headers["authorization"] == f"Bearer {SECRET}"
        assert other.asked == [], "the same host with another port is another server"
    status = poller.status()
    assert status.state == "redirect-refused"
    assert other.url in status.message
    assert SECRET not in repr(status)


@pytest.mark.parametrize("location", ["https://login.example.net/?next=/metrics", "//login.example.net/", "ftp://x/"])
async def test_a_redirect_to_another_host_or_scheme_is_reported(location: str) -> None:
    status = await outcome(answer(b"", 302, [("location", location)]))
    assert status.state == "redirect-refused"
    assert "another place" in status.message


async def test_a_redirect_loop_ends_in_a_state_not_in_a_hang() -> None:
    async with serving(answer(b"", 307, [("location", "/metrics")])) as server:
        poller = Poller(server.url, SystemClock(), 10)
        await poller.poll()
        await poller.close()
        assert len(server.asked) == 6
    assert poller.status().state == "redirect-refused"
    assert "loop" in poller.status().message


@pytest.mark.parametrize(
    ("handler", "state", "words"),
    [
        (answer(b'{"error":"Unauthorized"}', 401, [("content-type", "application/json")]), "needs-key", "needs a key"),
        (answer(b"Forbidden", 403), "needs-key", "forbidden"),
        (answer(b'{"detail":"Not Found"}', 404), "not-found", "no metrics at this path"),
        (answer(case("login.html"), headers=[("content-type", "text/html; charset=utf-8")]), "not-metrics", "HTML"),
        (answer(case("login.html"), headers=[("content-type", "text/plain")]), "not-metrics", "HTML"),
        (answer(b'{"status":"ok"}'), "not-metrics", "JSON"),
        (answer(b"hello world\nnothing here\n"), "not-metrics", "not a metrics page"),
        (answer(b"\x89PNG\r\n\x1a\n\x00\x00\xff"), "not-metrics", "not a metrics page"),
        (answer(b"oops", 500), "http-error", "500"),
        (answer(b"", 503), "http-error", "503"),
        (answer(PAGE[:20_000]), "malformed", "cut off"),
        (answer(b"process_start_time_seconds 1\nhttp_requests_total 5\n"), "no-vllm-series", "disable-log-stats"),
        (answer(b"# TYPE vllm:num_requests_running gauge\n"), "no-vllm-series", "before the first request"),
    ],
)
async def test_what_is_no_page_of_figures_is_named_for_what_it_is(handler: Handler, state: str, words: str) -> None:
    status = await outcome(handler)
    assert status.state == state
    assert words in status.message


async def test_a_page_is_what_its_content_is_whatever_its_header_says() -> None:
    status = await outcome(answer(PAGE, headers=[("content-type", "text/html")]))
    assert status.state == "ok"


async def test_llamacpp_on_the_port_is_named_and_its_own_figures_are_marked() -> None:
    poller = await polled(answer(case("llamacpp_plain.txt")))
    assert poller.status().state == "other-server"
    assert "llama.cpp" in poller.status().message
    (engine,) = poller.engines
    assert (engine.server_kind, engine.running) == ("llama.cpp", 1)
    assert engine.kv_usage is None


async def test_llamacpp_without_metrics_is_named() -> None:
    body = (
        b'{"error":{"code":501,"message":"This server does not support metrics endpoint. Start it with `--metrics`"}}'
    )
    status = await outcome(answer(body, 501, [("content-type", "application/json")]))
    assert status.state == "other-server"
    assert "llama.cpp" in status.message


async def test_a_page_wrapped_in_a_json_string_is_not_parsed_into_nonsense() -> None:
    poller = await polled(answer(case("llamacpp_quoted.txt"), headers=[("content-type", "application/json")]))
    assert poller.status().state == "other-server"
    assert poller.engines == ()


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (b'sglang:num_running_reqs{model_name="m"} 3\n', "SGLang"),
        (b"tgi_queue_size 3\n", "TGI"),
        (b"vllm_router_requests_total 3\n", "router"),
        (b"nv_inference_count 3\n", "Triton"),
    ],
)
async def test_other_servers_are_named(line: bytes, title: str) -> None:
    status = await outcome(answer(line))
    assert status.state == "other-server"
    assert title in status.message


async def test_sglangs_figures_are_read_under_its_own_name() -> None:
    pages = iter((100, 700))

    async def handle(asked: Asked, writer: Writer) -> None:
        text = 'sglang:num_running_reqs{model_name="m"} 3\nsglang:token_usage{model_name="m"} 0.25\n'
        text += f'sglang:generation_tokens_total{{model_name="m"}} {next(pages)}\n'
        write_answer(asked, writer, text.encode())

    async with serving(handle) as server:
        clock = FakeClock()
        poller = Poller(server.url, clock, 10)
        await poller.poll()
        clock.advance(10)
        await poller.poll()
        await poller.close()
    (engine,) = poller.engines
    assert (engine.server_kind, engine.kv_usage) == ("sglang", 0.25)
    assert engine.generation_tokens_per_s == 60


@pytest.mark.parametrize(
    ("shares", "mean", "most"), [((0.3, 0.5), 0.4, 0.5), ((0.9, 0.7), 0.8, 0.9), ((0.9, 1.7), None, None)]
)
async def test_shares_of_sglangs_data_parallel_engines_are_not_added_up(
    shares: tuple[float, float], mean: float | None, most: float | None
) -> None:
    async def handle(asked: Asked, writer: Writer) -> None:
        text = ""
        for rank, share in enumerate(shares):
            text += f'sglang:num_running_reqs{{model_name="m",dp_rank="{rank}"}} 3\n'
            text += f'sglang:token_usage{{model_name="m",dp_rank="{rank}"}} {share}\n'
        write_answer(asked, writer, text.encode())

    async with serving(handle) as server:
        poller = Poller(server.url, FakeClock(), 10)
        await poller.poll()
        await poller.close()
    (engine,) = poller.engines
    assert (engine.running, engine.kv_usage, engine.kv_usage_max) == (6, pytest.approx(mean), most)


async def test_a_page_that_drips_meets_the_deadline() -> None:
    async def drip(asked: Asked, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        for _ in range(600):
            writer.write(b"vllm:x 1\n")
            await writer.drain()
            await asyncio.sleep(0.1)

    began = time.monotonic()
    status = await outcome(drip, deadline_s=0.5)
    assert status.state == "timeout"
    assert time.monotonic() - began < 10


async def test_a_server_that_never_answers_meets_the_deadline() -> None:
    async def hang(asked: Asked, writer: Writer) -> None:
        await asyncio.sleep(3600)

    status = await outcome(hang, deadline_s=0.3)
    assert (status.state, status.message) == ("timeout", "no complete answer within 0.3 s")


async def test_nothing_listening_is_unreachable_and_pending_while_a_server_starts() -> None:
    poller = Poller("http://127.0.0.1:9", SystemClock(), 10)
    await poller.poll()
    assert (poller.status().state, poller.status().message) == ("unreachable", "nothing listens there")
    await poller.poll(starting=True)
    assert poller.status().state == "pending"
    await poller.close()


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://x", "http://", "http://[::1", "http://a b/", "http://x:99999"])
async def test_an_address_that_is_none_is_said_in_words(url: str) -> None:
    poller = Poller(url, SystemClock(), 10)
    await poller.poll()
    await poller.close()
    assert poller.status().state == "unreachable"
    assert poller.status().message


async def test_https_to_an_http_server_is_said_in_words() -> None:
    async with serving(answer(PAGE)) as server:
        poller = Poller(server.url.replace("http:", "https:"), SystemClock(), 10, deadline_s=2)
        await poller.poll()
        await poller.close()
    assert poller.status().state in ("unreachable", "timeout")


async def test_a_ca_file_that_is_missing_is_said_in_words(tmp_path: Path) -> None:
    poller = Poller("https://127.0.0.1:9", SystemClock(), 10, ServerAccess(ca_file=str(tmp_path / "none.pem")))
    await poller.poll()
    assert "CA file" in poller.status().message


async def test_a_page_beyond_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MOST_BYTES", 1 << 20)
    status = await outcome(answer(PAGE * 30))
    assert status.state == "malformed"
    assert "larger than 1 MiB" in status.message


async def test_a_large_page_within_the_limit_is_read_while_the_loop_goes_on() -> None:
    lines = [line for line in PAGE.decode().splitlines() if line.startswith("vllm:")]
    big = "\n".join(line.replace('engine="0"', f'engine="{n}"') for n in range(60) for line in lines).encode() + b"\n"
    assert len(big) > 1 << 21
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.005)
            beats += 1

    async with serving(answer(big)) as server:
        poller = Poller(server.url, SystemClock(), 10, deadline_s=60)
        task = asyncio.create_task(beat())
        await poller.poll()
        task.cancel()
        await poller.close()
    assert poller.engines[0].engines == 60
    assert beats > 3


async def test_a_compressed_page_is_read_although_none_was_asked_for() -> None:
    status = await outcome(answer(gzip.compress(PAGE), headers=[("content-encoding", "gzip")]))
    assert status.state == "ok"


async def test_a_compressed_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MOST_BYTES", 1 << 20)
    bomb = gzip.compress(b"a" * (1 << 24))
    status = await outcome(answer(bomb, headers=[("content-encoding", "gzip")]))
    assert status.state == "malformed"


async def test_an_answer_cut_by_the_connection_is_not_used() -> None:
    async def cut(asked: Asked, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 90000\r\n\r\n" + PAGE[:30_000])
        await writer.drain()
        writer.close()

    assert (await outcome(cut)).state == "malformed"


async def test_a_reused_connection_that_the_server_closed_is_no_failure() -> None:
    async def once(asked: Asked, writer: Writer) -> None:
        write_answer(asked, writer, PAGE)
        await writer.drain()
        writer.close()

    async with serving(once) as server:
        poller = Poller(server.url, SystemClock(), 10)
        for _ in range(5):
            await poller.poll()
            assert poller.status().state == "ok"
        await poller.close()


async def test_a_server_that_has_just_become_ready_is_read_at_once() -> None:
    """Half a minute of loading in silence is no row of failures that a pause would follow."""
    clock = FakeClock()
    poller = Poller("http://127.0.0.1:9", clock, 10)
    for _ in range(30):
        assert await poller.poll(starting=True)
        clock.advance(1)
    assert await poller.poll()
    await poller.close()


async def test_failures_are_given_a_growing_pause_and_recovery_is_noticed() -> None:
    state = {"status": 500}

    async def handle(asked: Asked, writer: Writer) -> None:
        write_answer(asked, writer, PAGE if state["status"] == 200 else b"", state["status"])

    clock = FakeClock()
    async with serving(handle) as server:
        poller = Poller(server.url, clock, 10)
        looks = []
        for second in range(60):
            if await poller.poll():
                looks.append(second)
            clock.advance(1)
        pauses = [later - earlier for earlier, later in itertools.pairwise(looks)]
        assert pauses[0] == 1, "the first failure is looked at again at once"
        assert pauses == sorted(pauses)
        assert max(pauses) <= 10
        state["status"] = 200
        clock.advance(10)
        assert await poller.poll()
        assert poller.status().state == "ok"
        await poller.close()


async def test_the_last_figures_stay_for_a_passing_failure_and_go_after_a_lasting_one() -> None:
    state = {"status": 200}

    async def handle(asked: Asked, writer: Writer) -> None:
        write_answer(asked, writer, PAGE, state["status"])

    clock = FakeClock()
    async with serving(handle) as server:
        poller = Poller(server.url, clock, 10)
        await poller.poll()
        state["status"] = 500
        clock.advance(3)
        await poller.poll()
        assert poller.engines
        assert poller.status().last_ok_age_s == pytest.approx(3)
        clock.advance(30)
        await poller.poll()
        assert poller.engines == ()
        await poller.close()


async def test_figures_go_at_once_when_the_page_becomes_something_else() -> None:
    state = {"body": PAGE}

    async def handle(asked: Asked, writer: Writer) -> None:
        write_answer(asked, writer, state["body"])

    async with serving(handle) as server:
        poller = Poller(server.url, SystemClock(), 10)
        await poller.poll()
        assert poller.engines
        state["body"] = case("login.html")
        await poller.poll()
        await poller.close()
    assert poller.engines == ()


async def test_a_key_that_cannot_be_found_is_said_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING_KEY", raising=False)
    async with serving(answer(PAGE)) as server:
        poller = Poller(server.url, SystemClock(), 10, ServerAccess("env:MISSING_KEY"))
        await poller.poll()
        await poller.close()
        assert server.asked == []
    assert poller.status().state == "needs-key"
    assert "MISSING_KEY" in poller.status().message


async def test_a_key_with_a_line_break_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAD_KEY", f"{SECRET}\nx: y")
    poller = await polled(answer(PAGE), ServerAccess("env:BAD_KEY"))
    assert poller.status().state == "needs-key"
    assert SECRET not in repr(poller.status())


async def test_proxy_variables_are_not_consulted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert (await outcome(answer(PAGE))).state == "ok"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"version": 5}', b'{"version": "<b>"}', b"\xff"])
def test_a_version_that_is_none_is_unknown(body: bytes) -> None:
    assert version_in(body) is None


STATES = set(re.findall(r"`([a-z-]+)`", inspect.getsource(ScrapeStatus).partition("message")[0]))


def any_answer(chance: random.Random) -> bytes:
    """What a broken server, a proxy or another protocol may send."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randrange(400))
    body = PAGE[: chance.choice([0, 1, 200, 20_000, len(PAGE)])]
    if chance.random() < 0.5:
        spoiled = bytearray(body)
        for _ in range(chance.randrange(1, 30) if body else 0):
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        body = bytes(spoiled)
    status = chance.choice([200, 200, 200, 204, 206, 301, 307, 400, 401, 403, 404, 418, 429, 500, 501, 502, 503, 999])
    headers = [b"HTTP/1.1 %d X" % status]
    if kind != 1:
        headers.append(b"content-length: %d" % (len(body) + chance.choice([0, 0, 0, -1, 50, 10**9])))
    headers += chance.sample(
        [
            b"content-encoding: gzip",
            b"content-encoding: br",
            b"transfer-encoding: chunked",
            b"content-type: text/html",
            b"content-type: application/openmetrics-text",
            b"location: http://[::1",
            b"location: /metrics?x=1",
            b"x: " + b"y" * 70_000,
            b"\x00\xff: \x01",
        ],
        chance.randrange(3),
    )
    return b"\r\n".join(headers) + b"\r\n\r\n" + body


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_comes_back_the_poller_names_it_and_shows_no_figures_of_it(seed: int) -> None:
    chance = random.Random(seed)

    async def handle(asked: Asked, writer: Writer) -> None:
        writer.write(any_answer(chance))
        await writer.drain()
        writer.close()

    poller = await polled(handle, deadline_s=20)
    status = poller.status()
    assert status.state in STATES
    assert status.state == "ok" or status.message
    for engine in poller.engines:
        assert status.state == "ok"
        # A page with some spoilt bytes may still be whole; rates would need a second one.
        assert engine.generation_tokens_per_s is None


def test_the_states_are_read_from_their_documentation() -> None:
    assert {"ok", "pending", "needs-key", "malformed", "redirect-refused"} <= STATES
    assert len(STATES) == 13
