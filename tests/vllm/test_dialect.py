"""The command of one server: its two forms, its environment, flags and commands of the preset's own."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from vtop.errors import VtopError
from vtop.presets import Preset, ServerSpec
from vtop.vllm.arguments import gpus_needed
from vtop.vllm.dialect import commands, display, masked_env
from vtop.vllm.install import Installation
from vtop.vllm.launch import LaunchCommand
from vtop.vllm.versions import flags_of, hypothetical_installation

REAL = Installation(
    python="/env/bin/python",
    version="0.32.0",
    flags=flags_of("0.32.0"),
    vllm_command="/env/bin/vllm",
    command_works=True,
    device="cuda",
    plugins=frozenset({"vllm"}),
)


def preset(**words: Any) -> Preset:
    return Preset(title="T", server=ServerSpec(model="org/model", **words))


def one(
    installation: Installation | None = REAL, gpus: tuple[str, ...] | None = None, port: int = 8001, **words: Any
) -> LaunchCommand:
    (command,) = commands(preset(**words), installation, port=port, gpus=gpus, name="mine")
    return command


def value(command: LaunchCommand, flag: str) -> str:
    return command.argv[command.argv.index(flag) + 1]


def test_the_command_and_the_module_say_the_same() -> None:
    command = one(max_num_seqs=4)
    assert command.argv[:7] == ("/env/bin/vllm", "serve", "org/model", "--host", "127.0.0.1", "--port", "8001")
    assert command.fallback_argv is not None
    assert command.fallback_argv[:5] == (
        "/env/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/model",
    )  # fmt: skip
    assert command.fallback_argv[5:] == command.argv[3:]


@pytest.mark.parametrize("broken", [{"command_works": False}, {"command_works": False, "vllm_command": None}])
def test_the_module_comes_first_where_the_command_cannot_work(broken: dict[str, Any]) -> None:
    command = one(replace(REAL, **broken))
    assert command.argv[:3] == ("/env/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    assert command.fallback_argv is None


def test_what_the_supervisor_needs_is_there() -> None:
    command = one(served_name="m", host="0.0.0.0", max_num_seqs=4, max_num_batched_tokens=99, max_model_len=77)
    assert (command.served_name, command.host, command.port) == ("m", "0.0.0.0", 8001)
    assert (command.max_num_seqs, command.max_num_batched_tokens, command.max_model_len) == (4, 99, 77)
    assert (command.version, command.role, command.simulated) == ("0.32.0", "", False)
    assert one().served_name == "org/model"


def test_the_environment_is_quiet_and_counts_gpus_like_nvml() -> None:
    command = one(gpus=("2",))
    assert command.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert command.env["CUDA_VISIBLE_DEVICES"] == "2"
    for name in ("NO_COLOR", "PYTHONUNBUFFERED", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        assert command.env[name] == "1"
    assert {"PROMETHEUS_MULTIPROC_DIR", "VLLM_PORT"} <= set(command.unset_env)
    assert "CUDA_VISIBLE_DEVICES" not in one().env


def test_the_presets_environment_wins() -> None:
    command = one(gpus=("0",), env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "VLLM_PORT": "9", "X": "y"})
    assert command.env["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    assert (command.env["VLLM_PORT"], command.env["X"]) == ("9", "y")
    assert "VLLM_PORT" not in command.unset_env


def test_a_cpu_build_gets_no_gpus() -> None:
    command = one(replace(REAL, device="cpu"), gpus=("0",))
    assert not {name for name in command.env if name.startswith("CUDA")}


@pytest.mark.parametrize(("version", "there"), [("0.13.0", False), ("0.14.1", True), ("0.33.0", True)])
def test_the_engine_may_load_as_long_as_vtop_waits(version: str, there: bool) -> None:
    """Else the API server gives up after 600 s, and the engine goes on loading and holds the GPU."""
    env = one(hypothetical_installation(version)).env
    assert (env.get("VLLM_ENGINE_READY_TIMEOUT_S") == "1800") == there


def test_gpus_by_uuid_are_known_to_the_supervisor() -> None:
    assert one(gpus=("GPU-1",)).gpus == ("GPU-1",)
    assert one(gpus=("0",)).gpus is None


def test_too_few_gpus_are_refused_and_too_many_noticed() -> None:
    with pytest.raises(VtopError, match="needs 4 GPUs") as caught:
        one(gpus=("0", "1"), tensor_parallel=2, pipeline_parallel=2)
    assert "gpus=4" in caught.value.remedy
    assert any("4 GPUs are reserved" in note for note in one(gpus=("0", "1", "2", "3")).notes)
    assert one(gpus=("0", "1"), tensor_parallel=2).notes == ()


def test_several_machines_are_not_counted() -> None:
    one(gpus=("0", "1"), tensor_parallel=8, args={"distributed-executor-backend": "ray"})


def test_a_headless_half_of_a_server_on_two_machines_is_known_and_only_the_command_can_start_it() -> None:
    second = one(args={"nnodes": 2, "node-rank": 1, "master-addr": "10.0.0.1", "headless": True})
    assert second.headless
    assert "--headless" in second.argv
    assert second.fallback_argv is None
    first = one(args={"nnodes": 2, "node-rank": 0, "master-addr": "10.0.0.1"})
    assert not first.headless
    assert first.fallback_argv is not None


def test_own_flags_come_last_and_win() -> None:
    command = one(
        max_model_len=4096,
        prefix_caching=True,
        enforce_eager=True,
        args={
            "max_model_len": "auto",
            "no-enable-prefix-caching": True,
            "enforce-eager": False,
            "seed": 3,
            "lora-modules": ["a=/a", "b=/b"],
            "compilation-config": {"level": 3},
            "kv-transfer-config.kv_role": "kv_both",
            "hf_overrides.rope_theta": 5,
            "hf-overrides": "-x",
        },
    )
    words = list(command.argv)
    assert words.count("--max-model-len") == 1
    assert value(command, "--max-model-len") == "auto"
    assert "--no-enable-prefix-caching" in words and "--enable-prefix-caching" not in words
    assert "--no-enforce-eager" in words and "--enforce-eager" not in words
    assert value(command, "--seed") == "3"
    at = words.index("--lora-modules")
    assert words[at : at + 3] == ["--lora-modules", "a=/a", "b=/b"]
    assert json.loads(value(command, "--compilation-config")) == {"level": 3}
    assert value(command, "--kv-transfer-config.kv_role") == "kv_both"
    assert value(command, "--hf-overrides.rope_theta") == "5", "underscores are dashes, but not in the table's key"
    assert "--hf-overrides=-x" in words, "argparse would take -x for a flag"


def test_a_switch_without_a_twin_is_left_out_when_it_is_off() -> None:
    command = one(hypothetical_installation("0.6.0"), args={"enforce-eager": False})
    assert not [word for word in command.argv if "enforce-eager" in word]


@pytest.mark.parametrize(
    ("flag", "what", "remedy"),
    [
        ("max-modle-len", "vLLM 0.32.0 has no --max-modle-len (server.args.max-modle-len)", "mean --max-model-len?"),
        ("swap-space", "has no --swap-space (server.args.swap-space); vLLM 0.6.0 to 0.17.1 has it", "Take it"),
        ("qqqqqqqq", "vLLM 0.32.0 has no --qqqqqqqq", "Take it out"),
    ],
)  # fmt: skip
def test_a_flag_that_this_vllm_lacks_is_found_before_the_start(flag: str, what: str, remedy: str) -> None:
    """vLLM would say so after 20 s of imports."""
    with pytest.raises(VtopError) as caught:
        one(args={flag: 1})
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_a_plugins_flag_is_left_to_the_plugin() -> None:
    command = one(replace(REAL, plugins=frozenset({"vllm", "vllm-ascend"})), args={"ascend-thing": 1})
    assert value(command, "--ascend-thing") == "1"
    assert any("left to vllm-ascend" in note for note in command.notes)


def test_a_key_is_nowhere_in_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "k3y-value")
    command = one(api_key="env:MY_KEY")
    assert command.api_key == "env:MY_KEY"
    assert command.api_key_variables == ("VLLM_API_KEY",)
    assert "k3y-value" not in f"{command} {display(command)}"
    assert masked_env(command)["VLLM_API_KEY"] == "***"


def test_what_looks_secret_is_masked() -> None:
    command = replace(one(), env={"HF_TOKEN": "k3y", "HOME": "/h"})
    assert masked_env(command) == {"HF_TOKEN": "***", "HOME": "/h"}


def test_the_shown_command_is_one_a_shell_takes() -> None:
    command = one(served_name="a b", args={"compilation-config": {"level": 3}}, env={"A": "x y"})
    words = shlex.split(display(command).replace("\\\n", " "))
    given = len(command.env)
    assert tuple(words[given:]) == command.argv
    assert "A=x y" in words[:given]


def test_without_an_installation_there_is_nothing_to_start() -> None:
    with pytest.raises(VtopError, match="no vLLM installation"):
        one(None)


CONTAINER = [
    "docker", "run", "--rm", "--name", "vtop-{name}", "--gpus", '"device={gpus}"', "-p", "127.0.0.1:{port}:{port}",
    "-e", "VLLM_API_KEY", "vllm/vllm-openai:v0.11.0", "{args}",
]  # fmt: skip


def test_a_command_of_ones_own_gets_args_port_and_gpus() -> None:
    command = one(
        None,
        gpus=("0", "1"),
        command=CONTAINER,
        stop_command=["docker", "stop", "vtop-{name}"],
        vllm_version="0.11.0",
        tensor_parallel=2,
        args={"host": "0.0.0.0"},
    )
    words = list(command.argv)
    assert words[:9] == [
        "docker", "run", "--rm", "--name", "vtop-mine", "--gpus", '"device=0,1"', "-p", "127.0.0.1:8001:8001",
    ]  # fmt: skip
    assert words[11:13] == ["vllm/vllm-openai:v0.11.0", "--model"]
    assert value(command, "--tensor-parallel-size") == "2"
    assert value(command, "--host") == "0.0.0.0" and words.count("--host") == 1
    assert command.host == "127.0.0.1", "where vtop asks"
    assert "--enable-mfu-metrics" not in words, "not in the version inside"
    assert command.stop_argv == ("docker", "stop", "vtop-mine")
    assert command.fallback_argv is None
    assert command.version == "0.11.0"


def test_arguments_inside_a_shell_line_are_quoted() -> None:
    command = one(
        None, command=["sh", "-c", "exec vllm serve {model} {args}"], served_name="a b", vllm_version="0.32.0"
    )
    line = command.argv[2]
    assert shlex.split(line)[:4] == ["exec", "vllm", "serve", "org/model"]
    assert "--model" not in shlex.split(line)
    assert "a b" in shlex.split(line)


def test_braces_that_are_not_places_stay() -> None:
    assert one(None, command=["x", '{"a": {port}}', "{other}"]).argv == ("x", '{"a": 8001}', "{other}")


def test_what_cannot_be_known_about_a_container_is_said() -> None:
    assert any("set vllm_version" in note for note in one(None, command=["x", "{args}"]).notes)
    assert any("has no {args}" in note for note in one(None, command=["x"], max_num_seqs=3).notes)
    assert one(None, command=["x", "{gpus}"]).argv == ("x", "all")


def test_what_vtop_knows_of_a_server_is_what_its_own_flags_say() -> None:
    """They win on the command line, so they must where vtop counts with them too."""
    spec = {"max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 2048, "shutdown_timeout_s": 5.0}
    own = {"max_model_len": "auto", "max-num-seqs": 8, "max_num_batched_tokens": 4096, "shutdown-timeout": 60}
    command = one(**spec, args=own)
    assert (command.max_model_len, command.max_num_seqs, command.max_num_batched_tokens) == (None, 8, 4096)
    assert command.shutdown_timeout_s == 60.0
    plain = one(**spec)
    assert (plain.max_model_len, plain.max_num_seqs, plain.max_num_batched_tokens) == (8192, 256, 2048)
    assert plain.shutdown_timeout_s == 5.0


def test_gpus_are_counted_as_the_presets_own_flags_say() -> None:
    two = one(gpus=("0", "1"), args={"tensor-parallel-size": 2})
    assert not [note for note in two.notes if "GPUs are reserved" in note]
    with pytest.raises(VtopError, match="needs 2 GPUs"):
        one(gpus=("0",), args={"tensor_parallel_size": 2})
    assert gpus_needed(preset(args={"tensor-parallel-size": -1}).server) == 1, "vLLM itself will refuse it"


@pytest.mark.parametrize(
    ("told", "waited_s"), [({}, 1800.0), ("7200", 7200.0), ("60", 1800.0), ("x", 1800.0), ("9" * 400, 1800.0)]
)
def test_a_start_is_not_given_up_before_the_engines_own_limit(told: Any, waited_s: float) -> None:
    env = {"VLLM_ENGINE_READY_TIMEOUT_S": told} if told else {}
    assert one(env=env).ready_timeout_s == waited_s
    container = preset(env=env, command=["docker", "run", "{args}"], vllm_version="0.32.0")
    assert commands(container, None, port=1, name="c")[0].ready_timeout_s == waited_s
