"""Several processes as one server: prefill and decode halves, replicas, and the router in front."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vtop.errors import VtopError
from vtop.presets import Disaggregated, Preset, ServerSpec
from vtop.vllm.dialect import commands
from vtop.vllm.install import Installation
from vtop.vllm.launch import LaunchCommand
from vtop.vllm.router import find_router, own_router_environment
from vtop.vllm.versions import hypothetical_installation


@pytest.fixture(autouse=True)
def no_router_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def ports(first: int = 9001) -> Callable[[], int]:
    counted = itertools.count(first)
    return lambda: next(counted)


def start(
    installation: Installation | str = "0.33.0", gpus: tuple[str, ...] | None = None, **words: Any
) -> tuple[LaunchCommand, ...]:
    if isinstance(installation, str):
        installation = hypothetical_installation(installation)
    preset = Preset(title="T", server=ServerSpec(model="org/model", **words))
    return commands(preset, installation, port=8000, gpus=gpus, name="mine", free_port=ports())


def transfer(command: LaunchCommand) -> dict[str, Any]:
    table = json.loads(command.argv[command.argv.index("--kv-transfer-config") + 1])
    assert isinstance(table, dict)
    return table


def test_a_pair_is_three_processes_with_ports_of_their_own() -> None:
    prefill, decode, router = start(disaggregated=Disaggregated(), served_name="m")
    assert [command.role for command in (prefill, decode, router)] == ["prefill", "decode", "router"]
    assert router.port == 8000
    side = [command.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] for command in (prefill, decode)]
    metrics = router.argv[router.argv.index("--prometheus-port") + 1]
    used = [str(prefill.port), str(decode.port), *side, metrics, "8000"]
    assert len(set(used)) == len(used)
    assert router.argv[:6] == (
        "vllm-router", "--vllm-pd-disaggregation", "--prefill", f"http://127.0.0.1:{prefill.port}",
        "--decode", f"http://127.0.0.1:{decode.port}",
    )  # fmt: skip
    assert {command.served_name for command in (prefill, decode, router)} == {"m"}


def test_a_port_that_is_offered_twice_is_taken_once() -> None:
    offered = iter([8000, 9001, 9001, 9002, 9002, 9003, 9004, 9005])
    preset = Preset(title="T", server=ServerSpec(model="m", disaggregated=Disaggregated()))
    installation = hypothetical_installation("0.33.0")
    made = commands(preset, installation, port=8000, name="t", free_port=lambda: next(offered))
    assert [command.port for command in made] == [9001, 9003, 8000]
    with pytest.raises(VtopError, match="no free ports"):
        commands(preset, installation, port=8000, name="t", free_port=lambda: 8000)


@pytest.mark.parametrize(
    ("version", "roles"), [("0.9.0", {"kv_both"}), ("0.32.0", {"kv_both"}), ("0.33.0", {"kv_producer", "kv_consumer"})]
)
def test_nixl_roles_by_version(version: str, roles: set[str]) -> None:
    prefill, decode, _ = start(version, disaggregated=Disaggregated())
    assert {transfer(prefill)["kv_role"], transfer(decode)["kv_role"]} == roles
    assert transfer(prefill)["kv_connector"] == "NixlConnector"
    if len(roles) == 2:
        assert transfer(prefill)["kv_role"] == "kv_producer"


@pytest.mark.parametrize(
    ("version", "connector"),
    [("0.8.5", "SharedStorageConnector"), ("0.12.0", "SharedStorageConnector"), ("0.13.0", "ExampleConnector"),
     ("0.33.0", "ExampleConnector")],
)  # fmt: skip
def test_the_shared_folder_by_version(version: str, connector: str) -> None:
    prefill, decode, _ = start(version, disaggregated=Disaggregated(connector="shared-folder"))
    assert transfer(prefill) == transfer(decode)
    assert transfer(prefill)["kv_connector"] == connector
    folder = transfer(prefill)["kv_connector_extra_config"]["shared_storage_path"]
    assert prefill.scratch_folders == decode.scratch_folders == (folder,)
    assert any("through files" in note for note in prefill.notes)
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT" not in prefill.env


def test_another_model_never_finds_the_numbers_of_this_one() -> None:
    pair = Disaggregated(connector="shared-folder")
    folders = {
        start(version, disaggregated=pair, **words)[0].scratch_folders
        for version, words in (
            ("0.32.0", {}),
            ("0.33.0", {}),
            ("0.33.0", {"dtype": "half"}),
            ("0.33.0", {"load_format": "dummy"}),
        )
    }
    assert len(folders) == 4
    assert start(disaggregated=pair)[0].scratch_folders in folders


@pytest.mark.parametrize(("connector", "version"), [("nixl", "0.8.5"), ("nixl", "0.6.4"), ("shared-folder", "0.8.4")])
def test_versions_without_the_connector_refuse(connector: Any, version: str) -> None:
    with pytest.raises(VtopError, match=f"vLLM {version}") as caught:
        start(version, disaggregated=Disaggregated(connector=connector))
    assert caught.value.remedy


def test_each_half_has_gpus_of_its_own() -> None:
    pair = Disaggregated(prefill=1, decode=2)
    made = start(gpus=tuple("012345"), disaggregated=pair, tensor_parallel=2)
    assert [command.env.get("CUDA_VISIBLE_DEVICES") for command in made] == ["0,1", "2,3", "4,5", None]
    assert made[-1].gpus == ()
    unnamed = start(disaggregated=Disaggregated())
    assert [command.env.get("CUDA_VISIBLE_DEVICES") for command in unnamed] == ["0", "1", None]


def test_too_few_gpus_for_the_halves_are_refused() -> None:
    with pytest.raises(VtopError, match="2 servers with 1 GPU each need 2, not 1") as caught:
        start(gpus=("0",), disaggregated=Disaggregated())
    assert "gpus=2" in caught.value.remedy
    shared = start(gpus=("0", "0"), disaggregated=Disaggregated())
    assert [command.env.get("CUDA_VISIBLE_DEVICES") for command in shared[:2]] == ["0", "0"]


def test_halves_on_a_cpu_have_no_gpus() -> None:
    cpu = hypothetical_installation("0.32.0", device="cpu")
    made = start(cpu, disaggregated=Disaggregated(connector="shared-folder"))
    assert not any(name.startswith("CUDA") for command in made for name in command.env)
    assert any("built from source" in note for note in start(cpu, disaggregated=Disaggregated())[0].notes)


def test_each_half_may_have_flags_of_its_own() -> None:
    pair = Disaggregated(prefill_args={"max-num-seqs": 4}, decode_args={"max_num_seqs": 64, "enforce-eager": True})
    prefill, decode, _ = start(disaggregated=pair, max_num_seqs=16)
    seen = [command.argv[command.argv.index("--max-num-seqs") + 1] for command in (prefill, decode)]
    assert seen == ["4", "64"]
    assert (prefill.max_num_seqs, decode.max_num_seqs) == (4, 64), "what vtop knows is what each is told"
    assert "--enforce-eager" in decode.argv and "--enforce-eager" not in prefill.argv


def test_only_the_router_listens_to_the_network() -> None:
    prefill, decode, router = start(disaggregated=Disaggregated(), host="0.0.0.0")
    assert (prefill.host, decode.host, router.host) == ("127.0.0.1", "127.0.0.1", "0.0.0.0")
    assert router.argv[router.argv.index("--host") + 1] == "0.0.0.0"


def test_the_router_of_a_pair_sends_its_own_key_and_nobody_elses() -> None:
    prefill, _, router = start(disaggregated=Disaggregated(), api_key="env:K")
    assert prefill.api_key_variables == ("VLLM_API_KEY",)
    assert (router.api_key, router.api_key_variables) == ("env:K", ("OPENAI_API_KEY",))
    assert "OPENAI_API_KEY" in router.unset_env


def test_nixl_that_is_not_installed_is_noticed() -> None:
    bare = replace(hypothetical_installation("0.33.0"), plugins=frozenset({"vllm", "vllm-router"}))
    with_nixl = replace(bare, plugins=frozenset({"nixl-cu12"}))
    router = str(own_router_environment() / "bin" / "vllm-router")
    Path(router).parent.mkdir(parents=True)
    Path(router).write_text("")
    assert any("pip install nixl" in note for note in start(bare, disaggregated=Disaggregated())[0].notes)
    assert start(with_nixl, disaggregated=Disaggregated())[0].notes == ()


def test_replicas_are_whole_servers_behind_one_door() -> None:
    first, second, router = start(replicas=2, tensor_parallel=2, gpus=("0", "1", "2", "3"), api_key="env:K")
    assert (first.role, second.role, router.role) == ("replica", "replica", "router")
    assert (first.env["CUDA_VISIBLE_DEVICES"], second.env["CUDA_VISIBLE_DEVICES"]) == ("0,1", "2,3")
    at = router.argv.index("--worker-urls")
    assert router.argv[at + 1 : at + 3] == (f"http://127.0.0.1:{first.port}", f"http://127.0.0.1:{second.port}")
    assert "--vllm-pd-disaggregation" not in router.argv
    assert "--kv-transfer-config" not in first.argv
    assert router.api_key_variables == ("VLLM_API_KEY",), "this one passes the client's key on"


def test_the_router_is_looked_for_where_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "vtop-env" / "bin" / "python"))
    with pytest.raises(VtopError, match="vllm-router was not found") as caught:
        find_router()
    assert "doctor --install-router" in caught.value.remedy

    def put(place: Path) -> str:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("")
        place.chmod(0o755)
        return str(place)

    on_path = put(tmp_path / "empty" / "vllm-router")
    assert find_router() == on_path
    beside = put(tmp_path / "vtop-env" / "bin" / "vllm-router")
    assert find_router() == beside
    own = put(own_router_environment() / "bin" / "vllm-router")
    assert find_router() == own
    told = put(tmp_path / "told" / "bin" / "vllm-router")
    for place in (told, tmp_path / "told", tmp_path / "told" / "bin" / "python"):
        spec = ServerSpec(model="m", disaggregated=Disaggregated(router_python=str(place)))
        assert find_router(spec) == told
    wrong = ServerSpec(model="m", disaggregated=Disaggregated(router_python=str(tmp_path / "not-there")))
    with pytest.raises(VtopError, match="the preset's router_python"):
        find_router(wrong)


def test_a_pair_without_a_router_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    installed = replace(hypothetical_installation("0.33.0"), plugins=frozenset())
    with pytest.raises(VtopError, match="vllm-router was not found"):
        start(installed, disaggregated=Disaggregated())
