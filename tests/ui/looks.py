"""Applications in a given state, for pictures: snapshot tests, the README's picture and the eye."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ui.fake_service import FakeService, failed, foreign, gpu, ready, snapshot, starting
from vtop.ui.app import VtopApp
from vtop.ui.display import DisplaySettings

if TYPE_CHECKING:
    from textual.pilot import Pilot


def busy() -> FakeService:
    """The README's state: one server at work, one starting, one failed, one foreign."""
    return FakeService(snapshot(ready(), starting(), failed(), foreign()))


STATES: dict[str, Callable[[], FakeService]] = {
    "busy": busy,
    "one": lambda: FakeService(snapshot(ready())),
    "empty": lambda: FakeService(snapshot(gpus=())),
    "eight": lambda: FakeService(snapshot(ready(), gpus=[gpu(i, name="Example Accelerator With A Very Long Marketing Name 141GB HBM3e") for i in range(8)])),
    "sixteen": lambda: FakeService(snapshot(ready(), gpus=[gpu(i) for i in range(16)])),
    "starting": lambda: FakeService(snapshot(starting())),
    "failed": lambda: FakeService(snapshot(failed())),
}


def app_for(name: str, settings: DisplaySettings | None = None) -> VtopApp:
    service = STATES[name]()
    return VtopApp(service, settings or DisplaySettings(paint_hz=4.0), clock=service.clock)


async def settle(pilot: Pilot[int]) -> None:
    """Waits until everything that was asked for is painted."""
    for _ in range(4):
        await pilot.pause()
    app = pilot.app
    assert isinstance(app, VtopApp)
    app.tick()
    await pilot.pause()
