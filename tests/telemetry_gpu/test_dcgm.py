"""An existing dcgm-exporter as a source, over real sockets."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from telemetry_gpu.fake_nvml import H100, RTX_4090, LoadedFakeNvml, board, uuid_of
from vtop.clock import FakeClock, SystemClock
from vtop.telemetry.gpu import dcgm
from vtop.telemetry.gpu.dcgm import DEADLINE_S, PAUSE_AFTER_FAILURE_S, STALE_S, DcgmExporter, DcgmOverlay, DcgmSource
from vtop.telemetry.gpu.nvml import NvmlSource


def labels(gpu: int, uuid: str, name: str, instance: str = "") -> str:
    return (
        f'{{gpu="{gpu}",UUID="{uuid}",pci_bus_id="00000000:10:00.0",device="nvidia{gpu}",modelName="{name}"{instance}}}'
    )


A100 = labels(0, uuid_of(0), "NVIDIA A100-SXM4-80GB")
SLICE = labels(1, uuid_of(1), "NVIDIA A100-SXM4-80GB", ',GPU_I_PROFILE="2g.20gb",GPU_I_ID="5"')
PAGE = f"""# HELP DCGM_FI_PROF_DRAM_ACTIVE Ratio of cycles the device memory interface is active (in %).
# TYPE DCGM_FI_PROF_DRAM_ACTIVE gauge
DCGM_FI_PROF_DRAM_ACTIVE{A100} 0.640000
DCGM_FI_PROF_DRAM_ACTIVE{SLICE} 0.250000
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{A100} 0.120000
DCGM_FI_PROF_SM_ACTIVE{A100} 0.930000
DCGM_FI_DEV_GPU_UTIL{A100} 99
DCGM_FI_DEV_FB_USED{A100} 40960
DCGM_FI_DEV_FB_FREE{A100} 40448
DCGM_FI_DEV_FB_RESERVED{A100} 512
DCGM_FI_DEV_POWER_USAGE{A100} 312.5
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{A100} 123456789
DCGM_FI_DEV_MEMORY_TEMP{A100} 9223372036854775794
DCGM_FI_DEV_GPU_TEMP{A100} 55
DCGM_FI_PROF_PCIE_RX_BYTES{A100} 1250000000
"""


class Exporter:
    """Answers every request the same way."""

    def __init__(self) -> None:
        self.body, self.status, self.drip_s, self.asked = PAGE, 200, 0.0, 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body.encode())))
                self.end_headers()
                try:
                    for part in outer.body.encode().splitlines(keepends=True):
                        self.wfile.write(part)
                        self.wfile.flush()
                        time.sleep(outer.drip_s)
                except OSError:
                    return

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    running = Exporter()
    yield running
    running.server.shutdown()
    running.server.server_close()


def test_a_remote_host_by_its_exporter_alone(exporter: Exporter, clock: FakeClock) -> None:
    source = DcgmSource(DcgmExporter(exporter.url, clock), clock)
    source.open()
    frame = source.read()
    source.close()
    whole, part = frame.gpus
    assert frame.status.available and frame.status.message == ""
    assert whole.uuid == uuid_of(0) and whole.name == "NVIDIA A100-SXM4-80GB"
    assert whole.bandwidth is not None
    assert (whole.bandwidth.source, whole.bandwidth.percent, whole.bandwidth.peak_source) == ("dcgm", 64.0, "datasheet")
    assert whole.bandwidth.bytes_per_s == pytest.approx(0.64 * 2039e9)
    assert (whole.sm_percent, whole.tensor_percent, whole.gpu_util_percent) == (93.0, 12.0, 99)
    assert whole.memory_used_bytes == 40 * 2**30 and whole.memory_total_bytes == 80 * 2**30
    assert (whole.power_w, whole.temperature_c, whole.pcie_rx_bytes_per_s) == (312.5, 55, 1.25e9)
    assert whole.memory_temperature_c is None, "DCGM writes blank as an enormous number"
    assert whole.energy_j is None and "too rarely" in whole.missing["energy_j"]
    assert part.mig_parent == uuid_of(1) and part.gpu_instance_id == 5 and part.name.endswith("2g.20gb")
    assert part.bandwidth is not None and (part.bandwidth.percent, part.bandwidth.bytes_per_s) == (25.0, None)
    assert part.sm_percent is None and "not exported" in part.missing["sm_percent"], "absent is not 0"


def test_overlay_fills_in_where_nvml_measures_no_bandwidth(
    nvml: LoadedFakeNvml, exporter: Exporter, clock: FakeClock
) -> None:
    old = {**RTX_4090, "name": "NVIDIA A100-SXM4-80GB", "clock_mem": 1593, "clock_mem_max": 1593, "bus_width": 5120}
    nvml.say([board(0, old), board(1, H100), board(2, old)], gpm_min_ms=0)
    exporter.body += f"DCGM_FI_PROF_DRAM_ACTIVE{labels(1, uuid_of(1), 'NVIDIA H100')} 0.99\n"
    source = DcgmOverlay(NvmlSource(clock), DcgmExporter(exporter.url, clock), clock)
    source.open()
    clock.advance(0.5)
    measured, own, unknown = source.read().gpus
    source.close()
    assert measured.bandwidth is not None and measured.bandwidth.source == "dcgm"
    assert measured.bandwidth.bytes_per_s == pytest.approx(0.64 * 2038.8e9, rel=1e-3)
    assert measured.sm_percent == 93.0 and "sm_percent" not in measured.missing
    assert own.bandwidth is not None and (own.bandwidth.source, own.bandwidth.percent) == ("gpm", 63.75)
    assert unknown.bandwidth is not None and unknown.bandwidth.source == "busy", "not on the page: nothing invented"


def test_overlay_of_another_hosts_exporter_is_named(nvml: LoadedFakeNvml, exporter: Exporter, clock: FakeClock) -> None:
    nvml.say([board(0, RTX_4090, uuid="GPU-elsewhere")])
    source = DcgmOverlay(NvmlSource(clock), DcgmExporter(exporter.url, clock), clock)
    source.open()
    frame = source.read()
    source.close()
    assert frame.status.available and "knows none of these GPUs" in frame.status.message
    assert [gpu.uuid for gpu in frame.gpus] == ["GPU-elsewhere"]


def test_gpus_of_another_machine_stand_beside_this_ones_and_say_where_they_are(
    nvml: LoadedFakeNvml, exporter: Exporter, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm, "is_here", lambda host: False)
    nvml.say([board(0, H100, uuid="GPU-mine")], gpm_min_ms=0)
    source = DcgmOverlay(NvmlSource(clock), DcgmExporter(exporter.url, clock), clock)
    source.open()
    frame = source.read()
    source.close()
    assert [(gpu.uuid, gpu.host) for gpu in frame.gpus if gpu.mig_parent is None] == [
        ("GPU-mine", ""),
        (uuid_of(0), "127.0.0.1"),
    ]
    assert frame.gpus[1].bandwidth is not None and frame.gpus[1].bandwidth.source == "dcgm"
    assert frame.status.message == ""


def test_an_exporter_shows_gpus_where_nvml_shows_none(
    nvml: LoadedFakeNvml, exporter: Exporter, clock: FakeClock
) -> None:
    nvml.say([], init_err=12)
    source = DcgmOverlay(NvmlSource(clock), DcgmExporter(exporter.url, clock), clock, {"*": 1e12})
    source.open()
    frame = source.read()
    source.close()
    assert frame.status.available and "dcgm-exporter at 127.0.0.1:" in frame.status.message
    assert [gpu.uuid for gpu in frame.gpus if gpu.mig_parent is None] == [uuid_of(0)]
    bandwidth = frame.gpus[0].bandwidth
    assert bandwidth is not None and (bandwidth.source, bandwidth.peak_source) == ("dcgm", "user")
    assert bandwidth.bytes_per_s == pytest.approx(0.64e12)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, "nothing here\n", "status 404"),
        (200, "<html>log in</html>\n", "no DCGM figures"),
        (200, "", "no DCGM figures"),
        (200, f"DCGM_FI_DEV_GPU_UTIL{A100} 12\n", "does not export DCGM_FI_PROF_DRAM_ACTIVE"),
    ],
)
def test_pages_that_are_none_are_said_in_one_line(
    exporter: Exporter, clock: FakeClock, status: int, body: str, words: str
) -> None:
    exporter.status, exporter.body = status, body
    asking = DcgmExporter(exporter.url, clock)
    asking.poll()
    asking.close()
    assert words in asking.problem and "\n" not in asking.problem


def test_an_exporter_that_is_away_is_asked_rarely_and_its_password_is_not_shown(clock: FakeClock) -> None:
    asking = DcgmExporter("http://user:secret@127.0.0.1:9/metrics", clock)
    asking.poll()
    assert "127.0.0.1:9" in asking.problem and "secret" not in asking.problem and "--dcgm-url" in asking.problem
    asking.close()


def test_pace_failure_pause_and_stale_figures(exporter: Exporter, clock: FakeClock) -> None:
    asking = DcgmExporter(exporter.url, clock)
    for _ in range(4):
        asking.poll()
        clock.advance(0.3)
    assert exporter.asked == 1, "once a second"
    exporter.status = 500
    clock.advance(1.0)
    asking.poll()
    assert asking.rows, "the last figures stay for a while"
    clock.advance(PAUSE_AFTER_FAILURE_S / 2)
    asking.poll()
    assert exporter.asked == 2
    clock.advance(STALE_S)
    asking.poll()
    assert asking.rows == {} and exporter.asked == 3
    exporter.status = 200
    clock.advance(PAUSE_AFTER_FAILURE_S)
    asking.poll()
    assert asking.rows and asking.problem == ""
    asking.close()


def test_a_page_that_drips_does_not_hold_the_worker_up(exporter: Exporter) -> None:
    exporter.body, exporter.drip_s = PAGE * 10, 0.1
    asking = DcgmExporter(exporter.url, SystemClock())
    begun_s = time.monotonic()
    asking.poll()
    assert "no answer in time" in asking.problem
    assert time.monotonic() - begun_s < DEADLINE_S + 5, "the whole page would take over ten seconds"
    asking.close()


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("http://gpu1:9400", "http://gpu1:9400/metrics"),
        ("gpu1:9400", "http://gpu1:9400/metrics"),
        ("https://gpu1/dcgm/metrics", "https://gpu1/dcgm/metrics"),
    ],
)
def test_addresses(given: str, asked: str, clock: FakeClock) -> None:
    assert DcgmExporter(given, clock).url == asked
