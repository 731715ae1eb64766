"""A headless Chromium over its DevTools pipe: enough of a client to load a file, press keys and look at the page."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

Json = dict[str, Any]
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60
"""Seconds after which a browser that says nothing is given up: a hung one must not hang the tests."""


def find_browser() -> str | None:
    """The browser's path; None if there is none."""
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


class Browser:
    """One page of one browser process. ``problems`` holds console errors, exceptions and refused loads."""

    def __init__(self, binary: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The browser reads its commands from descriptor 3 and answers on 4; the shell moves ours there.
        line = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["bash", "-c", line, binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._events: list[Json] = []
        self.problems: list[str] = []
        self.loaded: list[str] = []
        self._session: str | None = None
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(item["targetId"] for item in targets if item["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def send(self, method: str, **params: Any) -> Json:
        """Runs a command and returns its result."""
        self._number += 1
        message: Json = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: Json = answer["result"]
                return result

    def _receive(self) -> Json:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser went away"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: Json = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: Json) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.loaded.append(params["request"]["url"])
        if method:
            self._events.append({"method": method, "params": params})

    def open(self, path: Path, hash: str = "") -> None:
        """Loads a file anew and waits until it has run."""
        self._load("about:blank")  # else another hash of the same file would load nothing
        self.problems.clear()
        self.loaded.clear()
        self._load(path.as_uri() + hash)
        self.run("new Promise((done) => requestAnimationFrame(() => done(1)))")

    def _load(self, url: str) -> None:
        self._events.clear()
        self.send("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def run(self, script: str) -> Any:
        """The value of an expression in the page; waits for promises."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def go(self, hash: str) -> None:
        """Follows a link inside the page."""
        self.run(
            "new Promise((done) => { const before = location.href;"
            f"location.hash = {json.dumps(hash)};"
            "if (location.href === before) done(1);"
            "else addEventListener('hashchange', () => done(1), {once: true}); })"
        )

    def key(self, name: str, text: str = "") -> None:
        """Presses and releases a key."""
        codes = {"Tab": 9, "Enter": 13, "Space": 32}
        common = {"key": " " if name == "Space" else name, "code": name, "windowsVirtualKeyCode": codes.get(name, 0)}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Types into what has the focus, and waits until the page has taken it up."""
        self.send("Input.insertText", text=text)
        self.run("new Promise((done) => setTimeout(() => requestAnimationFrame(() => done(1)), 120))")

    def look(self, width: int, scheme: str = "light", height: int = 900) -> None:
        """Makes the window this wide, and the system light or dark."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        """Saves what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
