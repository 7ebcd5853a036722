"""start, status, logs, load, runs, report, stop on one simulated server, as a person would type them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.vtop_process import Vtop, until

SMALL = ("-n", "6", "-c", "3", "--max-tokens", "12")


@pytest.fixture(scope="module")
def run_id(served: Vtop) -> Iterator[str]:
    """One finished load test."""
    yield served("load", "demo", *SMALL, "--json").json()["run_id"]


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, path)
    elif isinstance(value, float):
        yield path, value


def _url(served: Vtop) -> str:
    found = re.search(r"baseline +READY SIMULATED\s+\S+\s+(http://\S+)", served("status", "--window", "0.2").out)
    assert found is not None
    return found[1]


def _tokens(url: str) -> float:
    """What the server has generated since it started."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total{"))


def test_status_shows_the_server_and_says_simulated(served: Vtop) -> None:
    out = served("status", "--window", "0.5").out
    assert re.search(r"^baseline\s+READY SIMULATED", out, re.MULTILINE)
    assert "RTX 4090 SIMULATED" in out


def test_status_as_json_has_units_and_no_nan(served: Vtop) -> None:
    snapshot = served("status", "--json", "--window", "0.5").json()
    assert snapshot["simulated"] is True
    (server,) = [server for server in snapshot["servers"] if server["status"]["name"] == "baseline"]
    assert server["status"]["state"] == "ready"
    gpu = next(gpu for gpu in snapshot["gpus"] if gpu["simulated"])
    assert gpu["sm_clock_mhz"] is None
    assert "sm_clock_mhz" in gpu["missing"]
    for _, number in _numbers(snapshot):
        assert math.isfinite(number)
    latencies = {key for engine in server["engines"] for key in engine if key.startswith(("ttft_", "tpot_", "e2e_"))}
    assert latencies
    assert all(key.endswith(("_s", "_count")) for key in latencies)


def test_logs_prints_what_the_server_wrote(served: Vtop) -> None:
    lines = served("logs", "baseline", "-n", "5").out.splitlines()
    assert len(lines) == 5
    assert any("startup complete" in line or "GET /" in line or "POST" in line for line in lines)


def test_a_name_in_use_is_refused_and_the_server_lives_on(served: Vtop) -> None:
    assert "baseline" in served.fails(1, "start", "baseline", "--sim")
    assert "READY" in served("status", "--window", "0.2").out


def test_load_prints_the_summary_and_marks_it(served: Vtop) -> None:
    out = served("load", "demo", *SMALL).out
    assert out.startswith("SIMULATED")
    for line in ("Total time", "Output", "QPS", "Mean latency", "P95 latency", "TTFT", "TPOT"):
        assert line in out


def test_load_as_json_counts_what_the_server_counts(served: Vtop) -> None:
    result = served("load", "demo", *SMALL, "--warmup", "0", "--ignore-eos", "--json").json()
    assert (result["requests"], result["completed"], result["failed"]) == (6, 6, 0)
    assert result["output_tokens"] == 6 * 12
    assert result["server"]["generation_tokens"] == 6 * 12
    assert result["simulated"] is True
    assert 0 < result["ttft_p50_s"] <= result["ttft_p95_s"] <= result["e2e_p95_s"]
    assert result["ttfo_mean_s"] is None
    assert result["ttft_n"] == 6
    assert all(math.isfinite(number) for _, number in _numbers(result))


def test_runs_lists_the_run(served: Vtop, run_id: str) -> None:
    assert run_id in served("runs").out
    listed = served("runs", "--json").json()
    assert any(run["run_id"] == run_id and run["simulated"] for run in listed)


def test_a_report_in_every_form_says_simulated(served: Vtop, run_id: str, tmp_path: Path) -> None:
    markdown = served("report", run_id, "--format", "md").out
    assert "SIMULATED" in markdown
    assert "|" in markdown
    rows = list(csv.DictReader(io.StringIO(served("report", run_id, "--format", "csv").out)))
    assert rows
    assert served("report", run_id, "--format", "json").json()
    page = tmp_path / "report.html"
    assert str(page) in served("report", run_id, "--format", "html", "-o", str(page)).out
    html = page.read_text(encoding="utf-8")
    assert "SIMULATED" in html
    for picture in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(picture)


def test_a_report_where_nothing_can_be_written(served: Vtop, run_id: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "report.md" in served.fails(1, "report", run_id, "-o", str(tmp_path / "file" / "report.md"))


def test_a_saved_result_can_be_imported_where_vllm_bench_wrote_it(served: Vtop, run_id: str, tmp_path: Path) -> None:
    saved = json.loads((served.directory("RUNS") / run_id / "result.json").read_text(encoding="utf-8"))
    theirs = {key: value for key, value in saved.items() if not key.startswith("vtop_")}
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(theirs), encoding="utf-8")
    assert "imported as" in served("import", str(file)).out


def test_ctrl_c_in_a_load_test_keeps_what_was_measured(served: Vtop) -> None:
    before = {run["run_id"] for run in served("runs", "--json").json()}
    url = _url(served)
    began = _tokens(url)
    process = served.spawn("load", "demo", "-n", "5000", "-c", "4", "--max-tokens", "8")
    assert process.stderr is not None
    while "running" not in (line := process.stderr.readline()):
        assert line, "the load test never ran"
    assert until(lambda: _tokens(url) > began + 50)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    (kept,) = [run for run in served("runs", "--json").json() if run["run_id"] not in before]
    assert kept["complete"] is False
    assert "Requests" in out


def test_stop_of_nothing_known_stops_nothing(served: Vtop) -> None:
    assert "baseline" in served.fails(2, "stop", "baselin", "--yes")
    assert "--yes" in served.fails(2, "stop", "baseline")
    assert "READY" in served("status", "--window", "0.2").out


def test_what_another_vtop_measures_is_not_measured_by_a_second_one(served: Vtop) -> None:
    code = (
        "import sys, time; from vtop.service.measuring import Measurements;"
        "Measurements().claim('comparison', 'spec-ngram'); print('claimed', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=served.environment(), text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        who = f"a comparison (spec-ngram) is running in another vtop (pid {other.pid}, since "
        assert who in served("status", "--window", "0.2").out
        assert who in served.fails(1, "load", "demo", *SMALL)
        assert who in served.fails(1, "compare", "baseline", "sequential", "--sim", "--repeats", "1")
    finally:
        other.kill()
        other.communicate()
    assert "6 of 6 ok" in served("load", "demo", *SMALL).out
    assert list((served.directory("STATE") / "measuring").glob("*.json")) == []
