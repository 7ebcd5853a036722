"""httpx, imported when something is first asked of it: the first frame and the short verbs need no HTTP.

Its own command line, which it imports wherever click and rich are installed, is left out: 3 MiB that nobody runs here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx as httpx
else:

    def _loaded() -> ModuleType:
        # None makes Python raise ImportError at once, which httpx takes for "click is not installed".
        sys.modules.setdefault("httpx._main", None)
        # httpcore looks for this one at every request, over the whole path where it is not installed.
        if importlib.util.find_spec("sniffio") is None:
            sys.modules["sniffio"] = None
        return importlib.import_module("httpx")

    class _Late:
        """Stands for the module until it is there; afterwards each name that was asked for is looked up only here."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            value = getattr(_loaded(), name)
            setattr(self, name, value)
            return value

    httpx = _Late()
