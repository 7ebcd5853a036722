"""Runs the real screen on a live fake service, in the terminal it is started in: for pty tests and for the eye.

    python -m ui.live_app [STATE] [hang]

STATE is a name of `ui.looks.STATES`, `live` (numbers that move) or `live-load` (a load test under way). With `hang`
the service never closes, not even when cancelled.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from dataclasses import replace

from ui.fake_service import FakeHistory, FakeService, engine, gpu, ready, snapshot
from ui.looks import STATES, load_progress, with_everything
from vtop.load.progress import RequestPoint
from vtop.telemetry.snapshot import Bandwidth, Snapshot
from vtop.ui.display import DisplaySettings
from vtop.ui.run import run_app
from vtop.vllm.reading import Latency, Quantile


class LiveService(FakeService):
    """Publishes once a second; with a load test it changes ten times a second."""

    def __init__(self, *, loading: bool, quiet: bool = False) -> None:
        super().__init__(snapshot(ready()))
        self._dice = random.Random(1)
        self._loading = loading
        self._quiet = quiet
        self._start = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Starts publishing."""
        self.publish(self._made(1))
        self._tasks.append(asyncio.get_running_loop().create_task(self._poll()))
        if self._loading:
            self._tasks.append(asyncio.get_running_loop().create_task(self._load()))

    async def _poll(self) -> None:
        sequence = 1
        while True:
            await asyncio.sleep(1.0)
            sequence += 1
            self.publish(self._made(sequence))

    async def _load(self) -> None:
        points: list[RequestPoint] = []
        while True:
            await asyncio.sleep(0.1)
            at = time.monotonic() - self._start
            dice = self._dice
            points.append(RequestPoint(at, True, 0.08 + 0.05 * dice.random(), 0.018 + 0.004 * dice.random(), 2.7, 150))
            output = tuple((0.5 * i, 870 + 60 * math.sin(i / 3)) for i in range(int(2 * at)))
            self.load = replace(
                load_progress(), points=tuple(points), finished=len(points), total=2000, elapsed_s=at,
                remaining_s=200 - at, output_points=output, output_tokens_per_s=870 + 50 * dice.random(),
            )  # fmt: skip

    def _made(self, sequence: int) -> Snapshot:
        now = time.monotonic()
        if self._quiet:
            idle = engine(
                running=0.0, waiting=0.0, generation_tokens_per_s=0.0, requests_per_s=0.0, ttft=None, tpot=None,
                speculation=None, prompt_tokens_per_s=0.0,
            )  # fmt: skip
            cards = [gpu(bandwidth=Bandwidth("gpm", 0.0, 0.0, 3.35e12))]
            return replace(
                snapshot(ready(engines=(idle,)), gpus=cards, sequence=sequence), at_s=now, at_wall_s=time.time(),
                history=FakeHistory({}), events=(),
            )  # fmt: skip

        def moving(base: float, swing: float) -> tuple[list[float], list[float | None]]:
            times = [math.floor(now) - 119 + i for i in range(120)]
            return [float(at) for at in times], [
                base + swing * math.sin(at / 7) + swing * random.Random(at).random() for at in times
            ]

        swing = self._dice.random()
        numbers = engine(
            running=float(self._dice.randint(12, 20)), generation_tokens_per_s=860 + 60 * swing,
            ttft=Latency(0.08 + 0.01 * swing, 35, p95=Quantile(0.15, 0.1, 0.25)),
            tpot=Latency(0.0175 + 0.001 * swing, 35), kv_usage=0.3 + 0.2 * swing,
        )  # fmt: skip
        share = 55 + 15 * swing
        card = gpu(bandwidth=Bandwidth("gpm", share, share / 100 * 3.35e12, 3.35e12), power_w=480 + 60 * swing)
        history = FakeHistory(
            {
                "server/baseline/ttft_mean_s": moving(0.08, 0.02),
                "server/baseline/tpot_mean_s": moving(0.0175, 0.001),
                "server/baseline/generation_tokens_per_s": moving(860.0, 60.0),
                "gpu/GPU-00000000/bandwidth_percent": moving(55.0, 15.0),
            }
        )
        made = snapshot(ready(engines=(numbers,)), gpus=[card], sequence=sequence)
        return replace(made, at_s=now, at_wall_s=time.time(), history=history, events=())


def main() -> int:
    """Until `q`."""
    words = sys.argv[1:]
    name = words[0] if words else "live"
    if name.startswith("live") or name == "idle":
        service: FakeService = LiveService(loading=name == "live-load", quiet=name == "idle")
    else:
        service = STATES[name]()
    with_everything(service)
    if "hang" in words:
        service.hang = {"close", "stop_server", "plan_start"}
    paint_hz = 1.0 if name == "idle" else None
    return run_app(service, DisplaySettings(paint_hz=paint_hz))


if __name__ == "__main__":
    raise SystemExit(main())
