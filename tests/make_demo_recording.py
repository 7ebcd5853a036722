"""Makes the recording that `vtop replay demo` plays from one made with `vtop --record FILE`.

    python tests/make_demo_recording.py FILE

Leaves out what only the machine of the recording could use: paths of logs, the host's name, and what came before the
first start.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[1] / "tui" / "vtop" / "recordings" / "real-cpu.rec.gz"
HOST = "two-core-vm"


def for_everyone(lines: list[str]) -> list[str]:
    """The lines of a recording without what is private to its machine."""
    header, *snapshots = (json.loads(line) for line in lines)
    states = [{view["status"]["state"] for view in snapshot["servers"]} for snapshot in snapshots]
    first = next(number for number, found in enumerate(states) if "starting" in found)
    for snapshot in snapshots:
        snapshot["host"]["hostname"] = HOST
        for view in snapshot["servers"]:
            view["status"]["log_path"] = ""
    return [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in [header, *snapshots[first:]]]


def main() -> None:
    """Writes the shipped file."""
    with gzip.open(sys.argv[1], "rt", encoding="utf-8") as file:
        lines = for_everyone(file.read().splitlines())
    SHIPPED.parent.mkdir(exist_ok=True)
    SHIPPED.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), 9, mtime=0))
    print(f"{SHIPPED.name}: {len(lines) - 1} snapshots, {SHIPPED.stat().st_size} bytes")


if __name__ == "__main__":
    main()
