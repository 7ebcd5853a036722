"""The stand-in for NVML's library: building it, writing what it says, loading it into this process.

For a whole vtop in a process of its own: `library = build_fake_nvml(directory)`, write a state file, and start vtop
with `environment(library, state)`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("fake_nvml.c")
NAME = "libnvidia-ml.so.1"

H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "mem_total": 85520809984,
    "mem_used": 61203283968,
    "mem_reserved": 571211776,
    "util_gpu": 98,
    "util_mem": 88,
    "power_mw": 512000,
    "power_limit_mw": 700000,
    "energy_mj": 1_000_000_000,
    "temp": 61,
    "clock_sm": 1980,
    "clock_mem": 2619,
    "clock_mem_max": 2619,
    "bus_width": 5120,
    "reasons": 4,
    "pcie_gen": 5,
    "pcie_gen_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "ecc": 0,
    "mig": 0,
    "gpm": 1,
    "gpm.2": 91.5,
    "gpm.3": 48.0,
    "gpm.5": 22.0,
    "gpm.10": 63.75,
    "gpm.20": 12.0,
    "gpm.21": 250.0,
    "gpm.60.ret": 3,
    "gpm.61.ret": 3,
    "field.82": 72,
    "field.186": 515000,
}
RTX_4090 = {
    "name": "NVIDIA GeForce RTX 4090",
    "mem_total": 25757220864,
    "mem_used": 2147483648,
    "mem_reserved": 461373440,
    "util_gpu": 35,
    "util_mem": 41,
    "power_mw": 180000,
    "power_limit_mw": 450000,
    "energy_mj": 500_000_000,
    "temp": 52,
    "clock_sm": 2520,
    "clock_mem": 10251,
    "clock_mem_max": 10501,
    "bus_width": 384,
    "reasons": 0,
    "pcie_gen": 1,
    "pcie_gen_max": 4,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "fan": 30,
    "gpm": 0,
    "field.82": 0,
}


def uuid_of(slot: int) -> str:
    """The UUID of a slot unless its state says otherwise."""
    return f"GPU-{slot + 1:08x}-0000-0000-0000-000000000000"


def board(slot: int, model: Mapping[str, object], **changes: object) -> dict[str, object]:
    """One board's keys; None takes a key away, which reads as "not supported"."""
    keys = {"uuid": uuid_of(slot), "bus_id": f"00000000:{0x10 + slot:02X}:00.0", **model}
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in keys.items() if value is not None}


DEFAULT_BOARDS = (board(0, H100), board(1, RTX_4090))
"""A board with GPM and one without."""


def write_state(path: Path, boards: Any = DEFAULT_BOARDS, **globals_: object) -> Path:
    """Writes what the library is to say, at once for its reader.

    Args:
        path: the state file.
        boards: one mapping a slot, from `board`.
        globals_: keys without a slot, such as `order="0,2"`, `gpm_min_ms=0` or `xid="1:0:79"`.
    """
    lines = [f"{key}={value}" for key, value in {"count": len(boards), **globals_}.items()]
    lines += [f"{slot}.{key}={value}" for slot, keys in enumerate(boards) for key, value in keys.items()]
    partial = path.with_suffix(".partial")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.replace(partial, path)
    return path


def compiler() -> str | None:
    """A C compiler of this machine."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def build_fake_nvml(directory: Path) -> Path:
    """Compiles the library into a directory.

    Returns:
        Its path, named as the loader looks for it.

    Raises:
        RuntimeError: there is no C compiler, or it refused.
    """
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler (cc, gcc or clang)")
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / NAME
    flags = ["-std=gnu11", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-pthread"]
    command = [found, *flags, f"-Wl,-soname,{NAME}", "-o", str(library), str(SOURCE), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the compiler refused the stand-in library: {done.stderr}")
    return library


def environment(library: Path, state: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which a process started now finds the stand-in instead of a driver."""
    variables = dict(os.environ if base is None else base)
    before = variables.get("LD_LIBRARY_PATH")
    variables["LD_LIBRARY_PATH"] = f"{library.parent}:{before}" if before else str(library.parent)
    variables["FAKE_NVML"] = str(state)
    return variables


class LoadedFakeNvml:
    """The stand-in in this process, behind the real pynvml."""

    def __init__(self, library: Path, state: Path) -> None:
        import pynvml

        self.state = state
        self.pynvml = pynvml
        self._before = pynvml.nvmlLib
        self.lib = ctypes.CDLL(str(library))
        self.lib.fakeNvmlSlotCalls.restype = self.lib.fakeNvmlCalls.restype = ctypes.c_long
        pynvml.nvmlLib = self.lib
        pynvml._nvmlGetFunctionPointer_cache.clear()
        self.lib.fakeNvmlLoad(str(state).encode())

    def say(self, boards: Any = DEFAULT_BOARDS, **globals_: object) -> None:
        """Changes what it says."""
        write_state(self.state, boards, **globals_)
        self.lib.fakeNvmlLoad(str(self.state).encode())

    def calls(self, function: str) -> int:
        """How often a function was called since the library was loaded."""
        return int(self.lib.fakeNvmlCalls(function.encode()))

    def slot_calls(self, slot: int) -> int:
        """How often a handle of this slot was used."""
        return int(self.lib.fakeNvmlSlotCalls(slot))

    @property
    def live_samples(self) -> int:
        """GPM samples that were not freed."""
        return int(self.lib.fakeNvmlLiveSamples())

    def forget_leaks(self) -> None:
        """Counts the samples no more that nobody could free, because somebody else shut NVML down."""
        self.lib.fakeNvmlForgetLeaks()

    @property
    def live_event_sets(self) -> int:
        """Event sets that were not freed."""
        return int(self.lib.fakeNvmlLiveEventSets())

    @property
    def initialized(self) -> int:
        """nvmlInit calls without their nvmlShutdown."""
        return int(self.lib.fakeNvmlInitialized())

    def unload(self) -> None:
        """Gives pynvml back what it had."""
        self.pynvml.nvmlLib = self._before
        self.pynvml._nvmlGetFunctionPointer_cache.clear()
