"""A headless Chromium driven through its own debugging protocol: opens a page, types, reads what its terminal shows."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

KEEP_TERMINAL = """
Object.defineProperty(Object.prototype, 'terminal', {
  configurable: true,
  set(value) {
    Object.defineProperty(this, 'terminal', {value, writable: true, enumerable: true, configurable: true});
    if (value && value.buffer && value.write) window.shownTerminal = value;
  },
});
"""
"""Keeps the page's terminal where a test can find it: the page draws on a canvas, which holds no text."""

READ_TERMINAL = """
(() => {
  const terminal = window.shownTerminal;
  if (!terminal) return '';
  const buffer = terminal.buffer.active, rows = [];
  for (let row = 0; row < buffer.length; row++) rows.push(buffer.getLine(row).translateToString(true));
  return rows.join('\\n');
})()
"""


def find_chromium() -> str | None:
    """The browser, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Browser:
    """One browser with one page; `async with`."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._numbers = itertools.count(1)
        self.requested: dict[str, str] = {}
        """Every address that the page asked for, by the number of the request."""
        self.blocked: set[str] = set()
        """Numbers of the requests that the page's own policy kept from being sent."""

    async def __aenter__(self) -> Browser:
        chromium = find_chromium()
        assert chromium is not None
        # No sandbox: it cannot be made inside most containers, and the only page opened is our own.
        command = [
            chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-extensions", "--disable-background-networking", "--window-size=1280,800",
            "--remote-debugging-port=0", f"--user-data-dir={self._profile}", "about:blank",
        ]  # fmt: skip
        self._process = _started(command)
        self._http = aiohttp.ClientSession()
        try:
            port = await self._port()
            async with self._http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [target for target in await answer.json() if target["type"] == "page"]
            self._socket = await self._http.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=2**26)
            await self.send("Page.enable")
            await self.send("Network.enable")
            await self.send("Page.addScriptToEvaluateOnNewDocument", source=KEEP_TERMINAL)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, 15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def _port(self) -> int:
        """Chromium writes it into its profile once it listens."""
        file = self._profile / "DevToolsActivePort"
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert self._process.poll() is None, f"chromium ended with {self._process.returncode}"
            if file.exists() and (text := file.read_text()).count("\n"):
                return int(text.splitlines()[0])
            await asyncio.sleep(0.1)
        raise AssertionError("chromium never opened its debugging port")

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the debugging protocol and its answer."""
        number = next(self._numbers)
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads((await self._socket.receive(timeout=60)).data)
            if message.get("method") == "Network.requestWillBeSent":
                self.requested[message["params"]["requestId"]] = message["params"]["request"]["url"]
            if message.get("method") == "Network.loadingFailed" and message["params"].get("blockedReason") == "csp":
                self.blocked.add(message["params"]["requestId"])
            if message.get("id") == number:
                assert "error" not in message, message
                answer: dict[str, Any] = message["result"]
                return answer

    def sent(self) -> list[str]:
        """Addresses of the requests that left the browser."""
        return [address for number, address in self.requested.items() if number not in self.blocked]

    async def open(self, url: str) -> None:
        """Goes to a page."""
        await self.send("Page.navigate", url=url)

    async def value(self, script: str) -> Any:
        """What a script gives, in the page."""
        answer = await self.send("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    async def shown(self) -> str:
        """The text on the page's terminal."""
        return str(await self.value(READ_TERMINAL) or "")

    async def wait_for(self, text: str, seconds: float = 60.0) -> str:
        """Polls until the terminal shows the text."""
        end = time.monotonic() + seconds
        while text not in (screen := await self.shown()):
            assert time.monotonic() < end, f"{text!r} never came; the page shows:\n{screen}"
            await asyncio.sleep(0.2)
        return screen

    async def press(self, text: str) -> None:
        """A key press as from the keyboard, into what has the focus."""
        await self.value("document.querySelector('.xterm-helper-textarea').focus()")
        await self.send("Input.dispatchKeyEvent", type="keyDown", text=text, key=text, unmodifiedText=text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=text)

    async def picture(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"])
