"""Points about the plain readings of a GPU, their cost and their quirks; see `check.py`."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import pynvml as nvml
from asking import ALL_LINKS, MIB, Report, ask, fields, shown

DATASHEET_GB_PER_S = (
    # As NVML writes the names; the first that fits. Where the formula is known to say more, vtop goes by its table.
    (r"\bB200", 7700, True),
    (r"GH200.*480", 4000, True),
    (r"\bH200", 4800, True),
    (r"H100 PCIe", 2000, True),
    (r"H100 NVL", 3938, False),
    (r"\bH100", 3350, False),
    (r"\bH20\b", 4000, False),
    (r"A100.*SXM.*80GB", 2039, False),
    (r"A100.*80GB", 1935, False),
    (r"A100", 1555, False),
    (r"\bL40S?\b", 864, False),
    (r"\bL4\b", 300, False),
    (r"\bT4\b", 320, False),
    (r"\bA10G?\b", 600, False),
    (r"PRO 6000 Blackwell|RTX 5090", 1792, False),
    (r"RTX 4090", 1008, False),
    (r"RTX 3090(?! Ti)", 936, False),
)


def header(report: Report, handle: Any, index: int, first_handle_s: float, with_torch: bool) -> None:
    """Whose lines these are."""
    for name in ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlDeviceGetCount"):
        report.note("0", f"{name}: {shown(*ask(name))}")
    report.note("0", f"first handle look-up: {first_handle_s * 1000:.1f} ms")
    for name in ("Name", "UUID", "Architecture", "CudaComputeCapability", "PersistenceMode", "MigMode"):
        report.note("0", f"device {index} {name}: {shown(*ask(f'nvmlDeviceGet{name}', handle))}")
    report.note("0", f"virtualization: {shown(*ask('nvmlDeviceGetVirtualizationMode', handle))}")
    inside = os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")
    user = os.geteuid() if hasattr(os, "geteuid") else "?"
    report.note("0", f"user id {user}, container marks: {inside}, PyTorch with CUDA: {with_torch}")


def peak(report: Report, handle: Any) -> float | None:
    """Points 1.1 to 1.4: what the formula gives, in bytes per second."""
    mhz, mhz_error = ask("nvmlDeviceGetMaxClockInfo", handle, 2)
    bits, bits_error = ask("nvmlDeviceGetMemoryBusWidth", handle)
    report.note("1.1", f"max memory clock {shown(mhz, mhz_error)} MHz, bus {shown(bits, bits_error)} bit")
    if not mhz or not bits:
        report.note("1.4", "no formula for this board: vtop needs a table entry")
        return None
    by_formula = 2.0 * mhz * 1e6 * bits / 8.0
    told = f"formula 2 x MHz x bits / 8: {by_formula / 1e9:.1f} GB/s"
    name, _ = ask("nvmlDeviceGetName", handle)
    name = name.decode() if isinstance(name, bytes) else str(name)
    found = next(((peak, fixed) for pattern, peak, fixed in DATASHEET_GB_PER_S if re.search(pattern, name)), None)
    if found is None or "Laptop" in name or "Max-Q" in name:
        report.note("1.1", f"{told}; no datasheet of {name} is known here: compare by hand")
    elif found[1]:
        over = by_formula / 1e9 / found[0] - 1
        text = f"{told}, {over:+.1%} from the datasheet's {found[0]}"
        report.judge("1.3", text, -0.01 <= over <= 0.07, "correct the fixed table from the datasheet")
    else:
        over = by_formula / 1e9 / found[0] - 1
        text = f"{told}, {over:+.1%} from the datasheet's {found[0]}"
        report.judge("1.1", text, abs(over) <= 0.01, "add the board to the fixed table")
    if "H200" in name:
        report.judge("1.2", f"H200 bus width {bits}", bits in (6144, 6016), "note the driver and this width")
    return by_formula


def costs(report: Report, handle: Any, when: str) -> None:
    """Point 3: milliseconds of each call."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("nvmlDeviceGetUtilizationRates", (), {}),
        ("nvmlDeviceGetMemoryInfo", (), {"version": nvml.nvmlMemory_v2}),
        ("nvmlDeviceGetPowerUsage", (), {}),
        ("nvmlDeviceGetEnforcedPowerLimit", (), {}),
        ("nvmlDeviceGetTotalEnergyConsumption", (), {}),
        ("nvmlDeviceGetTemperature", (0,), {}),
        ("nvmlDeviceGetClockInfo", (2,), {}),
        ("nvmlDeviceGetCurrentClocksEventReasons", (), {}),
        ("nvmlDeviceGetPcieThroughput", (0,), {}),
        ("nvmlDeviceGetComputeRunningProcesses_v3", (), {}),
        ("nvmlDeviceGetFieldValues", ([82, 185, 186, 197, 198, (138, ALL_LINKS), (139, ALL_LINKS)],), {}),
        ("nvmlDeviceGetTotalEccErrors", (1, 0), {}),
        ("nvmlDeviceGetFanSpeed", (), {}),
    ]
    tick_ms = 0.0
    for name, arguments, options in calls:
        times, error = [], ""
        for _ in range(30):
            begun_s = time.perf_counter()
            _, error = ask(name, handle, *arguments, **options)
            times.append((time.perf_counter() - begun_s) * 1000)
        middle = statistics.median(times)
        tick_ms += middle if name != "nvmlDeviceGetPcieThroughput" else 0.0
        report.note("3", f"{when} {name}: median {middle:.3f} ms, max {max(times):.3f} ms {error}".rstrip())
    text = f"{when}: all but PcieThroughput once, for 8 GPUs: {8 * tick_ms:.1f} ms"
    report.judge("3", text, 8 * tick_ms < 100, "move calls into slower groups")


def quirks(report: Report, handle: Any) -> None:
    """Points 4.1, 4.3, 4.4, 4.6, 4.7."""
    one, error = ask("nvmlDeviceGetMemoryInfo", handle)
    two, error_two = ask("nvmlDeviceGetMemoryInfo", handle, version=nvml.nvmlMemory_v2)
    if error or error_two:
        report.note("4.1", f"memory v1 {error or 'ok'}, v2 {error_two or 'ok'}")
    else:
        text = f"v1 used {one.used}, v2 used {two.used} + reserved {two.reserved}"
        report.judge("4.1", text, abs(one.used - two.used - two.reserved) < 64 * MIB, "read the two otherwise")
    found = fields(handle, [82, 91, (138, ALL_LINKS), (139, ALL_LINKS)])
    report.note("4.3", f"memory temperature (field 82): {found.get(82, 'no field')}; vtop takes 0 as not available")
    report.note("4.6", f"NVLink links {found.get(91)}, TX KiB {found.get(138)}, RX KiB {found.get(139)}")
    processes, error = ask("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    listed = error or [(process.pid, process.usedGpuMemory) for process in processes]
    report.note("4.7", f"processes {listed}; this one is {os.getpid()} (differs in a container)")
    report.note("4.4", f"clock reasons idle: {ask('nvmlDeviceGetCurrentClocksEventReasons', handle)}")


def xid_events(report: Report, handle: Any) -> None:
    """Point 4.8."""
    events, error = ask("nvmlEventSetCreate")
    if error:
        report.note("4.8", f"event set: {error}")
        return
    try:
        _, error = ask("nvmlDeviceRegisterEvents", handle, nvml.nvmlEventTypeXidCriticalError, events)
        if not error:
            _, error = ask("nvmlEventSetWait_v2", events, 300)
        report.judge(
            "4.8", f"waiting for XIDs as this user: {error or 'an event came'}", "(10)" in error, "no XIDs here"
        )
    finally:
        ask("nvmlEventSetFree", events)


def order(report: Report) -> None:
    """Point 4.9: UUIDs by NVML's and by CUDA's numbers."""
    count, _ = ask("nvmlDeviceGetCount")
    by_nvml = []
    for index in range(count or 0):
        handle, error = ask("nvmlDeviceGetHandleByIndex", index)
        by_nvml.append(error if error else shown(*ask("nvmlDeviceGetUUID", handle)))
    report.note("4.9", f"NVML order: {by_nvml}")
    code = (
        "import torch; print([str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())])"
    )
    for name in ("", "PCI_BUS_ID"):
        variables = {key: value for key, value in os.environ.items() if key != "CUDA_DEVICE_ORDER"}
        if name:
            variables["CUDA_DEVICE_ORDER"] = name
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
        told = done.stdout.strip() or (done.stderr.strip().splitlines() or ["no answer"])[-1]
        report.note("4.9", f"CUDA order with CUDA_DEVICE_ORDER={name or '(not set)'}: {told}")


def heartbeat(report: Report, handle: Any, seconds: float) -> None:
    """Point 4.10: whether NVML calls in a thread hold up the others."""
    ending = threading.Event()

    def poll() -> None:
        while not ending.wait(0.2):
            for name in ("UtilizationRates", "PowerUsage", "TotalEnergyConsumption"):
                ask(f"nvmlDeviceGet{name}", handle)
            ask("nvmlDeviceGetComputeRunningProcesses_v3", handle)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    late, end_s = [], time.perf_counter() + 2 * seconds
    while time.perf_counter() < end_s:
        due_s = time.perf_counter() + 0.02
        time.sleep(0.02)
        late.append((time.perf_counter() - due_s) * 1000)
    ending.set()
    thread.join(5)
    report.judge(
        "4.10", f"a 20 ms heartbeat was late by at most {max(late):.1f} ms", max(late) <= 20, "calls hold the GIL"
    )
