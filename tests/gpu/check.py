"""Verifies on a real NVIDIA GPU what vtop otherwise takes from documentation; stands alone with the files beside it.

    python check.py [--device N] [--seconds S]

Needs nvidia-ml-py; with PyTorch it also makes load and compares readings with traffic of known size (about a minute).
It only reads: no clocks, limits, modes, streaming or resets are touched. Each line names its point, what was seen, and
whether that is what vtop expects; `docs/hardware.md` says what each point decides.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import pynvml as nvml
from asking import Report, ask
from device_points import costs, header, heartbeat, order, peak, quirks, xid_events
from gpm_points import gpm_support, mig, neighbours

try:
    import load_points
except ImportError:
    load_points = None  # type: ignore[assignment]


def main(words: Sequence[str] | None = None) -> int:
    """Runs all points; 0 when they ran, 1 when there is no NVML."""
    parser = argparse.ArgumentParser(description="Checks NVML readings on a real GPU; reads only.")
    parser.add_argument("--device", type=int, default=0, help="NVML's index (default 0)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement (default 1)")
    chosen = parser.parse_args(words)
    report, begun_s = Report(), time.perf_counter()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        print(f"NVML does not start: {type(error).__name__} ({error.value})")
        return 1
    try:
        looked_up_s = time.perf_counter()
        handle, error = ask("nvmlDeviceGetHandleByIndex", chosen.device)
        first_handle_s = time.perf_counter() - looked_up_s
        if error:
            print(f"no device {chosen.device}: {error}")
            return 1
        header(report, handle, chosen.device, first_handle_s, load_points is not None)
        peak_bytes = peak(report, handle)
        works = gpm_support(report, handle)
        costs(report, handle, "idle")
        device, why = None, "PyTorch is not installed"
        if load_points is not None:
            device, why = load_points.torch_device(chosen.device)
        if device is not None:
            try:
                load_points.under_load(report, handle, device, peak_bytes, works, chosen.seconds)
                load_points.quirks_under_load(report, handle, device, chosen.seconds)
            except (RuntimeError, ZeroDivisionError) as problem:
                report.skip("the rest under load", str(problem).splitlines()[0])
        else:
            report.skip("1.5, 2.3, 2.5 to 2.9, 3 under load, 4.2, 4.5", why)
        quirks(report, handle)
        xid_events(report, handle)
        if device is None:
            report.skip("4.9", why)
        else:
            order(report)
        heartbeat(report, handle, chosen.seconds)
        mig(report, handle)
        neighbours(report)
    finally:
        nvml.nvmlShutdown()
    took_s = time.perf_counter() - begun_s
    print(f"done in {took_s:.0f} s, {report.unexpected} lines not as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
