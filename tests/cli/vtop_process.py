"""`python -m vtop` as people run it: a real process with directories of its own, and a look at what it left running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

DEADLINE_S = 100.0
DIRECTORIES = ("CONFIG", "STATE", "RUNS", "CACHE")


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as strict JSON: NaN and infinity are errors."""

        def refuse(word: str) -> float:
            raise AssertionError(f"{word} is no JSON")

        return json.loads(self.out, parse_constant=refuse)


@dataclass
class Vtop:
    """vtop with everything of its own below one folder."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)

    def directory(self, name: str) -> Path:
        """CONFIG, STATE, RUNS or CACHE."""
        return self.home / f"vtop-{name.lower()}"

    def environment(self) -> dict[str, str]:
        own = {f"VTOP_{name}_DIR": str(self.directory(name)) for name in DIRECTORIES}
        hidden = {"VLLM_API_KEY", "VTOP_VLLM", "CUDA_VISIBLE_DEVICES", "NO_COLOR"}
        return {**{k: v for k, v in os.environ.items() if k not in hidden}, **own, **self.env}

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "vtop", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=self.environment(),
        )  # fmt: skip

    def __call__(self, *words: str, code: int | None = 0, within_s: float = DEADLINE_S) -> Outcome:
        """Runs one command to its end; nothing that a person can cause prints a traceback."""
        process = self.spawn(*words)
        try:
            out, err = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"vtop {' '.join(words)} did not end: {out}\n{err}") from None
        assert "Traceback" not in out + err, out + err
        if code is not None:
            assert process.returncode == code, f"exit {process.returncode}\n{out}\n{err}"
        return Outcome(process.returncode, out, err)

    def fails(self, code: int, *words: str) -> str:
        """A command that must fail: its message, which has a cause and a remedy of few lines."""
        done = self(*words, code=code)
        assert any(line.startswith("vtop") for line in done.err.splitlines()), done.err
        return done.err

    def processes(self) -> list[psutil.Process]:
        """Every living process that works in these directories."""
        state = str(self.directory("STATE"))
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("VTOP_STATE_DIR") == state and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def nothing_runs(self) -> bool:
        """Whether everything has ended; what is just ending gets a moment."""
        return until(lambda: not self.processes(), 20.0)

    def end_everything(self) -> None:
        """After a test, whatever it did."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)

    def files(self) -> Mapping[Path, bytes]:
        """Everything that was written, by path."""
        return {path: path.read_bytes() for path in self.home.rglob("*") if path.is_file()}


def until(condition: Any, seconds: float = DEADLINE_S) -> bool:
    """Waits for a condition."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())
