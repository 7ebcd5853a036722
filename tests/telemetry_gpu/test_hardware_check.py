"""The script that checks a real GPU runs to its end on the stand-in library, with and without a (stood-in) PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from telemetry_gpu.fake_nvml import DEFAULT_BOARDS, H100, board, environment, write_state

FOLDER = Path(__file__).parents[1] / "gpu"
ARGUMENTS = ["--seconds", "0.05"]

# Just enough of PyTorch that the script believes in a GPU; it moves nothing.
TORCH = """
import time
__version__ = "0 (stand-in)"
int32 = uint8 = bfloat16 = float16 = None
class Tensor:
    def copy_(self, other, non_blocking=False): time.sleep(0.002); return self
    def pin_memory(self): return self
def _make(*_, **__): return Tensor()
zeros = empty = randn = empty_like = _make
def matmul(one, other): time.sleep(0.002); return Tensor()
class _Properties:
    uuid = "00000001-0000-0000-0000-000000000000"
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    get_device_properties = staticmethod(lambda index: _Properties)
    set_device = staticmethod(lambda index: None)
    synchronize = staticmethod(lambda device=None: None)
    mem_get_info = staticmethod(lambda device: (FREE, 2**36))
    is_bf16_supported = staticmethod(lambda: True)
"""


def run(library: Path, state: Path, extra: Path | None = None) -> subprocess.CompletedProcess[str]:
    variables = environment(library, state)
    variables["PYTHONPATH"] = str(extra) if extra is not None else ""
    command = [sys.executable, str(FOLDER / "check.py"), *ARGUMENTS]
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=100, check=False)


def test_nvml_part_runs_to_its_end(fake_library: Path, tmp_path: Path) -> None:
    done = run(fake_library, write_state(tmp_path / "gpus"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "formula 2 x MHz x bits / 8: 3352.3 GB/s" in done.stdout
    assert "[1.1] formula 2 x MHz x bits / 8: 3352.3 GB/s, +0.1% from the datasheet's 3350: as expected" in done.stdout
    assert "[2.12]" in done.stdout
    assert re.search(r"^\[2\.1\] claimed True, works True .*as expected$", done.stdout, re.MULTILINE)
    assert "[2.10] NVLink metric 60: return code 3" in done.stdout
    assert "[4.8] waiting for XIDs as this user: Timeout (10): as expected" in done.stdout
    assert re.search(r"^done in \d+ s, \d+ lines not as expected$", done.stdout.splitlines()[-1])


def test_every_point_is_measured_or_said_to_be_skipped(fake_library: Path, tmp_path: Path) -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        done = run(fake_library, write_state(tmp_path / "gpus"))
        assert "skipped: PyTorch is not installed" in done.stdout
    else:
        pytest.skip("PyTorch is here")


def test_part_under_load_runs_to_its_end(fake_library: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH.replace("FREE", str(2**34)), encoding="utf-8")
    energetic = board(0, H100, field__185=512000, field__197=5, field__198=7, pcie_rx_kbs=1, pcie_tx_kbs=1)
    done = run(fake_library, write_state(tmp_path / "gpus", [energetic], gpm_min_ms=0), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the rest under load" not in done.stdout, "nothing under load failed"
    documented = re.findall(
        r"^\| ([\d., –]+) \|", (FOLDER.parents[1] / "docs" / "hardware.md").read_text("utf-8"), re.M
    )
    points = {point for cell in documented for point in re.findall(r"\d+(?:\.\d+)?", cell)}
    assert {"1.1", "1.5", "2.12", "2.15", "3", "4.10"} <= points
    for point in points - {"1.2", "1.3", "1.4"}:  # those are about boards that this one is not
        assert f"[{point}]" in done.stdout, point
    assert "NOT AS EXPECTED" in done.stdout, "a copy that moves nothing must not pass"


def test_a_load_that_cuda_refuses_is_said_and_ends_nothing(fake_library: Path, tmp_path: Path) -> None:
    broken = TORCH.replace(
        "def copy_(self, other, non_blocking=False): time.sleep(0.002)",
        "def copy_(self, *_, **__): raise RuntimeError('no kernel image')",
    )
    (tmp_path / "torch.py").write_text(broken.replace("FREE", str(2**34)), encoding="utf-8")
    done = run(fake_library, write_state(tmp_path / "gpus", DEFAULT_BOARDS, gpm_min_ms=0), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[the rest under load] skipped: the load does not run: no kernel image" in done.stdout
    assert "done in" in done.stdout


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name not in {"LD_LIBRARY_PATH", "FAKE_NVML"}}
    command = [sys.executable, str(FOLDER / "check.py"), "--device", "99"]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=100, check=False)
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1 and done.stderr == ""


def test_it_calls_no_setter() -> None:
    texts = [path.read_text("utf-8") for path in FOLDER.glob("*.py")]
    named = {name for text in texts for name in re.findall(r"\bnvml[A-Z]\w+", text)}
    assert "nvmlDeviceGetUtilizationRates" in named
    assert {name for name in named if re.search(r"Set(?!s?Wait|Free|Create)|Clear|Reset", name)} == set()
