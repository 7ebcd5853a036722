"""A recording on the screen: nothing of it is taken for something that runs here and now."""

from __future__ import annotations

from vtop.commands.replay import recording
from vtop.servers.status import ServerState
from vtop.service.replaying import ReplayService
from vtop.ui.app import VtopApp
from vtop.ui.display import DisplaySettings


async def test_the_shipped_recording_is_not_old_data_and_leaves_nothing_running() -> None:
    """Its clock is of another day; its server is not one that could be stopped from here."""
    service = ReplayService(recording("demo"))
    service.replay.seek(service.replay.duration_s * 0.6)
    service.replay.pause()
    app = VtopApp(service, DisplaySettings())
    async with app.run_test(size=(120, 40)) as pilot:
        app.tick()
        await pilot.pause()
        newest = app.pump.newest
        assert newest is not None
        assert newest.servers[0].status.state is ServerState.READY
        assert app.view.data_age_s == 0.0
    assert app.left_running == ()
