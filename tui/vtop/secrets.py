"""API keys by reference: where a key is, never the key itself, in files, arguments and settings."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vtop.errors import UsageError

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|(?:API|ACCESS|PRIVATE)_?KEY)$", re.IGNORECASE
)

_USER_IN_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)?[^/?#]*@")


def check_reference(reference: str) -> str:
    """Returns the reference if it is one.

    Raises:
        UsageError: it is neither `env:NAME` nor `file:PATH`; the text is not repeated, since it may be a key.
    """
    kind, _, rest = reference.partition(":")
    if (kind == "env" and _ENV_NAME.fullmatch(rest)) or (kind == "file" and rest):
        return reference
    raise UsageError(
        "an API key must be given by reference",
        "Write env:NAME or file:PATH, so that the key itself is stored nowhere.",
    )


def looks_secret(name: str) -> bool:
    """Whether a variable or flag of this name is likely to hold a secret: `HF_TOKEN`, `api-key`, `DB_PASSWORD`."""
    return _SECRET_NAME.search(name.replace("-", "_")) is not None


def without_user(url: str) -> str:
    """An address as it may be shown and saved: without the user and password that it may carry."""
    return _USER_IN_URL.sub(r"\1", url)


def resolve(reference: str | None) -> str | None:
    """The key that a reference points to, or None without a reference.

    Raises:
        UsageError: the variable is not set, or the file cannot be read or is open to others.
    """
    if reference is None:
        return None
    kind, _, rest = check_reference(reference).partition(":")
    if kind == "env":
        key = os.environ.get(rest, "").strip()
        if not key:
            raise UsageError(f"the API key's variable {rest} is not set", f"export {rest}=... and try again.")
        return key
    path = Path(rest).expanduser()
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise UsageError(f"the key file {path} can be read by others", f"chmod 600 {path}")
        key = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"cannot read the key file {path}: {error.strerror}", "Check the path.") from error
    if not key:
        raise UsageError(f"the key file {path} is empty", "Write the key into it.")
    return key
