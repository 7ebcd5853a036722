"""The user's settings: `config.toml` in the config directory; everything has a default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from vtop import paths
from vtop.errors import UsageError
from vtop.strict_toml import build, parse

Window = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
PaintRate = Annotated[float, msgspec.Meta(gt=0, le=60)]
Bandwidth = Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a user may set once for all."""

    window_s: Window = 10.0
    """Window of live rates and percentiles."""
    paint_hz: PaintRate | None = None
    """Repaints a second; None: 2, and 1 over SSH."""
    theme: str | None = None
    """A Textual theme by name."""
    ascii: bool = False
    """Draw without braille and block characters."""
    urls: list[str] = []
    """Servers to watch always."""
    api_keys: dict[str, str] = {}
    """Address of one of them -> where its key is: `env:NAME` or `file:PATH`."""
    dcgm_url: str | None = None
    """An existing dcgm-exporter, for measured DRAM bandwidth."""
    peak_gbs: Bandwidth | None = None
    """Peak DRAM bandwidth of the cards in GB/s, where vtop does not know it."""
    keymap: dict[str, str] = {}
    """Action -> keys, comma separated: `stop = "X"`."""
    bell: bool = False
    """Ring when long work ends."""
    large: bool = False
    """Large numbers, for projectors."""


def load_settings(path: Path | None = None) -> Settings:
    """Reads the file if there is one.

    Args:
        path: None: `config.toml` in the config directory.

    Raises:
        UsageError: broken TOML, an unknown key, or a value of the wrong kind; with the line where it can be told.
    """
    file = path or paths.config_dir() / "config.toml"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Settings()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text", "Save it as UTF-8, or move it away for the defaults.") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", "Check its permissions.") from error
    return build(Settings, parse(text, str(file)), str(file), text=text)
