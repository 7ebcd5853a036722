"""Servers of others are found without mistaking anything else for one, and are never touched."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from fake_servers import FAKE, eventually, fake, free_port, running

from vtop.servers.discovery import Discovery, find_processes, is_vllm_server, model_of, stray_engines
from vtop.servers.status import ServerState
from vtop.servers.supervisor import Supervisor


@pytest.mark.parametrize(
    "words",
    [
        ["/opt/venv/bin/python3.12", "/opt/venv/bin/vllm", "serve", "some/model"],
        ["vllm", "serve", "some/model", "--port", "9000"],
        ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "some/model"],
        ["python3", "-u", "-X", "dev", "-m", "vllm.entrypoints.openai.api_server", "--model=some/model"],
        ["python", "-m", "vllm.entrypoints.cli.main", "serve", "some/model"],
        ["python", "/x/site-packages/vllm/entrypoints/openai/api_server.py", "--model", "some/model"],
        ["VLLM::APIServer_0"],
    ],
)
def test_servers_are_recognised(words: list[str]) -> None:
    assert is_vllm_server(words)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["tail", "-f", "vllm_server_notes.log"],
        ["bash", "-c", "vllm serve some/model"],
        ["vim", "vllm", "serve"],
        ["python", "-c", "import vllm", "serve"],
        ["vllm", "bench", "serve", "--model", "m"],
        ["vllm", "--help"],
        ["grep", "vllm serve"],
        ["python", "-m", "vllm.benchmarks.serve"],
        ["docker", "run", "vllm/vllm-openai", "serve"],
        ["VLLM::EngineCore"],
        ["python", "-m", "vtop", "start", "vllm"],
    ],
)
def test_nothing_else_is(words: list[str]) -> None:
    assert not is_vllm_server(words)


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (["vllm", "serve", "a/b", "--port", "1"], "a/b"),
        (["vllm", "serve", "a/b", "--served-model-name", "short"], "short"),
        (["python", "-m", "x", "--model=a/b"], "a/b"),
        (["vllm", "serve", "--config", "x.yaml"], None),
    ],
)
def test_the_model_is_read_from_the_arguments(words: Sequence[str], model: str | None) -> None:
    assert model_of(words) == model


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A server whose command line is `python .../vllm serve tiny --port N`; its pid and port."""
    script = tmp_path / "vllm"
    script.write_text(f"import runpy, sys\nsys.argv[1:3] = []\nrunpy.run_path({str(FAKE)!r}, run_name='__main__')\n")
    port = free_port()
    with running(str(script), "serve", "tiny", "--port", str(port), "--engine", "") as process:
        yield process.pid, port


async def test_a_foreign_server_is_found_and_not_owned(foreign: tuple[int, int], supervisor: Supervisor) -> None:
    pid, port = foreign
    await eventually(lambda: pid in {found.pid for found in find_processes()})
    async with httpx.AsyncClient(trust_env=False) as client:
        found = [status for status in await Discovery(client).scan(supervisor.statuses()) if status.port == port]
        assert len(found) == 1
        assert found[0].state is ServerState.FOREIGN
        assert not found[0].owned
        assert found[0].model == "tiny"
        assert found[0].max_model_len == 2048
        assert found[0].pid == pid
        assert found[0].gpu_uuids is None
        assert found[0].gpu_reason
        # Given by URL as well, it is still one server.
        urls = [f"http://localhost:{port}"]
        again = [s for s in await Discovery(client, urls).scan(supervisor.statuses()) if s.port == port]
        assert [status.url for status in again] == urls
    with pytest.raises(Exception, match="has started no server named"):
        await supervisor.stop(found[0].name)


async def test_own_servers_are_not_foreign(supervisor: Supervisor) -> None:
    await supervisor.start("one", "baseline", [fake("--engine", "")])
    ready = await supervisor.wait_ready("one", 30)
    async with httpx.AsyncClient(trust_env=False) as client:
        found = await Discovery(client, [ready.url], processes=False).scan(supervisor.statuses())
    assert found == ()


async def test_a_url_that_does_not_answer_is_shown_with_the_reason() -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        (status,) = await Discovery(client, ["http://127.0.0.1:1/"], processes=False).scan()
    assert status.state is ServerState.FOREIGN
    assert "does not answer" in status.message
    assert status.name == "localhost:1", "what will answer there may not be vLLM"


async def test_a_server_that_wants_a_key_says_so(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1")
    await supervisor.start("one", "baseline", [fake(api_key="env:MY_KEY")])
    url = (await supervisor.wait_ready("one", 30)).url
    async with httpx.AsyncClient(trust_env=False) as client:
        (without,) = await Discovery(client, [url], processes=False).scan()
        (with_key,) = await Discovery(client, [url], processes=False, keys={url: "sk-1"}).scan()
    assert "needs an API key" in without.message
    assert with_key.model == "tiny"


async def test_engines_without_a_server_are_told() -> None:
    """Leftovers of somebody's vLLM that vtop did not start: named, never signalled."""
    code = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid(); print(os.getpid(), flush=True)\n"
        "os.execv(sys.executable, ['VLLM::EngineCore', '-c', 'import time; time.sleep(600)'])"
    )
    with running("-c", code, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        try:
            await eventually(lambda: (pid, "VLLM::EngineCore") in stray_engines())
            assert (pid, "VLLM::EngineCore") not in stray_engines(ours=[pid])
        finally:
            os.kill(pid, signal.SIGKILL)
