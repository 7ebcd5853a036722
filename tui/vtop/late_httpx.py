"""httpx, imported when something is first asked of it: the first frame and the short verbs need no HTTP.

Its own command line, which it imports wherever click and rich are installed, is left out: 3 MiB that nobody runs here.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx as httpx
else:

    class _Late:
        """Stands for the module until it is there; afterwards each name that was asked for is looked up only here."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            # None makes Python raise ImportError, which httpx takes for "click is not installed".
            sys.modules.setdefault("httpx._main", None)
            value = getattr(importlib.import_module("httpx"), name)
            setattr(self, name, value)
            return value

    httpx = _Late()
