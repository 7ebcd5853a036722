"""The settings file: defaults, and errors in the same form as a preset's."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtop import paths
from vtop.errors import UsageError
from vtop.settings import Settings, load_settings


def write(text: str | bytes) -> Path:
    file = paths.config_dir() / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_without_a_file_everything_has_a_default() -> None:
    assert load_settings() == Settings()


def test_what_the_file_says_counts() -> None:
    write('window_s = 30\nurls = ["http://a:8000"]\npeak_gbs = 1008\n[keymap]\nstop = "X"\n')
    settings = load_settings()
    assert (settings.window_s, settings.urls, settings.peak_gbs) == (30.0, ["http://a:8000"], 1008.0)
    assert settings.keymap == {"stop": "X"}


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("windw_s = 30", "config.toml, line 1: there is no key windw_s", "Did you mean window_s?"),
        (
            'ascii = true\nwindow_s = "30"',
            "config.toml, line 2: window_s: must be a number, not text",
            "without quotes",
        ),
        ("window_s = 0", "window_s: must be a number > 0", ""),
        ("paint_hz = inf", "paint_hz: must be a number <= 60", ""),
        ("window_s = \n", "config.toml, line 1", "Mend"),
        (b"\xff", "is not UTF-8", "UTF-8"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str | bytes, what: str, remedy: str) -> None:
    write(text)
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert what in caught.value.what
    assert remedy in caught.value.remedy
