from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from load_helpers import Replay

from vtop.errors import UsageError, VtopError
from vtop.load.client import Target
from vtop.load.progress import LoadRequest
from vtop.load.stage import LocalDriver, PromptSource
from vtop.load.words import WordSource
from vtop.load.workload import resolve

ANSWER = (
    b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *words, *names], check=True, capture_output=True)
    return key, cert


async def _send(certificate: tuple[Path, Path], ca_file: str | None) -> list[bool]:
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = await asyncio.start_server(Replay([(0.01, ANSWER)], "eof").answer, "127.0.0.1", 0, ssl=context)
    try:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        shape = resolve(LoadRequest(url=url, requests=2, concurrency=2, warmup=0, seed=1))
        driver = LocalDriver(
            target=Target.from_url(url, ca_file),
            model="m",
            api_key=None,
            running_usage=False,
            prompts=PromptSource(shape, WordSource()),
        )
        try:
            await driver.prepare(shape, lambda record: None)
            await driver.run()
        finally:
            await driver.close()
        return [record.ok for record in driver.records]
    finally:
        server.close()


async def test_load_over_tls_with_a_private_authority(certificate: tuple[Path, Path]) -> None:
    assert await _send(certificate, str(certificate[1])) == [True, True]


async def test_an_untrusted_certificate_is_said_before_the_start(certificate: tuple[Path, Path]) -> None:
    with pytest.raises(VtopError, match="certificate is not trusted"):
        await _send(certificate, None)


@pytest.mark.parametrize("url", ["http://me:hidden@127.0.0.1:99999", "ftp://me:hidden@127.0.0.1", "me:hidden@host:1"])
def test_a_refused_address_does_not_repeat_its_password(url: str) -> None:
    with pytest.raises(UsageError) as error:
        Target.from_url(url)
    assert "hidden" not in str(error.value)
