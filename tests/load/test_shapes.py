"""Load shapes: presets of load tests, read as strictly as those of servers."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from vtop import paths
from vtop.cli import build_parser
from vtop.commands.load import request_from
from vtop.errors import UsageError, VtopError
from vtop.load.command import command_line
from vtop.load.progress import LoadRequest
from vtop.load.shapes import Shapes, changed, load_shapes, parse_shape
from vtop.load.workload import resolve

ROOT = Path(__file__).parents[2]
MINIMAL = 'title = "T"\n[load]\nworkload = "chat"\n'
SHIPPED = load_shapes(user_dir=paths.shipped_presets_dir() / "no-such-folder")


def refused(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_shape(text, "p", "p.toml")
    return caught.value


def write(directory: Path, name: str, text: str = MINIMAL) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.toml").write_text(text, encoding="utf-8")
    return directory / f"{name}.toml"


def catalog(tmp_path: Path) -> Shapes:
    return load_shapes(user_dir=tmp_path / "user", shipped_dir=tmp_path / "shipped")


def wanted(*words: str) -> LoadRequest:
    return request_from(build_parser().parse_args(["load", *words]))


@pytest.mark.parametrize("name", sorted(SHIPPED.shapes))
def test_every_shipped_shape_makes_a_test_and_says_what_it_is(name: str) -> None:
    shape = SHIPPED.find(name)
    assert shape.title and shape.summary and "\n" not in shape.summary
    settled = resolve(shape.request())
    assert settled.requests or settled.duration_s
    assert settled.seed != resolve(shape.request()).seed


def test_there_are_shipped_shapes_and_none_is_broken() -> None:
    assert {"burst", "ramp", "soak", "slo-search", "agents", "one-at-a-time"} <= set(SHIPPED.shapes)
    assert SHIPPED.problems == ()


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        ("concurency = 4", "p.toml, line 4: there is no key concurency in [load]", "Did you mean concurrency?"),
        ("duration = 4", "p.toml, line 4: there is no key duration in [load]", "Did you mean duration_s?"),
        ('concurrency = "4"', "p.toml, line 4: load.concurrency: must be a whole number, not text", "quotes"),
        ("concurrency = 0", "p.toml, line 4: load.concurrency: must be a whole number >= 1, not 0", ""),
        ("rate = 0.0", "load.rate: must be a number > 0.0, not 0.0", ""),
        ("rate = nan", "load.rate: must be a number > 0.0, not nan", ""),
        ("rate = inf", "p.toml: a rate of inf cannot be sent", "burst"),
        ("temperature = 3.0", "load.temperature: must be a number <= 2.0, not 3.0", ""),
        ('arrival = "brust"', "load.arrival: must be burst, not 'brust'", "Did you mean burst?"),
        ('arrival = "burst"\nrate = 2.0', "p.toml: a burst sends a number of requests at once", "neither rate"),
        ("burstiness = 2.0", "p.toml: burstiness belongs to an open loop", "rate"),
        ("prefixes = 3", "p.toml: the workload chat has no shared prefixes", "prefix"),
        ("search = true", "p.toml: a search needs limits to hold", "slo_ttft_s"),
        ("seed = 1", "p.toml, line 4: there is no key seed in [load]", ""),
        ("workload = 'demo'", "p.toml, line 4, column", "there twice"),
        ("rate = ", "p.toml, line 4", ""),
    ],
)
def test_errors_name_the_file_the_key_and_the_nearest_valid_key(line: str, what: str, remedy: str) -> None:
    error = refused(MINIMAL + line + "\n")
    assert what in error.what
    assert remedy in error.remedy


def test_a_workload_that_does_not_exist_gets_the_nearest() -> None:
    error = refused('title = "T"\n[load]\nworkload = "chta"\n')
    assert (error.what, error.remedy) == ("p.toml: there is no workload 'chta'", "Did you mean chat?")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[load]\nworkload = "chat"\n', "title is missing"),
        ('title = "T"\n', "load is missing"),
        ('title = "T"\n[load]\nrequests = 3\n', "workload is missing in [load]"),
        ('title = "T"\nname = "x"\n[load]\nworkload = "chat"\n', "name is set by vtop"),
        ('title = "T"\nrate = 1.0\n[load]\nworkload = "chat"\n', "there is no key rate at the top"),
    ],
)
def test_what_must_be_there_is_missed_by_name(text: str, what: str) -> None:
    assert what in refused(text).what


def test_a_shape_of_ones_own_shadows_the_shipped_one(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "burst")
    own = write(tmp_path / "user", "burst", MINIMAL.replace('"T"', '"Mine"'))
    shape = catalog(tmp_path).find("burst")
    assert (shape.title, shape.source) == ("Mine", str(own))


def test_a_broken_shape_blocks_only_itself_and_is_not_replaced_by_the_shipped_one(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "burst")
    write(tmp_path / "user", "burst", "title =\n")
    write(tmp_path / "user", "mine")
    found = catalog(tmp_path)
    assert list(found.shapes) == ["mine"]
    assert [Path(problem.file).stem for problem in found.problems] == ["burst"]
    with pytest.raises(UsageError, match="line 1"):
        found.find("burst")


def test_unknown_names_get_the_nearest_and_workloads_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "uneven")
    with pytest.raises(UsageError) as caught:
        catalog(tmp_path).find("unevne")
    assert caught.value.remedy == "Did you mean uneven?"
    with pytest.raises(UsageError) as caught:
        catalog(tmp_path).find("chat")
    assert caught.value.remedy == "Run it: vtop load chat."


def test_a_damaged_installation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Path:
        raise FileNotFoundError("no shipped presets")

    monkeypatch.setattr("vtop.paths.shipped_presets_dir", lost)
    with pytest.raises(VtopError, match="no shipped presets"):
        load_shapes()


def test_the_file_of_a_shape_is_found_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "user", "mine", 'title = "T"\n[load]\nfile = "prompts.jsonl"\nconcurrency = 2\n')
    request = catalog(tmp_path).find("mine").request()
    assert (request.workload, request.file) == ("file", str(tmp_path / "user" / "prompts.jsonl"))


def test_a_shape_is_run_with_its_values_and_the_ones_that_are_changed() -> None:
    request = wanted("--shape", "slo-search", "--slo-ttft", "0.2", "--url", "http://x")
    assert (request.workload, request.shape, request.search) == ("chat", "slo-search", True)
    assert (request.slo_ttft_s, request.slo_tpot_s, request.url) == (0.2, 0.05, "http://x")


def test_a_number_of_requests_takes_the_place_of_the_shapes_time_and_the_reverse() -> None:
    soak = wanted("--shape", "soak", "-n", "50")
    assert (soak.requests, soak.duration_s, soak.concurrency) == (50, None, 16)
    once = wanted("--shape", "one-at-a-time", "--duration", "5")
    assert (once.requests, once.duration_s) == (None, 5.0)


def test_a_rate_takes_the_place_of_a_burst() -> None:
    request = changed(SHIPPED.find("burst").request(), {"rate": 3.0, "label": "", "seed": None})
    assert (request.arrival, request.rate, request.requests) == (None, 3.0, 72)
    assert resolve(request).open_loop


def test_another_workload_under_the_same_shape() -> None:
    assert wanted("decode", "--shape", "soak").workload == "decode"
    assert wanted("--shape", "soak").workload == "chat"
    assert wanted().workload == "demo"


def test_a_shape_in_the_place_of_a_workload_is_told_its_place() -> None:
    with pytest.raises(UsageError) as caught:
        wanted("soak")
    assert caught.value.remedy == "Name it so: --shape soak."


def test_the_command_that_repeats_a_shape_holds_its_values_whatever_becomes_of_the_file() -> None:
    words = command_line(wanted("--shape", "agents", "--url", "http://x", "--model", "m"))
    assert words == (
        "vtop load prefix --url http://x --model m -c 8 -n 96 --max-tokens 200 "
        "--prompt-tokens 256 --prefix-tokens 4096 --prefixes 4"
    )


def test_the_wheel_carries_presets_and_load_shapes(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    carried = {name.removeprefix("vtop/shipped_presets/") for name in zipfile.ZipFile(wheel).namelist()}
    for file in (ROOT / "presets").rglob("*.toml"):
        assert str(file.relative_to(ROOT / "presets")) in carried
