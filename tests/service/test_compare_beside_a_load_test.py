"""A comparison and a load test would each be part of the other's measurement."""

from __future__ import annotations

import pytest

from vtop.errors import VtopError
from vtop.load.progress import LoadRequest
from vtop.results.comparison import CompareRequest
from vtop.service import ServiceOptions, VtopService
from vtop.service.comparing import Comparisons


async def test_no_comparison_begins_while_a_load_test_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused at once, instead of losing its first run to the load test."""
    service = VtopService(ServiceOptions(simulated=True, discover=False))
    await service.open()
    try:
        monkeypatch.setattr(VtopService, "load_running", True)
        with pytest.raises(VtopError, match="a load test is running"):
            await service.start_compare(CompareRequest(presets=("sequential", "baseline"), simulated=True))
        assert service.compare_progress() is None
    finally:
        monkeypatch.undo()
        await service.close()


async def test_no_load_test_begins_while_a_comparison_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the screen and not from whoever else holds the facade."""
    service = VtopService(ServiceOptions(simulated=True, discover=False))
    await service.open()
    try:
        await service.plan_compare(CompareRequest(presets=("sequential", "baseline"), simulated=True))
        monkeypatch.setattr(Comparisons, "running", True)
        with pytest.raises(VtopError, match="a comparison is running"):
            await service.start_load(LoadRequest(url="http://127.0.0.1:9", model="m"))
        assert service.load_progress() is None
    finally:
        monkeypatch.undo()
        await service.close()
