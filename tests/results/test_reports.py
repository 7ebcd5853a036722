"""Reports say what was measured, how to repeat it, what is simulated, and open anywhere."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from results.making_runs import a_run
from vtop.errors import UsageError, VtopError
from vtop.load.progress import LoadResult, LoadStep
from vtop.results.comparability import Configuration
from vtop.results.compare import compare_rows
from vtop.results.comparison import CompareRequest, CompareStep, ComparisonRecord, ConfigurationFacts, Measured
from vtop.results.report import FORMATS, render, write_report

SPEEDS = {"sequential": 120.0, "baseline": 610.0, "prefix-caching": 612.0, "spec-ngram": 890.0}


def a_comparison(simulated: bool = False, **changes: Any) -> ComparisonRecord:
    measured = [
        Measured(
            number, preset, a_run(speed * (1 + number / 200), round=number, simulated=simulated, server=server(preset))
        )
        for preset, speed in SPEEDS.items()
        for number in (1, 2, 3)
    ]
    facts = {
        "prefix-caching": ConfigurationFacts(
            compare_with="baseline", prefix_caching=True, kv_capacity_tokens=432_816, weights_bytes=15.2e9
        ),
        "spec-ngram": ConfigurationFacts(speculative=True),
    }
    rows = compare_rows(
        [
            Configuration(
                preset,
                {run.round: run.result for run in measured if run.preset == preset},
                facts.get(preset, ConfigurationFacts()),
            )
            for preset in SPEEDS
        ]
    )
    record = ComparisonRecord(
        run_id="20250101-120000-compare",
        directory="",
        request=CompareRequest(
            presets=tuple(SPEEDS), workload="chat", order="interleaved", simulated=simulated, gpu="RTX 4090"
        ),
        at_wall_s=1_735_732_800.0,
        seed=4711,
        state="finished",
        steps=tuple(CompareStep(run.round, run.preset, "done") for run in measured),
        measured=tuple(measured),
        facts=facts,
        rows=rows,
        repeat_command="vtop compare sequential baseline prefix-caching spec-ngram --workload chat --repeats 3",
    )
    return replace(record, **changes)


def server(preset: str) -> dict[str, Any]:
    return {"acceptance": 0.42} if preset == "spec-ngram" else {"prefix_hit_rate": 0.004}


def a_ladder() -> LoadResult:
    steps = tuple(
        LoadStep(
            concurrency=concurrency,
            rate=None,
            requests=100,
            failed=0,
            output_tokens_per_s=90.0 * concurrency / (1 + concurrency / 20),
            requests_per_s=concurrency / 2,
            ttft_p50_s=0.04 + concurrency / 500,
            ttft_p95_s=0.06 + concurrency / 300,
            tpot_p50_s=0.01 + concurrency / 5000,
            tpot_p95_s=0.02,
            why="throughput gained less than 3 %" if concurrency == 32 else "",
        )
        for concurrency in (1, 2, 4, 8, 16, 32)
    )
    return a_run(kind="ladder", steps=steps)


class Page(HTMLParser):
    """What a browser would fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]


def test_the_markdown_table_of_a_comparison() -> None:
    text = render([a_comparison()], "md")
    line = next(line for line in text.splitlines() if line.startswith("| spec-ngram"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:4] == ["spec-ngram", "899", "7.42x", "7.42 to 7.42x"]
    assert cells[4] == "faster"
    assert (
        "prefix-caching: 618 tok/s, 5.10x (5.10 to 5.10x): faster; against baseline 1.00x: no difference seen" in text
    )
    assert "\n\n\n" not in text
    assert "vtop compare sequential baseline prefix-caching spec-ngram --workload chat --repeats 3" in text
    assert "seed 4711" in text
    assert "SIMULATED" not in text


def test_numbers_of_server_and_gpu_are_words_with_units() -> None:
    server = {"itl_mean_s": 0.0232, "kv_usage_max": 0.038, "prefix_hit_rate": 0.5, "generation_tokens": 19_100.0}
    gpu = {"power_mean_w": 222.4, "bandwidth_percent": 44.0, "bandwidth_source": "gpm", "joules_per_token": 0.956}
    text = render([a_run(server=server, gpu=gpu, fingerprint={"gpu": ["H100", "H200"]})], "md")
    for row in (
        "| server: ITL mean | 23.2 ms |",
        "| server: KV usage max | 3.8 % |",
        "| server: prefix hit rate | 50 % |",
        "| server: generation tokens | 19.1k |",
        "| GPU: power mean | 222 W |",
        "| GPU: bandwidth | 44 % |",
        "| GPU: bandwidth source | gpm |",
        "| GPU: joules per token | 0.956 J |",
    ):
        assert row in text, row
    assert "GPU H100, H200" in text


def test_every_report_defines_its_numbers_and_tells_how_to_repeat_it() -> None:
    for subject in (a_comparison(), a_ladder(), a_run()):
        for form in ("md", "html"):
            text = render([subject], form)
            assert "What the numbers mean" in text
            assert "How to repeat" in text
            assert "TPOT" in text


@pytest.mark.parametrize("form", FORMATS)
def test_simulated_is_marked_in_every_form(form: str) -> None:
    for subject in (a_comparison(simulated=True), a_run(simulated=True), replace(a_ladder(), simulated=True)):
        text = render([subject], form)
        assert "SIMULATED" in text or re.search(r'"simulated": true|True', text)


def test_gains_are_held_against_the_published_table_with_reasons() -> None:
    text = render([a_comparison()], "md")
    assert "610 tok/s, 5.1x" in text
    row = next(line for line in text.splitlines() if line.startswith("| prefix-caching (+ prefix caching)"))
    assert "780 tok/s, 6.5x" in row
    assert "this load shares no prefix" in row
    other = replace(a_comparison(), rows=a_comparison().rows[1:])
    assert "published table" not in render([other], "md")


def test_a_comparison_that_was_cut_says_so() -> None:
    record = a_comparison(state="cancelled", message="stopped; what was measured is kept")
    steps = (*record.steps[:5], *(replace(step, state="waiting") for step in record.steps[5:]))
    text = render([replace(record, steps=steps)], "md")
    assert "Not finished: cancelled, 5 of 12 runs" in text


def test_servers_of_two_versions_are_held_together_by_meaning_only() -> None:
    record = a_comparison()
    old = [run for run in record.measured if run.preset in ("sequential", "baseline")]
    measured = tuple(
        replace(run, result=replace(
            run.result,
            fingerprint={"vllm_version": "0.10.2" if run.preset == "sequential" else "0.12.0"},
            server={"itl_mean_s": 0.015} if run.preset == "sequential" else {"itl_mean_s": 0.015, "tpot_mean_s": 0.022},
        ))
        for run in old
    )  # fmt: skip
    rows = compare_rows(
        [
            Configuration(name, {run.round: run.result for run in measured if run.preset == name})
            for name in ("sequential", "baseline")
        ]
    )
    text = render([replace(record, measured=measured, rows=rows)], "md")
    assert "0.10.2 and 0.12.0" in text
    changes = [line for line in text.splitlines() if line.startswith("| itl")]
    assert len(changes) == 1
    assert "+0.0 %" in changes[0]
    assert "tpot\\_mean" not in text


def test_json_has_units_in_its_names_and_null_for_unknown() -> None:
    document = json.loads(render([a_comparison()], "json"))
    row = document["rows"][3]
    assert row["preset"] == "spec-ngram"
    assert row["ratio"] == pytest.approx(890 / 120)
    assert row["joules_per_token"] is None
    assert document["runs"][0]["ttft_p95_s"] == pytest.approx(0.112)
    run = json.loads(render([a_run()], "json"))
    assert (run["output_tokens_per_s"], run["client_overhead_s"]) == (600.0, None)
    assert [item["kind"] for item in json.loads(render([a_run(), a_comparison()], "json"))] == ["load", "compare"]


def test_json_holds_no_nan() -> None:
    text = render([a_run(server={"acceptance": float("nan")})], "json")
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["server"] == {"acceptance": None}


def test_csv_of_each_kind() -> None:
    comparison = list(csv.DictReader(io.StringIO(render([a_comparison()], "csv"))))
    assert [row["preset"] for row in comparison] == list(SPEEDS)
    assert comparison[0]["joules_per_token"] == ""
    assert comparison[3]["verdict"] == "faster"
    ladder = list(csv.DictReader(io.StringIO(render([a_ladder()], "csv"))))
    assert [row["concurrency"] for row in ladder] == ["1", "2", "4", "8", "16", "32"]
    runs = list(csv.DictReader(io.StringIO(render([a_run(600), a_run(700)], "csv"))))
    assert [float(row["output_tokens_per_s"]) for row in runs] == [600, 700]
    with pytest.raises(UsageError, match="cannot hold comparisons and load tests"):
        render([a_run(), a_comparison()], "csv")


def test_a_spreadsheet_takes_no_cell_for_a_formula() -> None:
    evil = a_run(request=replace(a_run().request, model="=HYPERLINK(1)"))
    row = next(csv.DictReader(io.StringIO(render([evil], "csv"))))
    assert row["model"] == "'=HYPERLINK(1)"


def test_the_html_page_fetches_nothing_and_runs_nothing() -> None:
    text = render([a_comparison(), a_ladder(), a_run()], "html")
    page = Page(text)
    assert page.links == []
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert page.tags.count("svg") >= 4
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import|<!--|https?://(?!www\.w3\.org/)", text)


def test_text_from_servers_is_shown_not_interpreted() -> None:
    evil = "<script>alert(1)</script> [bold] | `x` *y*"
    result = a_run(warnings=(evil,), request=replace(a_run().request, model=evil))
    page = render([result], "html")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    markdown = render([result], "md")
    assert "\\<script\\>" in markdown
    assert "\\| \\`x\\` \\*y\\*" in markdown


def test_the_same_record_always_gives_the_same_page() -> None:
    assert render([a_comparison()], "html") == render([a_comparison()], "html")


def test_without_pygal_the_page_has_its_tables_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pygal", None)
    text = render([a_comparison()], "html")
    assert "<svg" not in text
    assert "vllm-vtop[report]" in text
    assert "spec-ngram" in text


def test_charts_over_time_come_from_the_requests_beside_the_result(tmp_path: Path) -> None:
    lines = [
        {
            "ok": True,
            "sent_s": second,
            "ttft_s": 0.1,
            "tpot_s": 0.02,
            "output_tokens": 40,
            "chunk_s": [0.1 + 0.02 * n for n in range(40)],
        }
        for second in range(6)
    ]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = render([a_run(directory=str(tmp_path))], "html")
    assert "TTFT of each request" in text
    assert "Output over the run" in text
    assert "TTFT of each request" not in render([a_run()], "html")


def test_too_few_requests_for_a_percentile_are_marked() -> None:
    line = next(line for line in render([a_run(requests=64)], "md").splitlines() if line.startswith("| TTFT |"))
    assert line.count("ms?") == 2


def test_an_imported_run_names_whose_formulas_it_follows() -> None:
    result = a_run(kind="imported", definitions="guidellm 0.7", sources=(("TPOT", "inter_token_latency_ms"),))
    text = render([result], "md")
    assert "formulas of guidellm 0.7" in text
    assert "inter\\_token\\_latency\\_ms" in text


def test_writing_a_report(tmp_path: Path) -> None:
    path = write_report([a_run()], "md", tmp_path / "new" / "report.md")
    assert path.read_text().startswith("# Load test: chat")
    (tmp_path / "file").write_text("")
    with pytest.raises(VtopError, match="cannot write"):
        write_report([a_run()], "md", tmp_path / "file" / "report.md")


def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="nothing to report"):
        render([], "md")
    with pytest.raises(UsageError, match="unknown report format 'pdf'"):
        render([a_run()], "pdf")


@pytest.mark.browser
def test_a_real_browser_shows_the_charts_without_a_network(tmp_path: Path) -> None:
    browser = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if browser is None:
        pytest.skip("no headless Chromium here")
    page = write_report([a_comparison(simulated=True), a_ladder()], "html", tmp_path / "report.html")
    picture = tmp_path / "report.png"
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1280,2400",
        f"--user-data-dir={tmp_path}/profile",
        f"--screenshot={picture}",
        "--enable-logging=stderr",
        page.as_uri(),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert picture.stat().st_size > 50_000
    assert "Refused to" not in run.stderr, "the page's own policy blocks nothing of it"


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({"concurrency": 16}, "(200 requests, 16 at once, 150 tokens each)"),
        ({"rate": 8.0}, "(200 requests, 8.00 a second, 150 tokens each)"),
        ({"rate": 8.0, "concurrency": 4}, "(200 requests, 8.00 a second, at most 4 at once, 150 tokens each)"),
        ({"arrival": "burst"}, "(200 requests, all at the start, 150 tokens each)"),
        ({"file": "trace.jsonl"}, "(200 requests, at the times of the file, 150 tokens each)"),
    ],
)
def test_a_comparison_says_what_decided_when_requests_left(load: dict[str, Any], said: str) -> None:
    first, *others = a_comparison().measured
    request = replace(first.result.request, **{"concurrency": None, **load})
    measured = (replace(first, result=replace(first.result, request=request)), *others)
    assert said in render([a_comparison(measured=measured)], "md")
