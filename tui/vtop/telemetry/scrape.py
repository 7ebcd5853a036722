"""Polls one server's /metrics: bounded in time and size, honest about what came back, and careful with its key.

The content decides what a page is, not the header and not the port. A key goes to the origin it was given for and
nowhere else: a redirect is followed only within that origin. Proxy variables and .netrc are not consulted.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import zlib
from dataclasses import dataclass, replace

from vtop import secrets
from vtop.clock import Clock
from vtop.errors import UsageError
from vtop.late_httpx import httpx
from vtop.telemetry.prometheus import Page, PageParser, family_names
from vtop.telemetry.window import ScrapeWindow
from vtop.vllm.metric_names import PROCESS_START, SIMULATED, VLLM_NAMES
from vtop.vllm.metrics import MetricsReader
from vtop.vllm.other_servers import OTHER_NAMES, TITLES, kind_of, read_other
from vtop.vllm.reading import EngineReading, ScrapeStatus
from vtop.vllm.samples import Layout, Series

MOST_BYTES = 16 * 1024 * 1024
"""A larger page is not read: 800 data-parallel engines fit into it."""
DEADLINE_S = 5.0
"""For the whole answer, however slowly it drips."""
_MOST_REDIRECTS = 5
_READ_ASIDE_BYTES = 512 * 1024
"""A larger page is read in a thread, so that the screen goes on."""
_LONGEST_PAUSE_S = 10.0
_LONGEST_PAUSE_SHORT_S = 4.0
"""Where a good page may come any moment."""
_KEEPALIVE_S = 4.0
"""Shorter than the 5 s after which uvicorn closes an idle connection."""

_PASSING = frozenset({"timeout", "unreachable", "http-error", "malformed"})
"""Failures that say nothing of what the server is: the last figures stay for a while, with their age."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """What it takes to reach a server beside its address."""

    api_key: str | None = None
    """A reference, `env:NAME` or `file:PATH`."""
    ca_file: str | None = None
    """Certificates to trust for https."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    content_type: str
    body: bytes
    at_s: float
    """When its first byte came, monotonic seconds."""


class ScrapeFailure(Exception):
    """A scrape without a usable page."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state
        self.message = message


class Poller:
    """Scrapes one server and keeps its newest readings.

    Args:
        url: the server's address; `/metrics` is added to it.
        clock: for ages and windows.
        window_s: the window of rates and latencies.
        access: key and certificates.
        deadline_s: for a whole answer.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        window_s: float,
        access: ServerAccess | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.url = url
        self.engines: tuple[EngineReading, ...] = ()
        self.version: str | None = None
        """What /version says; None: unknown."""
        self.simulated = False
        """The page says that it is vtop's own simulated server."""
        self.read_at_s: float | None = None
        """When the newest usable page came: the end of the window."""
        self._clock = clock
        self._access = access or ServerAccess()
        self._deadline_s = deadline_s
        self._window = ScrapeWindow(window_s)
        self._reader = MetricsReader()
        self._parser = PageParser(VLLM_NAMES | OTHER_NAMES | {PROCESS_START, SIMULATED})
        self._kinds: tuple[Layout, str | None] | None = None
        self._status = ScrapeStatus("pending", "not looked at yet")
        self._last_ok_s: float | None = None
        self._failures = 0
        self._not_before_s = float("-inf")
        self._asked_version = False
        self._client: httpx.AsyncClient | None = None
        self._metrics_url: httpx.URL | None = None
        self._base_url: httpx.URL | None = None

    def set_window(self, window_s: float) -> None:
        """Changes the window; it fills from the scrapes that are still kept."""
        self._window.window_s = window_s

    def status(self) -> ScrapeStatus:
        """How the last look went, with its age now."""
        age = None if self._last_ok_s is None else max(0.0, self._clock.monotonic() - self._last_ok_s)
        return replace(self._status, last_ok_age_s=age)

    async def poll(self, starting: bool = False) -> bool:
        """Looks once, unless a failing server is given a pause.

        Args:
            starting: the server is known to be loading, so that silence is no failure and is not paused for.

        Returns:
            Whether there was a look. Never raises for what the server does.
        """
        began = self._clock.monotonic()
        if began < self._not_before_s and not starting:
            return False
        try:
            answer = await self._ask()
            if len(answer.body) > _READ_ASIDE_BYTES:
                await asyncio.to_thread(self._take, answer)
            else:
                self._take(answer)
        except ScrapeFailure as failure:
            self._fail(failure, starting, began)
            return True
        self._failures = 0
        self._not_before_s = float("-inf")
        if self._status.state == "ok" and not self._asked_version:
            self._asked_version = True
            await self._ask_version()
        self._status = replace(self._status, duration_s=self._clock.monotonic() - began)
        return True

    async def close(self) -> None:
        """Closes the connection; a scrape in flight fails."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _fail(self, failure: ScrapeFailure, starting: bool, began: float) -> None:
        now = self._clock.monotonic()
        self._window.outage()
        # Silence while it loads must not put off the first look after that.
        self._failures = 0 if starting else self._failures + 1
        self._asked_version = False
        state, message = failure.state, failure.message
        if starting and state in ("unreachable", "timeout"):
            state, message = "pending", "not answering yet"
        kept_s = max(_LONGEST_PAUSE_S, self._window.window_s)
        if state not in _PASSING or self._last_ok_s is None or now - self._last_ok_s > kept_s:
            self.engines = ()
        longest = _LONGEST_PAUSE_S
        if state in ("unreachable", "timeout", "no-vllm-series", "empty"):
            longest = _LONGEST_PAUSE_SHORT_S
        pause = min(longest, 2.0 ** min(self._failures - 1, 6))
        # The first failure is looked at again at once; only a lasting one is given room.
        self._not_before_s = began + pause if self._failures > 1 else float("-inf")
        self._status = ScrapeStatus(state, message, duration_s=now - began)

    def _take(self, answer: Answer) -> None:
        page = self._parsed(answer)
        kind = self._kind(page, answer)
        self.simulated = Series(SIMULATED, ()) in page.layout.index
        self._window.add(answer.at_s, page.layout, page.values)
        differences = self._window.differences()
        if differences is None:
            return
        message = f"{page.bad_lines} lines cannot be read" if page.bad_lines else ""
        if kind == "vllm":
            self.engines = self._reader.read(differences, answer.at_s)
            self._status = ScrapeStatus("ok", message)
            if not self.engines:
                self._status = ScrapeStatus(
                    "no-vllm-series", "vLLM shows no figures of a model before the first request"
                )
        else:
            title = TITLES.get(kind, kind)
            self.engines = read_other(differences, kind)
            self._status = ScrapeStatus("other-server", f"{title} answers here, not vLLM")
        self.read_at_s = answer.at_s
        self._last_ok_s = self._clock.monotonic()

    def _parsed(self, answer: Answer) -> Page:
        judge_answer(answer)
        page = self._parser.parse(answer.body, "openmetrics" in answer.content_type)
        if not page.values and not family_names(answer.body, 1):
            raise ScrapeFailure("not-metrics", "this is not a metrics page")
        if not page.complete:
            raise ScrapeFailure("malformed", "the metrics page was cut off; its figures are not used")
        return page

    def _kind(self, page: Page, answer: Answer) -> str:
        if self._kinds is None or self._kinds[0] is not page.layout:
            self._kinds = (page.layout, kind_of([series.name for series in page.layout.series]))
        kind = self._kinds[1]
        if kind is not None:
            return kind
        if page.bad_lines:
            raise ScrapeFailure("malformed", f"none of {page.bad_lines} lines can be read")
        names = family_names(answer.body)
        kind = kind_of(names)
        if kind == "vllm":
            raise ScrapeFailure("no-vllm-series", "vLLM shows no figures before the first request")
        if kind is not None:
            return kind
        raise ScrapeFailure(
            "no-vllm-series",
            "a metrics page without vLLM's figures: started with --disable-log-stats, or another program",
        )

    async def _ask(self) -> Answer:
        try:
            async with asyncio.timeout(self._deadline_s):
                try:
                    return await self._follow()
                except (httpx.RemoteProtocolError, httpx.ReadError) as error:
                    if "without sending a response" not in str(error) and not isinstance(error, httpx.ReadError):
                        raise
                    # An idle connection that the server closed in the same moment; a fresh one tells.
                    return await self._follow()
        except (TimeoutError, httpx.TimeoutException):
            raise ScrapeFailure("timeout", f"no complete answer within {self._deadline_s:g} s") from None
        except UsageError as error:
            raise ScrapeFailure("needs-key", error.what) from None
        except httpx.LocalProtocolError:
            raise ScrapeFailure("needs-key", "the API key holds characters that a header cannot carry") from None
        except httpx.RemoteProtocolError:
            raise ScrapeFailure("malformed", "the answer was cut off, or is not HTTP") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError):
            raise ScrapeFailure("unreachable", "this is not an http or https address") from None
        except (httpx.HTTPError, OSError, zlib.error, RuntimeError) as error:
            raise ScrapeFailure("unreachable", _why_unreachable(error)) from None

    async def _follow(self) -> Answer:
        client = self._open_client()
        url = self._metrics_url or self._page_url()
        for _ in range(_MOST_REDIRECTS + 1):
            async with client.stream("GET", url, headers=self._headers()) as response:
                at_s = self._clock.monotonic()
                if response.is_redirect:
                    url = _redirected(url, response.headers.get("location", ""))
                    continue
                body = await _bounded(response)
                self._metrics_url = url if response.status_code == 200 else None
                return Answer(response.status_code, response.headers.get("content-type", "").lower(), body, at_s)
        raise ScrapeFailure("redirect-refused", f"/metrics redirects in a loop (more than {_MOST_REDIRECTS} times)")

    async def _ask_version(self) -> None:
        client = self._open_client()
        try:
            async with asyncio.timeout(self._deadline_s):
                url = self._page_url()
                path = re.sub(r"/metrics/?$", "/version", url.path)
                async with client.stream("GET", url.copy_with(path=path), headers=self._headers()) as response:
                    body = await _bounded(response) if response.status_code == 200 else b""
            self.version = version_in(body)
        except (TimeoutError, httpx.HTTPError, ScrapeFailure, OSError, UsageError, RuntimeError):
            self.version = None

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            url = self._page_url()
            verify: ssl.SSLContext | bool = False
            if url.scheme == "https":
                verify = ssl.create_default_context(cafile=self._access.ca_file)
            self._client = httpx.AsyncClient(
                verify=verify,
                trust_env=False,
                follow_redirects=False,
                timeout=self._deadline_s,
                auth=httpx.BasicAuth(url.username, url.password) if url.username else None,
                limits=httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=_KEEPALIVE_S),
            )
        return self._client

    def _page_url(self) -> httpx.URL:
        if self._base_url is None:
            url = httpx.URL(self.url)
            if url.scheme not in ("http", "https") or not url.host:
                raise httpx.UnsupportedProtocol("not http")
            path = re.sub(r"/v1$", "", url.path.rstrip("/"))
            self._base_url = url.copy_with(path=path if path.endswith("/metrics") else f"{path}/metrics", query=None)
        return self._base_url

    def _headers(self) -> dict[str, str]:
        headers = {
            "accept": "text/plain;version=0.0.4, application/openmetrics-text;q=0.5, */*;q=0.1",
            # Compressing would cost the server's event loop more than the bytes cost the network.
            "accept-encoding": "identity",
            "user-agent": "vtop",
        }
        key = secrets.resolve(self._access.api_key)
        if key:
            headers["authorization"] = f"Bearer {key}"
        return headers


def judge_answer(answer: Answer) -> None:
    """Lets through what may be a metrics page.

    Raises:
        ScrapeFailure: it is not one, with the reason in words.
    """
    start = answer.body[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if answer.status == 401:
        raise ScrapeFailure("needs-key", "the metrics page needs a key (401)")
    if answer.status == 403:
        raise ScrapeFailure("needs-key", "the metrics page is forbidden with this key, or without one (403)")
    if answer.status == 404:
        raise ScrapeFailure("not-found", "no metrics at this path (404)")
    if answer.status == 501 and b"--metrics" in answer.body:
        raise ScrapeFailure("other-server", "a llama.cpp server, not vLLM; it was started without --metrics")
    if answer.status != 200:
        raise ScrapeFailure("http-error", f"the metrics page answers {answer.status}")
    if not start:
        raise ScrapeFailure("empty", "serving, but the metrics page is empty")
    if start.startswith(b"<"):
        raise ScrapeFailure("not-metrics", "an HTML page, not metrics: a login page or a proxy may be in front")
    if start.startswith(b'"'):
        raise _quoted_page(answer.body)
    if start[:1] in b"{[":
        raise ScrapeFailure("not-metrics", "JSON, not a metrics page")


def version_in(body: bytes) -> str | None:
    """The version in a `/version` answer, or None."""
    try:
        found = json.loads(body[:4096])
    except ValueError:
        return None
    version = found.get("version") if isinstance(found, dict) else None
    return version if isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,64}", version) else None


def _quoted_page(body: bytes) -> ScrapeFailure:
    try:
        text = json.loads(body)
    except ValueError:
        text = ""
    kind = kind_of(family_names(text.encode("utf-8", "replace"))) if isinstance(text, str) else None
    if kind is not None and kind != "vllm":
        title = TITLES.get(kind, kind)
        return ScrapeFailure("other-server", f"{title}, not vLLM; its page is wrapped in a JSON string and is not read")
    return ScrapeFailure("malformed", "the metrics page is wrapped in a JSON string")


def _redirected(url: httpx.URL, location: str) -> httpx.URL:
    try:
        target = url.join(location)
    except (httpx.InvalidURL, ValueError):
        raise ScrapeFailure("redirect-refused", "/metrics redirects to something that is no address") from None
    if (target.scheme, target.host, _port(target)) != (url.scheme, url.host, _port(url)):
        place = f"{target.scheme}://{target.host}" + (f":{target.port}" if target.port else "")
        raise ScrapeFailure("redirect-refused", f"/metrics redirects to another place ({place}); not followed")
    return target.copy_with(fragment=None)


def _port(url: httpx.URL) -> int | None:
    return url.port or {"http": 80, "https": 443}.get(url.scheme)


async def _bounded(response: httpx.Response) -> bytes:
    """The body, of at most MOST_BYTES, unpacked if the server compressed it all the same."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MOST_BYTES:
            raise ScrapeFailure("malformed", f"the metrics page is larger than {MOST_BYTES >> 20} MiB and is not read")
        chunks.append(chunk)
    body = b"".join(chunks)
    if response.headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate"):
        unpacker = zlib.decompressobj(47)
        body = unpacker.decompress(body, MOST_BYTES)
        if unpacker.unconsumed_tail:
            raise ScrapeFailure("malformed", f"the metrics page is larger than {MOST_BYTES >> 20} MiB and is not read")
    return body


def _why_unreachable(error: Exception) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its TLS certificate is not trusted; name the file of its CA"
    if "WRONG_VERSION_NUMBER" in text or "SSL" in text:
        return "no TLS connection: is it http rather than https?"
    if isinstance(error, (FileNotFoundError, PermissionError)):
        return f"the CA file cannot be read ({error.strerror})"
    if "Name or service not known" in text or "nodename nor servname" in text or "getaddrinfo" in text:
        return "the host name is not known"
    if isinstance(error, (httpx.ConnectError, ConnectionRefusedError)):
        return "nothing listens there"
    return "the connection broke"
