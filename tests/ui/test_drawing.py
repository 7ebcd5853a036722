"""Rows, cuts, bars, bins and charts: what is drawn is what was measured, whole or not at all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ui.fake_service import NOW, engine, failed, gpu, ready, snapshot, wave
from ui.looks import LOG, app_for, comparison, load_progress, settle, warming
from vtop.telemetry.snapshot import GpuStatus
from vtop.ui.charts.bars import bar, history_row
from vtop.ui.charts.binning import Bin, binned, nice_top
from vtop.ui.charts.braille import area, resample
from vtop.ui.charts.plotext_chart import ChartSpec, trace
from vtop.ui.charts.plotext_chart import draw as draw_chart
from vtop.ui.charts.series import Chart, history_spec
from vtop.ui.glyphs import ASCII, UNICODE, plain
from vtop.ui.ink import Line, cut_start, cut_words, field, pack, printable, wrap
from vtop.ui.layout import plan
from vtop.ui.panels.gpus import gpu_panel, gpu_row
from vtop.ui.panels.header import header
from vtop.ui.panels.large import large_numbers
from vtop.ui.panels.latency import chart_title, empty_chart, numbers_strip, second_number
from vtop.ui.panels.servers import server_rows
from vtop.ui.screens.load import client_rows
from vtop.ui.screens.load import headline as load_headline
from vtop.ui.view import View
from vtop.ui.words import bucket_range, compare_sentence, load_sentence
from vtop.vllm.metrics import NEEDS
from vtop.vllm.reading import MEASURING, NOTHING_FINISHED, Latency, Quantile


@given(st.text(max_size=200))
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    assert printable(text).isprintable()
    assert "\x1b" not in Line(text).text


def test_markup_is_literal() -> None:
    assert Line("[/bold] x [core.py:396]").text == "[/bold] x [core.py:396]"
    assert printable("line1\nline2") == "line1\\nline2"


def test_a_line_of_a_megabyte_is_cut_before_anything_else() -> None:
    assert len(printable("x" * 1_000_000)) < 5_000


@given(st.text(max_size=80), st.integers(0, 60))
def test_a_row_always_has_its_width(text: str, width: int) -> None:
    """Wide and zero-width characters included."""
    assert Line(text).fit(width).width == width


@given(st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=120), st.integers(8, 60))
def test_wrapping_loses_no_character(text: str, width: int) -> None:
    rows = wrap(text, width)
    shown = "".join(row.text for row in rows).replace(" ", "")
    assert shown == printable(text).replace(" ", "")
    assert all(row.width <= width for row in rows)


def test_fields_are_shown_whole_or_not_at_all() -> None:
    fields = [field("name", weight=0), field("1,234 tok/s", weight=5), field("61.2 GiB", weight=3)]
    assert pack(fields, 40).text == "name  1,234 tok/s  61.2 GiB"
    assert pack(fields, 20).text == "name  1,234 tok/s"
    assert pack(fields, 10).text == "name"


def test_a_sentence_is_cut_between_words() -> None:
    assert cut_words("needs 1.75 GiB and only 1.12 GiB are left", 28) == "needs 1.75 GiB and only …"
    assert cut_words("short", 28) == "short"


def test_unknown_is_no_empty_bar() -> None:
    assert "·" in bar(None, 12, UNICODE).text
    assert "·" not in bar(0.0, 12, UNICODE).text
    assert bar(1e-9, 12, UNICODE).text != bar(0.0, 12, UNICODE).text


@given(st.floats(-1, 2), st.integers(4, 60))
def test_a_bar_never_leaves_its_cells(share: float, width: int) -> None:
    assert bar(share, width, UNICODE).width == width
    assert bar(share, width, ASCII).width == width


def test_gaps_stay_gaps_in_the_strip() -> None:
    assert history_row([50.0, None, 50.0], 3, 100.0, UNICODE) == "▄ ▄"
    assert area([100.0, 100.0, None, None], 2, 1, 100.0, UNICODE) == ["⣿ "]


def test_strip_does_not_invent_values_over_a_long_gap() -> None:
    slots = resample([0.0, 50.0], [10.0, 10.0], 0.0, 60.0, 60)
    assert slots[1:50] == [None] * 49


def test_bins_keep_the_extremes() -> None:
    times = [float(i) for i in range(100)]
    values: list[float | None] = [1.0] * 100
    values[37] = 99.0
    (run,) = binned(times, values, 0.0, 100.0, 10)
    assert max(item.high for item in run) == 99.0
    assert len(run) <= 11


def test_bins_break_at_gaps_and_drop_what_is_not_finite() -> None:
    values = [1.0, math.nan, 2.0, None, 3.0, math.inf, 4.0]
    runs = binned([float(i) for i in range(7)], values, 0.0, 7.0, 7)
    assert [[item.low for item in run] for run in runs] == [[1.0], [2.0], [3.0], [4.0]]


@given(st.floats(1e-6, 1e12))
def test_axis_ends_above_the_highest_value(value: float) -> None:
    assert value <= nice_top(value) * (1 + 1e-6) <= value * 2.1


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_chart_has_the_size_asked_for(glyphs: object) -> None:
    spec = _spec()
    rows = Chart().render(spec, glyphs)  # type: ignore[arg-type]
    assert [row.width for row in rows] == [58] * 12
    if glyphs is ASCII:
        assert all(row.text.isascii() for row in rows)


def _spec() -> ChartSpec:
    spec = history_spec(
        [(wave(84.0, 20.0, gap=(40, 60)), "ttft")], now=NOW, span_s=120, width=58, height=12,
        unit=lambda v: f"{v:g} ms",
        floor=60.0,
    )  # fmt: skip
    assert spec is not None
    return spec


def test_chart_says_how_long_ago_and_leaves_the_gap_empty() -> None:
    text = "\n".join(row.text for row in Chart().render(_spec(), UNICODE))
    assert "-120 s" in text
    assert "now" in text
    columns = [any("\u2800" < row[x] <= "\u28ff" for row in text.split("\n")[:-2]) for x in range(7, 58)]
    assert not all(columns)
    assert any(columns)


def test_equal_data_is_not_drawn_twice() -> None:
    chart = Chart()
    first = chart.render(_spec(), UNICODE)
    assert chart.render(_spec(), UNICODE) is first
    assert chart.builds == 1


def test_within_a_bin_time_changes_nothing() -> None:
    """A right edge that slid with each paint would repaint the whole chart each time."""
    series = (wave(84.0, 20.0), "ttft")
    specs = [
        history_spec([series], now=NOW - 0.01 - late, span_s=120, width=58, height=12, unit=str) for late in (0.0, 0.3)
    ]
    assert specs[0] == specs[1]


def test_nothing_measured_is_no_chart() -> None:
    empty = ([], [])
    gaps = ([1.0, 2.0], [None, None])
    for series in (empty, gaps):
        assert history_spec([(series, "ttft")], now=3.0, span_s=120, width=58, height=12, unit=str) is None


def test_trace_with_one_point_is_drawn() -> None:
    runs = binned([5.0], [1.0], 0.0, 10.0, 40)
    spec = ChartSpec(40, 8, (trace(runs, "ttft"),), 0.0, 10.0, 1.0, ((0.0, "0"),), ((0.0, "0"),))
    assert any("\u2800" < cell <= "\u28ff" for row in Chart().render(spec, UNICODE) for cell in row.text)


@pytest.mark.parametrize(
    ("quantile", "text"),
    [
        (Quantile(0.15, 0.1, 0.25), "100–250 ms"),
        (Quantile(1.4, 1.0, 2.5), "1–2.5 s"),
        (Quantile(0.0005, 0.0, 0.001), "< 1 ms"),
        (Quantile(None, 10.0, None), "> 10.0 s"),
        (None, "–"),
    ],
)
def test_percentiles_are_told_as_buckets(quantile: Quantile | None, text: str) -> None:
    assert bucket_range(quantile) == text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160])
def test_gpu_row_never_cuts_a_number(width: int) -> None:
    """Memory, power and temperature are whole, or absent where there is no room at all."""
    text = gpu_row(gpu(name="X" * 60), width, UNICODE).text
    assert cell_len(text) <= width
    assert "61.2/80 GiB" in text
    if width >= 80:
        for whole in ("62 %", "2.08 TB/s", "gpm", "41 %", "512/700 W", "54 °C"):
            assert whole in text


@pytest.mark.parametrize("count", [8, 16])
def test_eight_gpus_have_eight_rows_and_the_rest_is_counted(count: int) -> None:
    cards = [gpu(index) for index in range(count)]
    layout = plan(80, 24, 1, count)
    rows = gpu_panel(snapshot(ready(), gpus=cards), 80, layout.gpus, UNICODE)
    assert sum(" GiB" in row.text for row in rows) == 8
    assert any("8 more" in row.text for row in rows) == (count == 16)


def test_gpus_scroll_to_the_last_one() -> None:
    cards = [gpu(index) for index in range(16)]
    rows = gpu_panel(snapshot(ready(), gpus=cards), 80, 9, UNICODE, scroll=99)
    assert rows[7].text.startswith("15 ")


@given(st.integers(20, 200), st.integers(8, 70), st.integers(0, 40), st.integers(0, 40), st.booleans())
def test_layout_gives_out_no_more_rows_than_there_are(
    width: int, height: int, servers: int, gpus: int, large: bool
) -> None:
    layout = plan(width, height, servers, gpus, large=large)
    top = layout.servers if layout.framed else layout.servers + layout.gpus
    assert top + layout.numbers + layout.chart + layout.engine + layout.verdict + 2 <= height
    assert min(layout.servers, layout.gpus, layout.chart, layout.numbers, layout.engine, layout.verdict) >= 0


def test_the_selected_server_is_always_in_sight() -> None:
    views = [ready(f"server-{index}") for index in range(20)]
    rows, owners = server_rows(snapshot(*views), views[17], 60, 5, UNICODE)
    assert "server-17" in owners
    assert "16 more" in rows[-1].text


def test_a_failed_server_says_cause_and_remedy_in_two_rows() -> None:
    rows, _ = server_rows(snapshot(failed()), failed(), 78, 4, UNICODE)
    assert "1.75 GiB" in rows[0].text
    assert "Lower max_model_len to 20,960." in rows[1].text


def test_badges_survive_every_width() -> None:
    from dataclasses import replace

    shown = replace(snapshot(ready()), simulated=True, replayed=True)
    for width in (40, 60, 80, 120):
        text = header(shown, shown.servers[0], View(paused=True), width, UNICODE).text
        assert "SIMULATED" in text
        assert "REPLAY" in text
        assert "PAUSED" in text


def test_ascii_twins_keep_the_width() -> None:
    text = "17.9 ms · 54 °C – ≥ µs → …"
    assert len(plain(text)) == len(text)


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (120, 40), (160, 45), (200, 60)])
async def test_resizing_down_and_back_does_not_crash(size: tuple[int, int]) -> None:
    app = app_for("eight-busy")
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        for other in ((40, 10), (20, 5), (200, 60), size):
            await pilot.resize_terminal(*other)
            await settle(pilot)
        assert not app._paint_failed
        assert app.is_running


async def test_every_dashboard_row_fits_the_terminal() -> None:
    for size in ((80, 24), (120, 40)):
        app = app_for("hostile")
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            for canvas in app.screen.query("Canvas"):
                assert canvas.region.right <= size[0], canvas.id
                assert canvas.region.bottom <= size[1], canvas.id


async def test_numbers_that_nobody_has_are_dashes_and_never_zero() -> None:
    from ui.fake_service import FakeService
    from vtop.ui.app import VtopApp

    bare = engine(
        running=None, waiting=None, kv_usage=None, generation_tokens_per_s=None, ttft=None, tpot=None, itl=None,
        requests_per_s=None, preemptions=None, speculation=None, prefix_hit_rate=None, prompt_computed_share=None,
        prompt_cached_share=None, prompt_transferred_share=None, prompt_tokens_per_s=None,
    )  # fmt: skip
    card = gpu(
        bandwidth=None, sm_percent=None, tensor_percent=None, gpu_util_percent=None, power_w=None, power_limit_w=None,
        temperature_c=None, sm_clock_mhz=None, memory_used_bytes=None, memory_total_bytes=None,
    )  # fmt: skip
    service = FakeService(snapshot(ready(engines=(bare,)), gpus=[card]))
    app = VtopApp(service, clock=service.clock)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        text = "\n".join(
            line.text for name in ("servers", "gpus", "engine") for line in app.screen.query_one(f"#{name}").lines
        )  # type: ignore[attr-defined]
    assert "– tok/s" not in text
    assert "0 tok/s" not in text
    assert "– running · – waiting" in text
    assert "– / – GiB" in text


async def test_the_log_shows_brackets_and_no_escape_sequence() -> None:
    app = app_for("failed")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("g")
        await settle(pilot)
        await settle(pilot)
        text = "\n".join(line.text for line in app.screen.query_one("#body").lines)  # type: ignore[attr-defined]
    for literal in ("[core.py:396]", "[/opt/lib/x.so]", "[node_modules]", "[/bold]", "模型/中文"):
        assert literal in text
    assert "\x1b" not in text
    assert len(LOG) == 6


async def test_a_megabyte_line_in_the_log_does_not_freeze_the_screen() -> None:
    app = app_for("one")
    app.service.logs["baseline"] = ["x" * 1_000_000] * 20  # type: ignore[attr-defined]
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("g")
        await settle(pilot)
        await settle(pilot)
        await pilot.press("home")
        await settle(pilot)
        text = "\n".join(line.text for line in app.screen.query_one("#body").lines)  # type: ignore[attr-defined]
        assert "1,000,000 characters" in text


async def test_search_finds_goes_round_and_says_where_it_stands() -> None:
    app = app_for("failed")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for key in ("g", "slash", *"core.py", "enter"):
            await pilot.press(key)
            await settle(pilot)
        assert "/core.py  1 of 2" in app.screen.heading()  # type: ignore[attr-defined]
        await pilot.press("n")
        await settle(pilot)
        assert "2 of 2" in app.screen.heading()  # type: ignore[attr-defined]
        await pilot.press("N")
        await settle(pilot)
        assert "1 of 2" in app.screen.heading()  # type: ignore[attr-defined]


def test_the_warm_up_of_a_load_test_is_counted_with_its_time_left() -> None:
    progress = warming().load
    assert progress is not None
    assert load_sentence(progress) == "Load test: warming up 3 of 8, 0:20 left."
    _, second = (line.text for line in load_headline(progress, 78, UNICODE))
    assert "Warming up 3 of 8, not counted" in second
    assert "0:12" in second and "0:20 left" in second


def test_a_comparison_says_what_it_does_now_and_how_long_it_will_take() -> None:
    progress = comparison("running")
    assert compare_sentence(progress) == "Comparison: 4 of 9 runs, prefix-caching loading 41 of 64, about 6:18 left."


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (NOTHING_FINISHED, "none since vtop watches"),
        (MEASURING, "measuring"),
        (NEEDS["ttft"], "not said by this server"),
        ("the server was restarted", "e says why"),
    ],
)
def test_a_dash_says_whether_the_server_is_silent_or_nothing_happened(reason: str, shown: str) -> None:
    view = ready(engines=(engine(ttft=None, missing={"ttft": reason}),))
    assert second_number(view, 0) == shown


def test_why_there_is_no_gpu_is_cut_between_words() -> None:
    message = "no NVIDIA driver library (libnvidia-ml.so.1); install the driver, or give the container its GPU"
    without = snapshot(gpus=(), gpu_status=GpuStatus(False, message))
    (row,) = gpu_panel(without, 60, 1, UNICODE)
    assert row.text.rstrip().endswith(" …")
    assert row.text.rstrip(" …").strip() in message
    assert " ".join(line.text.strip() for line in gpu_panel(without, 80, 2, UNICODE)) == message


def test_a_chart_is_as_wide_as_it_is_asked_to_be() -> None:
    """Also where no terminal can be asked for its size: in a browser, in a test."""
    line = trace([[Bin(float(x), 5.0, 5.0) for x in range(200)]], "ttft")
    spec = ChartSpec(230, 60, (line,), 0.0, 199.0, 10.0, ((0.0, "0"), (199.0, "now")), ((0.0, "0"), (10.0, "10")))
    rows = draw_chart(spec, UNICODE)
    assert any(len(row.text.rstrip()) > 220 for row in rows)
    assert rows[-1].text.strip() and "now" in rows[-1].text


@given(st.text(max_size=60), st.integers(0, 30))
def test_a_name_that_is_cut_keeps_its_end(text: str, width: int) -> None:
    shown = cut_start(text, width)
    assert cell_len(shown) <= width
    if shown.startswith("…") and not text.startswith("…"):
        assert text.endswith(shown[1:])


def test_servers_of_a_comparison_are_told_apart_by_their_presets() -> None:
    names = ("20270115-090000-compare-baseline", "20270115-090000-compare-fp8")
    made = snapshot(*(ready(name) for name in names))
    rows, _ = server_rows(made, None, 80, 4, UNICODE)
    assert "…ompare-baseline" in rows[0].text
    assert "-compare-fp8" in rows[1].text


def test_the_time_between_tokens_does_not_pass_for_tpot_where_tpot_is_not_known() -> None:
    """With speculation a step yields several tokens, so ITL is a multiple of TPOT."""
    view = ready(engines=(engine(tpot=None, itl=Latency(0.0456, 900)),))
    assert "2 TPOT  ITL mean 45.6 ms" in chart_title(view, 1, 60).text
    assert "TPOT ITL 45.6 ms" in numbers_strip(view, 1, 120, 2)[0].text
    assert "ITL" in large_numbers(view, 120, UNICODE)[0].text
    assert "ITL 45.6 ms" in client_rows(load_progress(), view, 120)[-1].text
    known = ready(engines=(engine(tpot=Latency(0.0179, 9), itl=Latency(0.0456, 900)),))
    for text in (chart_title(known, 1, 60).text, numbers_strip(known, 1, 120, 2)[0].text):
        assert "TPOT" in text and "mean 17.9 ms" in text and "ITL" not in text


@pytest.mark.parametrize("chart", [0, 1, 2])
def test_a_chart_without_room_does_not_say_that_nothing_was_measured(chart: int) -> None:
    """Under a load test, and a caption of the demo below, it read `no request finished in these minutes`."""
    server = ready()
    assert [line.text.strip() for line in empty_chart(server, chart, 80, 3)] == ["", "no room for the chart here"]
    assert "runs a load test" in "".join(line.text for line in empty_chart(server, chart, 80, 12))


def test_a_value_far_below_the_axis_is_drawn_on_it_and_not_walked_to() -> None:
    """A latency may be negative where clocks were set back; drawn as it is, plotext took minutes and gigabytes."""

    def drawn(low: float) -> list[str]:
        run = [Bin(1.0, 1e-6, 1e-6), Bin(5.0, low, 1e-6)]
        spec = ChartSpec(40, 8, (trace([run], "ttft"),), 0.0, 10.0, 1e-6, (), ())
        return [row.text for row in draw_chart(spec, UNICODE)]

    assert drawn(-1e-3) == drawn(0.0)
