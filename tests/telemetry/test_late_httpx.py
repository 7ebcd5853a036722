"""HTTP only where something is asked over it, and without httpx's own command line."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from vtop.late_httpx import httpx
import vtop.telemetry.scrape, vtop.servers.supervisor
before = "httpx" in sys.modules
assert httpx.URL("http://x/y").path == "/y"
print(before, "httpx" in sys.modules, "click" in sys.modules, "rich" in sys.modules)
"""


def test_httpx_comes_with_the_first_question_and_brings_no_command_line() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["False", "True", "False", "False"]
