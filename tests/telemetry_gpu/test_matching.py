"""Which GPUs a server uses, which are free, who holds the memory."""

from __future__ import annotations

import socket

import pytest

from vtop.servers.status import ServerState, ServerStatus
from vtop.telemetry.gpu.matching import free_gpus, gpus_of, is_here, match_gpus, shortage
from vtop.telemetry.snapshot import GpuProcess, GpuReading

GIB = 2**30


def gpu(index: int, name: str = "Example 80GB", **options: object) -> GpuReading:
    values: dict[str, object] = {
        "uuid": f"GPU-{index}a0b1c2d",
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": GIB,
        "processes": (),
        "index": index,
        "name": name,
    }
    return GpuReading(**(values | options))  # type: ignore[arg-type]


FOUR = [gpu(index) for index in range(4)]
ONE = [gpu(0)]
MIG = [
    gpu(0),
    gpu(1),
    gpu(1, uuid="MIG-aaaa1111-0000", mig_parent="GPU-1a0b1c2d", gpu_instance_id=5, compute_instance_id=0),
    gpu(1, uuid="MIG-bbbb2222-0000", mig_parent="GPU-1a0b1c2d", gpu_instance_id=6, compute_instance_id=0),
]
PCI = "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("visible", "order", "gpus", "expected"),
    [
        # By number, where CUDA's numbers are NVML's.
        ("1", PCI, FOUR, ["GPU-1a0b1c2d"]),
        ("3,1", PCI, FOUR, ["GPU-3a0b1c2d", "GPU-1a0b1c2d"]),
        (" 0 , 2 ", PCI, FOUR, ["GPU-0a0b1c2d", "GPU-2a0b1c2d"]),
        # By number in an order that nobody knows.
        ("1", None, FOUR, None),
        ("1", "FASTEST_FIRST", FOUR, None),
        ("0", None, ONE, ["GPU-0a0b1c2d"]),
        ("0,1,2,3", None, FOUR, [f"GPU-{index}a0b1c2d" for index in range(4)]),
        ("0,5", None, FOUR[:2], None),
        # By UUID, or its beginning.
        ("GPU-2a0b1c2d", None, FOUR, ["GPU-2a0b1c2d"]),
        ("GPU-2a,GPU-0", None, FOUR, ["GPU-2a0b1c2d", "GPU-0a0b1c2d"]),
        ("GPU-", None, FOUR, []),
        # CUDA stops at the first entry that names nothing.
        ("1,9,2", PCI, FOUR, ["GPU-1a0b1c2d"]),
        ("9,1", PCI, FOUR, []),
        ("1,GPU-nobody,2", PCI, FOUR, ["GPU-1a0b1c2d"]),
        ("1,1", PCI, FOUR, []),
        ("", PCI, FOUR, []),
        ("-1", None, FOUR, []),
        ("NoDevFiles", None, FOUR, []),
        # MIG instances.
        ("MIG-bbbb2222-0000", None, MIG, ["MIG-bbbb2222-0000"]),
        ("MIG-bbbb", None, MIG, ["MIG-bbbb2222-0000"]),
        ("MIG-GPU-1a0b1c2d/5/0", None, MIG, ["MIG-aaaa1111-0000"]),
        ("MIG-GPU-1a0b1c2d/9/0", None, MIG, []),
        ("1", PCI, MIG, None),
        # Not set.
        (None, None, ONE, ["GPU-0a0b1c2d"]),
        (None, None, FOUR, None),
        (None, None, [], None),
        # A lost GPU moves the numbers of those behind it.
        ("1", PCI, [*FOUR[:3], gpu(3, lost=True)], None),
    ],
)
def test_visible_devices(
    visible: str | None, order: str | None, gpus: list[GpuReading], expected: list[str] | None
) -> None:
    match = match_gpus(visible, order, gpus)
    assert match.uuids == (None if expected is None else tuple(expected)), match.reason
    assert match.reason


def test_process_list_wins_over_numbers_in_an_unknown_order() -> None:
    """CUDA's number 1 was NVML's number 0 here: the fast small card came second on the bus."""
    small = gpu(0, "Example 5090 32GB", processes=(GpuProcess(900, 30 * GIB, "python3"),))
    big = gpu(1, "Example PRO 96GB")
    match = match_gpus("1", None, [small, big], tree_pids=[900])
    assert match == ((small.uuid,), "by the driver's process list")
    unsure = match_gpus("1", None, [small, big], tree_pids=[901])
    assert unsure.uuids is None and unsure.reason.startswith("mapping not verified")
    assert match_gpus("1", PCI, [small, big], tree_pids=[901]).uuids == (big.uuid,), "preset GPU 1 is NVML's 1"


def test_pids_without_a_name_are_the_hosts_and_match_by_accident_only() -> None:
    foreign = gpu(0, processes=(GpuProcess(57, GIB, None),))
    match = match_gpus(None, None, [foreign, gpu(1)], tree_pids=[41, 57, 58])
    assert match.uuids is None and "not verified" in match.reason


def test_tensor_parallel_server_holds_several_and_an_instance_beats_its_gpu() -> None:
    held = (GpuProcess(7, GIB, "VLLM::Worker_TP0"),)
    assert match_gpus(None, None, [gpu(0, processes=held), gpu(1), gpu(2, processes=held)], [7]).uuids == (
        "GPU-0a0b1c2d",
        "GPU-2a0b1c2d",
    )
    parent = gpu(1, processes=held)
    instance = gpu(1, uuid="MIG-aaaa1111-0000", mig_parent=parent.uuid, processes=held)
    assert match_gpus(None, None, [parent, instance], [7]).uuids == ("MIG-aaaa1111-0000",)


def test_emptiest_gpus_of_one_model_are_picked() -> None:
    busy = gpu(0, memory_used_bytes=70 * GIB)
    gpus = [busy, gpu(1, memory_used_bytes=2 * GIB), gpu(2), gpu(3, "Another 24GB", memory_total_bytes=24 * GIB)]
    assert free_gpus(gpus, 1).uuids == ("GPU-2a0b1c2d",)
    assert free_gpus(gpus, 2).uuids == ("GPU-1a0b1c2d", "GPU-2a0b1c2d")
    three = free_gpus(gpus, 3)
    assert three.uuids is None and "one model" in three.reason
    four = free_gpus(gpus, 4)
    assert four.uuids is None and "3 of 4 GPUs" in four.reason and "GPU 0: 10.0 GiB of 80.0 GiB free" in four.reason


def test_lost_divided_and_unknown_gpus_are_not_handed_out_blindly() -> None:
    assert free_gpus([gpu(0, lost=True)], 1).uuids is None
    assert free_gpus(MIG, 2).uuids is None, "a GPU in MIG mode cannot be used whole"
    assert free_gpus([gpu(0, memory_total_bytes=None, memory_used_bytes=None)], 1).uuids is not None


def test_shortage_says_who_holds_the_rest_and_what_would_fit() -> None:
    """Free 31.44 of 47.38 GiB, 0.95 wanted: the refusal that vLLM gives after half a minute."""
    total, used = int(47.38 * GIB), int((47.38 - 31.44) * GIB)
    holders = (GpuProcess(811, 2 * GIB, "python3"), GpuProcess(4242, 13 * GIB, None))
    card = gpu(0, memory_total_bytes=total, memory_used_bytes=used, processes=holders)
    found = shortage([card], [card.uuid], 0.95)
    assert found is not None
    assert found.wanted_bytes / GIB == pytest.approx(45.01, abs=0.01)
    assert found.fitting_share == 0.66
    assert found.holders is not None and [holder.pid for holder in found.holders] == [4242, 811]
    assert "31.4 GiB of 47.4 GiB free, 45.0 GiB wanted" in found.text
    assert "host pid 4242 (not visible here) (13.0 GiB), python3 (pid 811) (2.00 GiB)" in found.text
    assert shortage([card], [card.uuid], 0.66) is None
    assert shortage([card], [card.uuid], 0.95, own_pids=[4242, 811]) is None, "a server about to be replaced"
    assert shortage([card], ["GPU-other"], 0.95) is None


def test_shortage_cannot_be_told_without_figures() -> None:
    assert shortage([gpu(0, memory_used_bytes=None)], ["GPU-0a0b1c2d"], 0.9) is None
    hidden = gpu(0, memory_used_bytes=79 * GIB, processes=None)
    found = shortage([hidden], [hidden.uuid], 0.9)
    assert found is not None and found.holders is None and "does not show" in found.text


def server(host: str = "127.0.0.1", **more: object) -> ServerStatus:
    return ServerStatus("s", f"http://{host}:8000", ServerState.FOREIGN, host=host, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1", "127.0.1.1", "::1", "[::1]", "0.0.0.0", "LOCALHOST"])
def test_names_of_this_machine(host: str) -> None:
    assert is_here(host)


def test_this_machines_own_name_and_nobody_elses() -> None:
    assert is_here(socket.gethostname())
    assert not is_here("gpu-7.example.net")
    assert not is_here("192.0.2.7"), "an address that is kept for examples"


def test_a_server_on_another_machine_does_not_get_the_only_gpu_of_this_one() -> None:
    assert gpus_of(server(), ONE) == tuple(ONE)
    assert gpus_of(server("gpu-7"), ONE) == ()


def test_a_server_on_another_machine_gets_the_only_gpu_that_an_exporter_shows_there() -> None:
    there = gpu(0, uuid="GPU-there", host="gpu-7")
    assert gpus_of(server("gpu-7"), [*ONE, there]) == (there,)
    assert gpus_of(server("GPU-7"), [*ONE, there]) == (there,)
    assert gpus_of(server(), [*ONE, there]) == tuple(ONE), "and does not take this machine's away"
    assert gpus_of(server("gpu-8"), [*ONE, there]) == ()
    assert gpus_of(server("gpu-7"), [there, gpu(1, uuid="GPU-two", host="gpu-7")]) == ()


def test_known_gpus_are_taken_by_uuid_lost_ones_too_and_a_cpu_build_has_none() -> None:
    lost = gpu(2, lost=True)
    assert gpus_of(server(gpu_uuids=(lost.uuid,)), [*FOUR[:2], lost]) == (lost,)
    assert gpus_of(server(gpu_uuids=()), ONE) == ()
    assert gpus_of(server(version="0.32.0+cpu"), ONE) == ()
