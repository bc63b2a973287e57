"""The live page in a real browser, against the real server."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from acclimate.serve.app import make_app
from tests.browser import needs_browser
from tests.serve.chromium import open_tab
from tests.serve.fake_api import run_app
from tests.serve.make import make_engine, make_images, make_npy

pytestmark = [needs_browser, pytest.mark.slow]


def test_the_page_shows_the_server_and_rolls_back(tmp_path: Path) -> None:
    app = make_app(lambda telemetry: make_engine(telemetry))
    headers = {"Content-Type": "application/x-npy", "X-Stream-Id": "camera 1/north"}

    def learn(address: str, batches: int) -> None:
        body = make_npy(make_images(8, batches))
        httpx.post(f"{address}/predict", content=body, headers=headers).raise_for_status()
        tab.wait(f"document.getElementById('tiles').innerText.includes('in {batches} batches')")

    with run_app(app) as address, open_tab(tmp_path) as tab:
        tab.open(address)
        tab.wait("!document.getElementById('empty').hidden")
        learn(address, 1)
        tab.click("[data-action=snapshot]")
        tab.wait("document.getElementById('notice').textContent.includes('snapshot')")
        learn(address, 2)
        tab.click("[data-action=rollback]")
        tab.wait("document.getElementById('confirm').open")
        tab.click("#confirm-yes")
        tab.wait("document.getElementById('tiles').innerText.includes('in 1 batches')")
        tab.wait("document.querySelectorAll('#events li').length === 2")
        assert tab.problems == []
