"""Two servers started for one port: both may bind it while neither listens; only one of them answers."""

from __future__ import annotations

from collections.abc import Iterable

import httpx
import pytest

from vtop.servers import readiness
from vtop.servers.ports import Listeners, PortOwner
from vtop.servers.process import ProcessIdentity, here
from vtop.servers.readiness import Readiness, probe
from vtop.servers.state_files import ServerRecord

STRANGER = Listeners(False, PortOwner(4711, "vllm serve m --port 8000"))
NOBODY, OURS = Listeners(False, None), Listeners(True, None)


def answer(request: httpx.Request) -> httpx.Response:
    """A healthy server that serves the very model."""
    if request.url.path == "/v1/models":
        return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 2048}]})
    return httpx.Response(200, json={"choices": [{"text": "one"}]})


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ((NOBODY, STRANGER), Readiness.CONFLICT),
        ((STRANGER,), Readiness.CONFLICT),
        ((NOBODY, OURS), Readiness.READY),
        ((OURS,), Readiness.READY),
        ((NOBODY, NOBODY), Readiness.READY),
    ],
    ids=["a stranger came first", "a stranger was there", "ours came", "ours was there", "nobody can be seen"],
)
async def test_an_answer_of_a_stranger_that_came_meanwhile_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[Listeners, ...], expected: Readiness
) -> None:
    seen = list(looks)

    def listeners(port: int, tree: Iterable[ProcessIdentity]) -> Listeners:
        return seen.pop(0)

    monkeypatch.setattr(readiness, "listeners", listeners)
    record = ServerRecord(
        name="mine",
        preset=None,
        mark="x",
        place=here(),
        served_name="m",
        host="127.0.0.1",
        port=8000,
        started_wall_s=0.0,
    )
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        found = await probe(client, record, (), None)
    assert found.readiness is expected
    assert not seen, "no look too few"
    if expected is Readiness.CONFLICT:
        assert "4711" in found.message
