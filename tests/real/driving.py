"""How these tests drive a real vLLM for CPU: always through vtop's own command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

START_DEADLINE_S = 420.0
"""A start takes 30 to 75 s on an idle two-core machine; this one may be busy."""


def real_root() -> Path:
    """The directory that make_env.py filled."""
    return Path(os.environ.get("VTOP_REAL_ENV") or Path(__file__).resolve().parents[2] / ".real")


@dataclass
class Vtop:
    """vtop's command line with directories of its own."""

    home: Path
    root: Path
    extra_env: dict[str, str] = field(default_factory=dict)

    def env(self) -> dict[str, str]:
        """What each command runs with."""
        private = {f"VTOP_{name}_DIR": str(self.home / name.lower()) for name in ("CONFIG", "STATE", "RUNS", "CACHE")}
        return {**os.environ, **private, "HF_HUB_OFFLINE": "1", **self.extra_env}

    def command(self, *words: str) -> list[str]:
        """The argument vector."""
        return [sys.executable, "-m", "vtop", *words]

    def run(
        self, *words: str, timeout: float = START_DEADLINE_S, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs one command to its end."""
        done = subprocess.run(
            self.command(*words), env=self.env(), capture_output=True, text=True, timeout=timeout, check=False
        )
        if check and done.returncode != 0:
            pytest.fail(f"vtop {' '.join(words)} -> {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.logs()}")
        return done

    def popen(self, *words: str) -> subprocess.Popen[str]:
        """Starts one command and returns at once."""
        return subprocess.Popen(
            self.command(*words), env=self.env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def json(self, *words: str, timeout: float = START_DEADLINE_S) -> Any:
        """Runs one command with --json."""
        return json.loads(self.run(*words, "--json", timeout=timeout).stdout)

    def logs(self) -> str:
        """The end of every server log, for failure messages."""
        return "\n".join(
            f"--- {path}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-25:])
            for path in (self.home / "state").rglob("*.log")
        )

    def server(self, name: str) -> dict[str, Any] | None:
        """One server of `vtop status --json`."""
        for server in self.json("status", "--window", "0.5")["servers"]:
            if server["status"]["name"] == name:
                return {**server, **server["status"]}
        return None

    def until(self, name: str, wanted: str, deadline_s: float = START_DEADLINE_S) -> dict[str, Any]:
        """Waits until a server is in a state."""
        end = time.monotonic() + deadline_s
        seen: dict[str, Any] | None = None
        while time.monotonic() < end:
            seen = self.server(name)
            if seen is not None and seen["state"] == wanted:
                return seen
            if seen is not None and seen["state"] == "failed" and wanted != "failed":
                break
            time.sleep(1.0)
        pytest.fail(f"{name} did not become {wanted}: {seen}\n{self.logs()}")


def tiny_settings(root: Path, **more: str) -> list[str]:
    """`--set` words that make the `cpu-small` preset serve the tiny model."""
    settings = {
        "model": str(root / "models" / "tiny"),
        "served_name": "tiny",
        "port": "auto",
        "load_format": "dummy",
        "enforce_eager": "true",
        "max_model_len": "4096",
        "env.VLLM_CPU_KVCACHE_SPACE": "1",
        **more,
    }
    words = ["--vllm", str(root / "vllm")]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    return words


def marked_processes(home: Path) -> list[psutil.Process]:
    """Processes that carry this home in their environment: all that these tests ever started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("VTOP_STATE_DIR") == str(home / "state"):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def assert_nothing_left(home: Path, deadline_s: float = 20.0) -> None:
    """No process of these tests is left; kills what is, and fails."""
    end = time.monotonic() + deadline_s
    left = marked_processes(home)
    while left and time.monotonic() < end:
        time.sleep(0.3)
        left = marked_processes(home)
    described = [f"{process.pid} {' '.join(process.cmdline())[:120]}" for process in left]
    for process in left:
        process.send_signal(signal.SIGKILL)
    assert not described, f"left running: {described}"


def port_is_free(port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def counters(url: str) -> Mapping[str, float]:
    """Every sample of a server's page whose name ends in _total, _sum or _count, summed over labels: an own reading."""
    sums: dict[str, float] = {}
    for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        if line.startswith("vllm:"):
            name, value = line.split("{", 1)[0], line.rsplit(" ", 1)[1]
            if name.endswith(("_total", "_sum", "_count")):
                sums[name] = sums.get(name, 0.0) + float(value)
    return sums
