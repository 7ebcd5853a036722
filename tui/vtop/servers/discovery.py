"""vLLM servers of others: found by process and socket, or given by URL; watched, never signalled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from urllib.parse import urlsplit

import psutil

from vtop.late_httpx import httpx
from vtop.servers.ports import base_url
from vtop.servers.process import short_title
from vtop.servers.readiness import authorization
from vtop.servers.status import ServerState, ServerStatus

SCAN_EVERY_S = 10.0
DEFAULT_URL = "http://127.0.0.1:8000"
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_CLI_MODULES = ("vllm", "vllm.entrypoints.cli.main", "vllm.scripts")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?|Python")
_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class FoundProcess:
    """A process of this user that serves with vLLM, and where it listens."""

    pid: int
    host: str
    port: int
    model: str | None
    started_wall_s: float | None


@dataclass(frozen=True, slots=True)
class Leftover:
    """Processes of a server of vtop's own that outlived it; stopping that server ends them."""

    name: str
    pids: tuple[int, ...]
    titles: tuple[str, ...]
    memory_bytes: int | None
    """Host memory that they hold together (RSS)."""


def is_vllm_server(words: Sequence[str]) -> bool:
    """Whether an argument vector is a vLLM server's own, and not that of a shell, an editor or a `tail` beside it."""
    if not words:
        return False
    if words[0].startswith("VLLM::APIServer"):
        return True
    rest = list(words)
    if _PYTHON.fullmatch(PurePath(rest[0]).name):
        rest = _skip_interpreter_flags(rest[1:])
        if not rest:
            return False
        if rest[0] == "-m":
            return len(rest) > 1 and (rest[1] in _MODULES or (rest[1] in _CLI_MODULES and rest[2:3] == ["serve"]))
        if rest[0].replace("\\", "/").endswith("vllm/entrypoints/openai/api_server.py"):
            return True
    return PurePath(rest[0]).name == "vllm" and rest[1:2] == ["serve"]


def _skip_interpreter_flags(words: list[str]) -> list[str]:
    """Drops `-u`, `-X dev` and their kind; keeps `-m` and `-c`, which say what runs."""
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] not in ("-m", "-c"):
        position += 2 if words[position] in ("-X", "-W") else 1
    return words[position:]


def model_of(words: Sequence[str]) -> str | None:
    """The model that an argument vector names: `--served-model-name`, `--model`, or the word after `serve`."""
    values: dict[str, str] = {}
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in ("--served-model-name", "--model"):
            following = words[index + 1] if index + 1 < len(words) else ""
            values[flag] = value if equals else following
    if name := values.get("--served-model-name") or values.get("--model"):
        return name
    after_serve = list(words[list(words).index("serve") + 1 :]) if "serve" in words else []
    return after_serve[0] if after_serve and not after_serve[0].startswith("-") else None


def find_processes(ours: Collection[int] = ()) -> list[FoundProcess]:
    """vLLM servers of this user that listen now, without those in `ours`; some milliseconds, for a thread."""
    found = []
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if not _is_own(process):
                continue
            words = process.cmdline()
            if not is_vllm_server(words):
                continue
            if (where := _listens_at(process)) is not None:
                found.append(FoundProcess(process.pid, *where, model_of(words), process.create_time()))
    return found


def _is_own(process: psutil.Process) -> bool:
    return not hasattr(os, "getuid") or process.uids().real == os.getuid()


def _listens_at(process: psutil.Process) -> tuple[str, int] | None:
    """Where a server listens; of several sockets (metrics, side channels) the HTTP one was opened first."""
    listening = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr]
    if not listening:
        return None
    words = process.cmdline()
    asked = re.search(r"--port[= ](\d+)", " ".join(words))
    wanted = int(asked[1]) if asked else 8000
    best = next((c for c in listening if c.laddr.port == wanted), min(listening, key=lambda c: c.fd))
    return str(best.laddr.ip), int(best.laddr.port)


def leftovers(statuses: Iterable[ServerStatus]) -> tuple[Leftover, ...]:
    """Processes of vtop's own ended servers that still run, with what they hold."""
    found = []
    for status in statuses:
        if status.owned and status.pids and status.state in (ServerState.FAILED, ServerState.LOST, ServerState.STOPPED):
            titles = tuple(short_title(pid) for pid in status.pids)
            found.append(Leftover(status.name, status.pids, titles, _memory(status.pids)))
    return tuple(found)


def _memory(pids: Iterable[int]) -> int | None:
    total = None
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):
            total = (total or 0) + int(psutil.Process(pid).memory_info().rss)
    return total


def stray_engines(ours: Collection[int] = ()) -> list[tuple[int, str]]:
    """Engines and workers of this user whose server is gone and which vtop did not start: (pid, title), to be told."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid in ours or not _is_own(process):
                continue
            title = short_title(process.pid)
            if title.startswith(("VLLM::EngineCore", "VLLM::Worker")) and process.ppid() <= 1 and not _first_serves():
                found.append((process.pid, title))
    return found


def _first_serves() -> bool:
    """Whether the server is process 1, as in a container made for it: its engines are its children, not orphans."""
    try:
        return is_vllm_server(psutil.Process(1).cmdline())
    except (psutil.Error, OSError):
        return False


class Discovery:
    """Finds foreign servers; at most every ten seconds, the process scan in a thread."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        urls: Sequence[str] = (),
        *,
        processes: bool = True,
        keys: Mapping[str, str | None] | None = None,
    ) -> None:
        """Prepares.

        Args:
            client: for the few questions that name a server.
            urls: always shown, reachable or not.
            processes: also look for processes of this user and at the default port.
            keys: API key by URL, for naming the model.
        """
        self._client = client
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._processes = processes
        self._keys = keys or {}

    async def scan(self, own: Sequence[ServerStatus] = ()) -> tuple[ServerStatus, ...]:
        """Foreign servers now.

        Args:
            own: vtop's servers, which are not foreign whatever their address looks like.
        """
        ours = {pid for status in own for pid in status.pids}
        known = {address_of(status.url) for status in own if status.pids}
        given = [url for url in self._urls if address_of(url) not in known]
        known |= {address_of(url) for url in given}
        asked = [self._look(url) for url in given]
        if self._processes:
            for process in await asyncio.to_thread(find_processes, ours):
                url = base_url(process.host, process.port)
                if address_of(url) not in known:
                    known.add(address_of(url))
                    asked.append(self._look(url, process))
        found = list(await asyncio.gather(*asked))
        if self._processes and address_of(DEFAULT_URL) not in known and await self._serves_vllm(DEFAULT_URL):
            found.append(await self._look(DEFAULT_URL, speaks_vllm=True))
        return tuple(found)

    async def _look(self, url: str, process: FoundProcess | None = None, *, speaks_vllm: bool = False) -> ServerStatus:
        model, message = process.model if process else None, ""
        length: int | None = None
        try:
            headers = authorization(self._keys.get(url))
            response = await self._client.get(f"{url}/v1/models", headers=headers, timeout=_TIMEOUT_S)
            if response.status_code in (401, 403):
                message = f"/v1/models answers {response.status_code}: it needs an API key"
            elif response.status_code == 200:
                entry = response.json()["data"][0]
                model = str(entry["id"])
                length = entry["max_model_len"] if isinstance(entry.get("max_model_len"), int) else None
        except httpx.HTTPError as error:
            message = f"does not answer ({type(error).__name__})"
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            message = "/v1/models is not what vLLM answers"
        parts = urlsplit(url)
        return ServerStatus(
            name=_name_of(url, speaks_vllm or process is not None),
            url=url,
            state=ServerState.FOREIGN,
            model=model,
            host=parts.hostname or "",
            port=parts.port,
            version=await self._version(url),
            pid=process.pid if process else None,
            pids=(process.pid,) if process else (),
            started_wall_s=process.started_wall_s if process else None,
            message=message,
            gpu_reason="it was started by somebody else",
            max_model_len=length,
        )

    async def _version(self, url: str) -> str | None:
        try:
            version = (await self._client.get(f"{url}/version", timeout=_TIMEOUT_S)).json()["version"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
        return version if isinstance(version, str) else None

    async def _serves_vllm(self, url: str) -> bool:
        try:
            return "vllm:" in (await self._client.get(f"{url}/metrics", timeout=_TIMEOUT_S)).text
        except httpx.HTTPError:
            return False


def address_of(url: str) -> tuple[str, int]:
    """Host and port of a URL, so that `localhost` and `127.0.0.1` are one server.

    Raises:
        ValueError: the port is none.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return ("localhost" if host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::") else host), port


def _name_of(url: str, vllm: bool) -> str:
    """After the address, since what answers at a given URL may be anything, and a name must not change with it."""
    parts = urlsplit(url)
    host = parts.hostname or url
    if host in ("127.0.0.1", "::1"):
        host = "localhost"
    if vllm and host == "localhost":
        return f"vllm-{parts.port or 80}"
    return f"{host}:{parts.port}" if parts.port else host
