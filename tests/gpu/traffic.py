"""Work of known size on one GPU, for `check.py`; needs PyTorch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch


class Load:
    """Work on one GPU in a thread, in short bursts, with a count of what it moved.

    Args:
        burst: does a little work and returns the bytes that it moved (or 0).
        device: CUDA's name of the GPU.
        duty: share of the time that is spent working.
    """

    def __init__(self, burst: Callable[[], float], device: str, duty: float = 1.0) -> None:
        self._burst, self._device, self._duty = burst, device, duty
        self._failure: Exception | None = None
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._moved, self._since_s = 0.0, time.perf_counter()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # whatever CUDA says, the main thread repeats it
            self._failure = error

    def _work(self) -> None:
        while not self._ending.is_set():
            begun_s = time.perf_counter()
            moved = self._burst()
            torch.cuda.synchronize(self._device)
            took_s = time.perf_counter() - begun_s
            with self._lock:
                self._moved += moved
            if self._duty < 1.0:
                self._ending.wait(took_s * (1.0 / self._duty - 1.0))

    def restart_count(self) -> None:
        """Counts from now."""
        with self._lock:
            self._moved, self._since_s = 0.0, time.perf_counter()

    def bytes_per_s(self) -> float:
        """Since the count was restarted."""
        with self._lock:
            return self._moved / (time.perf_counter() - self._since_s)

    def __enter__(self) -> Load:
        """Starts it; RuntimeError where CUDA cannot do it."""
        self._thread.start()
        time.sleep(0.4)
        if self._failure is not None:
            raise RuntimeError(f"the load does not run: {self._failure}")
        self.restart_count()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(30)


def copy_burst(device: str) -> tuple[Callable[[], float], str]:
    """A copy within DRAM, as large as there is room for (up to 2 x 4 GiB), far above any cache."""
    free, _ = torch.cuda.mem_get_info(device)
    elements = min(2**30, int(free * 0.4) // 8)
    source = torch.zeros(elements, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    repeats = max(1, 2**31 // (elements * 8))

    def burst() -> float:
        for _ in range(repeats):
            target.copy_(source)
        return repeats * 2.0 * 4.0 * elements

    return burst, f"2 x {elements * 4 / 2**30:.1f} GiB"


def matmul_burst(device: str) -> Callable[[], float]:
    """Matrix products that keep the tensor cores busy."""
    kind = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    one = torch.randn(8192, 8192, dtype=kind, device=device)
    other = torch.randn(8192, 8192, dtype=kind, device=device)

    def burst() -> float:
        for _ in range(10):
            torch.matmul(one, other)
        return 0.0

    return burst


def upload_burst(device: str) -> Callable[[], float]:
    """Pinned host memory to the GPU."""
    source = torch.zeros(2**28, dtype=torch.uint8).pin_memory()
    target = torch.empty(2**28, dtype=torch.uint8, device=device)

    def burst() -> float:
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        return 4.0 * 2**28

    return burst
