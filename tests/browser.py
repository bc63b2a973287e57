"""A real browser for the tests of pages, where one is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser found; looked for {', '.join(NAMES)}"
)

DARK = "--blink-settings=preferredColorScheme=0"


def run_browser(page: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page without a window; what it prints and what the page logs are in the result."""
    return subprocess.run(
        [
            str(BROWSER),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-dev-shm-usage", "--no-first-run", "--enable-logging=stderr"),
            f"--user-data-dir={folder / 'profile'}",
            *options,
            page.resolve().as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )


def ask_page(html: str, folder: Path, script: str, width: int) -> tuple[Mapping[str, Any], str]:
    """Run a script in a page that has been shown; return what it gives, and what was logged.

    Args:
        html: The page.
        folder: To write in.
        script: The body of a function that returns something JSON can hold.
        width: Of the page. It is shown in a frame, as no window is as narrow as a phone.
    """
    probe = (
        "<script>window.addEventListener('load', () => {"
        f"const found = (() => {{{script}}})();"
        "window.parent.postMessage(JSON.stringify(found), '*'); });</script>"
    )
    inside = html.replace("</body>", f"{probe}</body>")
    page = folder / "page.html"
    page.write_text(
        "<!DOCTYPE html><html><head><meta charset='utf-8'></head><body><pre id='found'></pre>"
        "<script>window.addEventListener('message', (event) => {"
        "document.getElementById('found').textContent = event.data; });</script>"
        f"<iframe style='border: 0' width='{width}' height='900' srcdoc='{escape(inside)}'>"
        "</iframe></body></html>",
        encoding="utf-8",
    )
    run = run_browser(
        page, folder, "--dump-dom", "--virtual-time-budget=5000", "--window-size=1400,1000"
    )
    found = re.search(r'<pre id="found">(.+?)</pre>', run.stdout, re.DOTALL)
    assert found is not None, run.stderr[-2000:]
    return json.loads(unescape(found[1])), run.stderr


def list_messages(log: str) -> list[str]:
    """Return what pages wrote to the console."""
    return [line for line in log.splitlines() if "CONSOLE" in line]
