"""Every shipped preset as simulated processes, and the simulated GPU that is read from them."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import httpx
import msgspec
import pytest
from simprocess import StartSim, free_port

from vtop.clock import SystemClock
from vtop.errors import UsageError, VtopError
from vtop.presets import Disaggregated, Preset, ServerSpec
from vtop.sim.commands import sim_commands
from vtop.sim.machine import build_machine
from vtop.sim.options import parse
from vtop.telemetry.gpu.simulated import SimulatedGpuSource
from vtop.vllm.startup import StartupTracker

PRESETS = Path(__file__).parents[2] / "presets"


def preset(name: str) -> Preset:
    return msgspec.convert(tomllib.loads((PRESETS / f"{name}.toml").read_text(encoding="utf-8")), Preset)


def ports() -> Any:
    return itertools.count(9100).__next__


def simple(**spec: Any) -> Preset:
    return Preset(title="t", server=ServerSpec(**{"model": "Qwen/Qwen2.5-7B-Instruct", **spec}))


@pytest.mark.parametrize("name", sorted(file.stem for file in PRESETS.glob("*.toml")))
@pytest.mark.parametrize("gpu", ["RTX 4090", "H100"])
def test_every_shipped_preset_starts_simulated(name: str, gpu: str) -> None:
    commands = sim_commands(preset(name), gpu=gpu, port=9000, name=name, free_port=ports())
    assert commands
    for command in commands:
        assert command.simulated and command.version == "0.33.0 simulated"
        assert command.argv[:3] == (sys.executable, "-m", "vtop.sim")
        options = parse(command.argv[3:])
        assert options.port == command.port and options.served_name == command.served_name
        if options.role == "server":
            machine = build_machine(options)
            assert machine.limits.max_model_len == command.max_model_len
            assert machine.limits.max_num_seqs == command.max_num_seqs
            assert machine.limits.max_num_batched_tokens == command.max_num_batched_tokens


def test_the_pair_has_a_router_in_front_on_the_presets_port() -> None:
    commands = sim_commands(preset("pd-disaggregation"), gpu="H100", port=9000, name="pd", free_port=ports())
    assert [command.role for command in commands] == ["prefill", "decode", "router"]
    assert [command.port for command in commands] == [9100, 9101, 9000]
    router = parse(commands[-1].argv[3:])
    assert router.prefill == ("http://127.0.0.1:9100",) and router.decode == ("http://127.0.0.1:9101",)
    assert commands[0].gpus != commands[1].gpus and commands[2].gpus == ()


def test_a_key_is_handed_on_as_a_reference_and_is_in_no_argument() -> None:
    (command,) = sim_commands(simple(api_key="env:MY_KEY"), gpu="RTX 4090", port=9000, name="k", free_port=ports())
    assert command.api_key == "env:MY_KEY"
    assert not any("MY_KEY" in part for part in command.argv)


def test_flags_that_the_simulation_ignores_are_noted() -> None:
    (command,) = sim_commands(
        simple(args={"max-num-seqs": 7, "swap-space": 4}), gpu="RTX 4090", port=9000, name="k", free_port=ports()
    )
    assert parse(command.argv[3:]).max_num_seqs == 7
    assert command.max_num_seqs == 7
    assert command.notes == ("simulated: --swap-space has no effect",)


def test_flags_are_the_same_with_underscores() -> None:
    (command,) = sim_commands(simple(args={"max_num_seqs": 7}), gpu="RTX 4090", port=9000, name="k", free_port=ports())
    assert (command.max_num_seqs, command.notes) == (7, ())


def test_flags_of_one_half_alone_are_noted_as_ignored() -> None:
    pair = Disaggregated(prefill_args={"max-num-seqs": 7})
    commands = sim_commands(simple(disaggregated=pair), gpu="RTX 4090", port=9000, name="k", free_port=ports())
    assert "simulated: prefill_args and decode_args have no effect" in commands[0].notes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"args": {"seed": "x"}}, "argument --seed: invalid int value: 'x'"),
        ({"args": {"max-model-len": "auto"}}, "argument --max-model-len: invalid int value: 'auto'"),
        ({"args": {"speed": 0}}, "argument --speed: must be more than 0"),
        ({"args": {"speed": float("inf")}}, "argument --speed: must be a number of 0 or more, not inf"),
        ({"args": {"startup-s": float("nan")}}, "argument --startup-s: must be a number of 0 or more, not nan"),
    ],
)
def test_what_no_simulated_server_understands_ends_no_vtop(words: dict[str, Any], said: str) -> None:
    """The words of a process that is to be started are read in vtop's own, where argparse would exit."""
    with pytest.raises(UsageError) as refused:
        sim_commands(simple(**words), gpu="RTX 4090", port=9000, name="k", free_port=ports())
    assert said in refused.value.what
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("spec", "gpu", "fault", "words"),
    [
        ({"model": "someone/Model-9B"}, "RTX 4090", None, "does not know the shape"),
        ({}, "Abacus 3000", None, "no such GPU"),
        ({}, "RTX 4090", "explode", "no such fault"),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_a_start(
    spec: dict[str, Any], gpu: str, fault: str | None, words: str
) -> None:
    with pytest.raises(VtopError, match=words) as refused:
        sim_commands(simple(**spec), gpu=gpu, port=9000, name="k", free_port=ports(), fault=fault)
    assert refused.value.remedy


def test_its_log_is_read_by_the_same_tracker_as_vllms(start_sim: StartSim) -> None:
    sim = start_sim()
    tracker = StartupTracker(SystemClock())
    for line in sim.text().splitlines():
        tracker.feed(line)
    done = [phase for phase, _ in tracker.progress().done]
    assert [phase for phase in done if phase in {"engine", "weights", "compile", "kv-cache", "graphs"}] == [
        "engine", "weights", "compile", "kv-cache", "graphs",
    ]  # fmt: skip
    config = httpx.get(sim.url + "/metrics").text
    tokens = next(part for part in config.split(",") if part.startswith("kv_cache_size_tokens")).split('"')[1]
    assert str(tracker.facts["kv_cache_tokens"]).removesuffix(".0") == tokens


def test_an_idle_card_is_shown_where_no_server_runs() -> None:
    source = SimulatedGpuSource(lambda: [], "RTX 4090")
    source.open()
    frame = source.read()
    assert frame.status.available and frame.status.simulated
    (gpu,) = frame.gpus
    assert gpu.simulated and gpu.name == "RTX 4090" and gpu.gpu_util_percent == 0
    assert gpu.bandwidth is not None and gpu.bandwidth.source == "simulated" and gpu.bandwidth.bytes_per_s == 0
    assert gpu.power_w is not None and gpu.power_limit_w is not None and 0 < gpu.power_w < gpu.power_limit_w / 4
    source.close()
    source.close()


def test_an_unknown_card_is_said_in_the_status() -> None:
    frame = SimulatedGpuSource(lambda: [], "Abacus 3000").read()
    assert not frame.status.available and "Abacus 3000" in frame.status.message


def test_bandwidth_is_that_of_the_steps(start_sim: StartSim) -> None:
    sim = start_sim("--gpu", "RTX 4090", "--no-enable-prefix-caching", speed=4)
    source = SimulatedGpuSource(lambda: [sim.url], "H100")
    assert source.read().gpus[0].memory_used_bytes > 20 * 2**30
    body = {"model": "sim", "prompt": [1, 2, 3], "max_tokens": 400, "ignore_eos": True}
    asked = Thread(target=lambda: httpx.post(sim.url + "/v1/completions", json=body, timeout=60))
    asked.start()
    deadline = time.monotonic() + 20
    seen = []
    while asked.is_alive() and time.monotonic() < deadline:
        time.sleep(0.2)
        seen.append(source.read().gpus[0])
    asked.join()
    decoding = [gpu for gpu in seen if 90 < (gpu.gpu_util_percent or 0) <= 100]
    percents = [gpu.bandwidth.percent or 0 for gpu in decoding if gpu.bandwidth is not None]
    assert {gpu.name for gpu in decoding} == {"RTX 4090"}
    # Decoding alone moves some 82 % of peak (85 % while kernels run, less the gaps), whatever the pace of time.
    # One look may hold steps that a busy machine made late, so the middle one of them counts.
    assert 70 < median(percents) < 88, percents
    assert all((gpu.tensor_percent or 0) < 5 for gpu in decoding)


def test_tensor_parallel_shows_as_several_cards(start_sim: StartSim) -> None:
    sim = start_sim("--model", "Qwen/Qwen2.5-32B-Instruct", "--tensor-parallel-size", "4", "--gpu-index", *"0123")
    gpus = SimulatedGpuSource(lambda: [sim.url], "RTX 4090").read().gpus
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert len({gpu.uuid for gpu in gpus}) == 4


class _Nonsense(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"simulated": true, "gpus": [{"index": "zero"}, 7, null]}')

    def log_message(self, format: str, *args: Any) -> None:
        return


def test_a_server_that_is_gone_or_talks_nonsense_is_no_reading_and_no_error() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Nonsense)
    Thread(target=server.serve_forever, daemon=True).start()
    urls = [f"http://127.0.0.1:{server.server_port}", f"http://127.0.0.1:{free_port()}", "not a url"]
    frame = SimulatedGpuSource(lambda: urls, "RTX 4090").read()
    server.shutdown()
    server.server_close()
    assert len(frame.gpus) == 1 and frame.gpus[0].gpu_util_percent == 0


def test_the_simulated_server_loads_neither_textual_nor_vllm() -> None:
    code = (
        "import sys, vtop.sim.process, vtop.sim.router, vtop.sim.commands; "
        "print([name for name in ('textual', 'rich', 'plotext', 'torch', 'vllm', 'httpx') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
