"""Servers of others by address: each with its own key by reference, over TLS with a private authority."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli.vtop_process import Vtop
from sim.simprocess import SimProcess, free_port
from vtop.commands.session import keys_of
from vtop.errors import UsageError
from vtop.load.progress import LoadRequest
from vtop.servers.status import ServerState
from vtop.service import ServiceOptions, VtopService
from vtop.settings import Settings

KEYS = {"A_KEY": "sk-of-the-first", "B_KEY": "sk-of-the-second"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SimProcess]]:
    """Two simulated servers that another person started, each with a key of its own."""
    made = []
    for name, key in (("first", KEYS["A_KEY"]), ("second", KEYS["B_KEY"])):
        port, log = free_port(), tmp_path_factory.mktemp(name) / "sim.log"
        words = ["--served-model-name", name, "--startup-s", "0.1", "--speed", "20", "--port", str(port)]
        process = subprocess.Popen(
            [sys.executable, "-m", "vtop.sim", *words], env={**os.environ, "VLLM_API_KEY": key},
            stdout=log.open("wb"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        made.append(SimProcess(process, port, log))
    try:
        yield [server.until_healthy() for server in made]
    finally:
        for server in made:
            server.process.kill()
            server.process.wait()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Key and certificate of `localhost`, which no system trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *make, *name], check=True, capture_output=True)
    return key, cert


@asynccontextmanager
async def over_tls(port: int, certificate: tuple[Path, Path]) -> AsyncIterator[str]:
    """An https address in front of a server."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, forth), copy(back, writer))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    door = await asyncio.start_server(carry, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://localhost:{door.sockets[0].getsockname()[1]}"
    finally:
        door.close()


async def test_everything_but_process_control_works_on_them(
    servers: list[SimProcess], certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    first, second = servers
    async with over_tls(second.port, certificate) as secure:
        references = {first.url: "env:A_KEY", secure: "env:B_KEY"}
        options = ServiceOptions(
            urls=(first.url, secure), api_keys=references, ca_file=str(certificate[1]), discover=False
        )
        service = VtopService(options)
        await service.open()
        try:
            by_model = {status.model: status for status in service.statuses()}
            assert {"first", "second"} <= set(by_model)
            assert by_model["second"].url == secure
            assert {status.state for status in by_model.values()} == {ServerState.FOREIGN}
            # As the screen asks for it: by address, with neither key nor authority.
            small = LoadRequest(url=secure, model="second", requests=3, concurrency=2, max_tokens=8, warmup=0)
            await service.start_load(small)
            assert (await service.wait_load()).completed == 3
            events = [event async for event in service.chat(by_model["second"].name, "Hello?")]
            assert events[-1].error == ""
            assert "".join(event.text for event in events)
            with pytest.raises(Exception, match="started by somebody else"):
                await service.stop_server(by_model["second"].name)
        finally:
            await service.close()


def test_keys_by_address_on_the_command_line(vtop: Vtop, servers: list[SimProcess]) -> None:
    vtop.env |= KEYS
    both = ("--url", servers[0].url, "--api-key", "env:A_KEY", "--url", servers[1].url, "--api-key", "env:B_KEY")
    shown = vtop("status", "--json", "--window", "0.2", *both).json()["servers"]
    assert {"first", "second"} <= {server["status"]["model"] for server in shown}
    refused = vtop("status", "--json", "--window", "0.2", *both[:-1], "env:A_KEY").json()["servers"]
    (told,) = [server["status"]["message"] for server in refused if server["status"]["url"] == servers[1].url]
    assert "it needs an API key" in told


def test_a_key_that_is_not_here_is_refused_where_it_was_typed_and_told_where_it_was_set(
    vtop: Vtop, servers: list[SimProcess]
) -> None:
    url = servers[0].url
    assert "A_KEY is not set" in vtop.fails(2, "status", "--url", url, "--api-key", "env:A_KEY")
    vtop.directory("CONFIG").mkdir(parents=True)
    text = f'urls = ["{url}"]\n[api_keys]\n"{url}" = "env:A_KEY"\n'
    (vtop.directory("CONFIG") / "config.toml").write_text(text, encoding="utf-8")
    assert "it needs an API key" in vtop("status", "--window", "0.2").out
    vtop.env |= KEYS
    assert re.search(r"FOREIGN( SIMULATED)?\s+first", vtop("status", "--window", "0.2").out)


@pytest.fixture
def vtop(tmp_path: Path) -> Iterator[Vtop]:
    own = Vtop(tmp_path / "vtop")
    yield own
    own.end_everything()


A, B = "http://a:8000", "http://b:8000"


@pytest.mark.parametrize(
    ("urls", "references", "settings", "keys"),
    [
        ([A, B], ["env:K"], Settings(), {A: "env:K", B: "env:K"}),
        ([A + "/", B], ["env:K", "file:/k"], Settings(), {A: "env:K", B: "file:/k"}),
        ([A, B], ["none", "env:K"], Settings(), {B: "env:K"}),
        ([A], ["env:K"], Settings(urls=[B]), {A: "env:K"}),
        ([A], ["env:K"], Settings(urls=[B], api_keys={B: "env:L"}), {A: "env:K", B: "env:L"}),
        ([], ["env:K"], Settings(urls=[B]), {B: "env:K"}),
        ([], [], Settings(urls=[B], api_keys={B: "env:L"}), {B: "env:L"}),
    ],
)
def test_a_key_goes_to_the_addresses_that_it_was_given_with(
    urls: list[str], references: list[str], settings: Settings, keys: dict[str, str]
) -> None:
    assert keys_of(urls, references, settings) == keys


@pytest.mark.parametrize(
    ("references", "words"), [(["env:K", "env:L", "env:M"], "3 keys for 2 addresses"), (["sk-1"], "by reference")]
)
def test_keys_that_belong_nowhere_are_refused(references: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        keys_of([A, B], references, Settings())
