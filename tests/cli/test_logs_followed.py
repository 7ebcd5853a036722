"""`vtop logs NAME -f`, as a pipe sees it."""

from __future__ import annotations

import select
import time

from cli.vtop_process import DEADLINE_S, Vtop
from vtop.servers.managed import draft_record
from vtop.servers.state_files import StateFolder
from vtop.servers.status import ServerState
from vtop.vllm.launch import LaunchCommand


def test_each_line_leaves_when_it_comes(vtop: Vtop) -> None:
    """`| grep` behind it must not wait until some kilobytes have come together."""
    folder = StateFolder(vtop.directory("STATE") / "servers" / "one")
    folder.create()
    command = LaunchCommand(argv=("vllm",), served_name="tiny", host="127.0.0.1", port=8000)
    record = draft_record(folder, "baseline", command, None, time.time())
    record.state = ServerState.STOPPED
    folder.write(record)
    folder.log_path.write_text("old\nlast\n", encoding="utf-8")
    following = vtop.spawn("logs", "one", "-f", "-n", "1")
    try:
        assert following.stdout is not None
        for line in ("last\n", "new\n"):
            assert select.select([following.stdout], [], [], DEADLINE_S)[0], "nothing came"
            assert following.stdout.readline() == line
            with open(folder.log_path, "a", encoding="utf-8") as log:
                log.write("new\n")
    finally:
        following.kill()
        following.communicate()
