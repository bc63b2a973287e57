"""A browser that tests can steer: Chromium through its DevTools protocol, over a pipe."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.browser import BROWSER

#: Seconds after which a page that does not get where it should is given up.
PATIENCE = 30
# Codes of keys that the browser itself acts on.
_KEYS = {"Enter": 13, "Escape": 27}


class Tab:
    """One open page.

    Attributes:
        problems: What the page logged as a warning or an error, and exceptions of its scripts.
    """

    def __init__(self, write_to: int, read_from: int) -> None:
        self.problems: list[str] = []
        self._write, self._read = write_to, read_from
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def set_view(self, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Set the size of the window and the colour scheme."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Go to an address, and wait until the page is there."""
        self._call("Page.navigate", url=address)
        self.wait(
            f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'"
        )

    def ask(self, script: str) -> Any:
        """Evaluate an expression in the page and return what it gives."""
        answer = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until an expression is true in the page; return its value."""
        end = time.monotonic() + PATIENCE
        while not (found := self.ask(script)):
            if time.monotonic() > end:
                text = self.ask("document.body.innerText")
                raise AssertionError(f"never true: {script}\n{self.problems}\n{text}")
            time.sleep(0.05)
        return found

    def click(self, selector: str) -> None:
        """Click into the middle of an element as a mouse does."""
        place = self.ask(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            "node.scrollIntoView({block: 'center'}); const box = node.getBoundingClientRect();"
            "return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key: str, text: str = "") -> None:
        """Press and release a key."""
        values = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS.get(key, 0)}
        more = {"text": text} if text else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", **values, **more)
        self._call("Input.dispatchKeyEvent", type="keyUp", **values)

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        self._call("Input.insertText", text=text)

    def shoot(self, path: Path, whole: bool = False) -> None:
        """Write a picture of the window, or of the whole page, as PNG."""
        more: dict[str, Any] = {}
        if whole:
            size = self._call("Page.getLayoutMetrics")["cssContentSize"]
            more = {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
        shot = self._call("Page.captureScreenshot", format="png", **more)
        path.write_bytes(b64decode(shot["data"]))

    def _call(self, method: str, **values: Any) -> Any:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": values}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(end)
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._read, 1 << 16) if ready else b""
            if not chunk:
                raise AssertionError("the browser does not answer")
            self._buffer += chunk
        first, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(first))

    def _note(self, event: dict[str, Any]) -> None:
        kind, values = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(values["exceptionDetails"])[:1000])
        elif kind == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
            self.problems.append(json.dumps(values["args"])[:1000])
        elif kind == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.problems.append(values["entry"]["text"])


@contextmanager
def open_tab(folder: Path) -> Iterator[Tab]:
    """Start the browser without a window, and give one empty page.

    Args:
        folder: For the profile of the browser.
    """
    to_browser, from_tests = os.pipe()
    to_tests, from_browser = os.pipe()

    def connect() -> None:  # Chromium reads commands from 3 and writes answers to 4
        first, second = os.dup(to_browser), os.dup(from_browser)
        os.dup2(first, 3)
        os.dup2(second, 4)

    process = subprocess.Popen(
        [
            str(BROWSER),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"),
            f"--user-data-dir={folder / 'profile'}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=connect,
        close_fds=False,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Tab(from_tests, to_tests)
    finally:
        os.close(from_tests)  # the browser ends with its pipe
        os.close(to_tests)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
