"""The user's settings: `config.toml` in the config directory; everything has a default."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from vtop import paths
from vtop.errors import UsageError


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a user may set once for all."""

    window_s: float = 10.0
    """Window of live rates and percentiles."""
    paint_hz: float | None = None
    """Repaints a second; None: 2, and 1 over SSH."""
    theme: str | None = None
    """A Textual theme by name."""
    ascii: bool = False
    """Draw without braille and block characters."""
    urls: list[str] = []
    """Servers to watch always."""
    keymap: dict[str, str] = {}
    """Action -> keys, comma separated: `stop = "X"`."""
    bell: bool = False
    """Ring when long work ends."""
    large: bool = False
    """Large numbers, for projectors."""


def load_settings(path: Path | None = None) -> Settings:
    """Reads the file if there is one.

    Raises:
        UsageError: broken TOML, an unknown key, or a value of the wrong kind.
    """
    file = path or paths.config_dir() / "config.toml"
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file}: {error}", "Mend the file, or move it away for the defaults.") from error
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as error:
        valid = ", ".join(Settings.__struct_fields__)
        raise UsageError(f"{file}: {error}", f"Valid keys: {valid}.") from error
