"""`vtop demo` without a terminal tells the whole story as text."""

from __future__ import annotations

import pytest

from cli.vtop_process import Vtop


@pytest.mark.long
@pytest.mark.timeout(300)
def test_demo_without_a_terminal_starts_loads_compares_and_stops(vtop: Vtop) -> None:
    done = vtop("demo", within_s=240)
    assert "is READY at" in done.out
    assert "SIMULATED  Load test" in done.out
    assert "CONFIGURATION" in done.out
    assert "sequential" in done.out
    assert "nothing left" in done.err
    assert "RECORDING of a real vLLM, not simulated" in done.out
    assert "tok/s, TTFT mean" in done.out.partition("RECORDING")[2]
