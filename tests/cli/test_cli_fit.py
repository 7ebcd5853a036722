"""`vtop fit` of what is running: by the name of a server of vtop, and by the address of any server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.vtop_process import Vtop

ON = ("--gpu", "RTX 4090")


@pytest.fixture
def vtop(tmp_path: Path) -> Iterator[Vtop]:
    own = Vtop(tmp_path)
    yield own
    own.end_everything()


def test_a_running_server_by_name_and_by_address(vtop: Vtop) -> None:
    vtop("start", "awq", "--sim", "--name", "mine", "--wait", "--set", "port=auto", "--set", "args.startup-s=0.2",
         "--set", "max_model_len=2048")  # fmt: skip
    servers = [view["status"] for view in vtop("status", "--json").json()["servers"]]
    (url,) = [status["url"] for status in servers if status["name"] == "mine"]
    by_name = vtop("fit", "mine", *ON, "--json").json()
    assert by_name["setup"]["shape"]["name"] == "Qwen/Qwen2.5-7B-Instruct-AWQ"
    assert by_name["context"] == 2048
    by_address = vtop("fit", url, *ON)
    assert "Qwen/Qwen2.5-7B-Instruct-AWQ on RTX 4090: fits" in by_address.out
    assert "16 x 2048 tokens" in by_address.out
    assert "the server itself says: its KV cache holds" in by_address.out
    vtop("stop", "mine", "--yes")


def test_an_address_where_nobody_answers_and_a_mistyped_name_are_told_so(vtop: Vtop) -> None:
    assert "does not answer" in vtop.fails(1, "fit", "http://127.0.0.1:1", *ON)
    assert "Did you mean baseline?" in vtop.fails(2, "fit", "baselin", *ON)
