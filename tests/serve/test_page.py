"""The live page in a real browser, against a scripted interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from PIL import Image

from tests.browser import needs_browser
from tests.serve.chromium import Tab, open_tab
from tests.serve.fake_api import FakeApi, make_history, run_fake_api

pytestmark = [needs_browser, pytest.mark.slow]

LINES = "document.querySelectorAll('.series .line').length"
NAME = "document.getElementById('stream-name').textContent"
NOTICE = "document.getElementById('notice').textContent"
LINK = "document.getElementById('link').dataset.state"
IS_ASKING = "document.getElementById('confirm').open"

# What reaches beyond the window, but for what can be scrolled to.
WIDE = """(() => {
const root = document.documentElement;
return [root.scrollWidth - root.clientWidth, ...[...document.querySelectorAll("body *")]
  .filter((node) => !node.closest(".streams, .hidden, dialog") && node.getClientRects().length
    && node.getBoundingClientRect().right > root.clientWidth + 0.5)
  .map((node) => `${node.tagName} ${node.textContent.slice(0, 40)}`)];
})()"""


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with run_fake_api() as api:
        yield api


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with open_tab(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def page(tab: Tab, api: FakeApi) -> Tab:
    tab.open("about:blank")
    tab.problems.clear()
    tab.set_view()
    return tab


def text_of(page: Tab, selector: str) -> str:
    return str(page.ask(f"document.querySelector({json.dumps(selector)}).innerText"))


def test_it_states_how_to_send_images_and_then_shows_them(page: Tab, api: FakeApi) -> None:
    page.open(api.address)
    page.wait("!document.getElementById('empty').hidden")
    assert f"acclimate send FOLDER --to {api.address}" in text_of(page, "#empty")
    api.add("camera-1", 20)
    page.wait(f"{LINES} > 4")
    assert page.ask(NAME) == "camera-1"
    assert page.ask("document.getElementById('empty').hidden")
    assert page.ask("document.querySelectorAll('.series .band').length") >= 2
    assert "27.0 points (between 21.0 and 33.0)" in text_of(page, "#finding")
    kinds = {event["kind"] for event in api.histories["camera-1"]["events"]}
    marks = page.ask("[...document.querySelectorAll('.event')].map((mark) => mark.dataset.kind)")
    assert set(marks) == kinds
    assert page.ask("document.querySelectorAll('#events li').length") == len(kinds)
    assert page.ask("document.querySelectorAll('#recent li img').length") == 6
    answered = page.ask(
        "[...document.querySelectorAll('#recent .answered .hidden')].map((who) => who.textContent)"
    )
    assert answered == [f"{who} (answered): " for who in 3 * ["adapted"] + ["source"]] + 2 * [
        "adapted (answered): "
    ]
    assert "circle" in text_of(page, "#classes")
    assert page.problems == []


def test_it_updates(page: Tab, api: FakeApi) -> None:
    api.add("camera-1", 20)
    page.open(api.address)
    page.wait(f"{LINES} > 4")
    before = page.ask("document.querySelector('[data-series=adapted] .line').points.length")
    assert "1,280" in text_of(page, "#tiles")
    api.add("camera-1", 40)
    api.add("camera-2", 30, state="resting")
    page.wait("document.getElementById('tiles').innerText.includes('2,560')")
    page.wait("document.querySelectorAll('#streams li').length === 2")
    after = page.ask(
        "[...document.querySelectorAll('#accuracy [data-series=adapted] .line')]"
        ".reduce((n, line) => n + line.points.length, 0)"
    )
    assert after > before
    page.click("#streams li:nth-child(2) a")
    page.wait(f"{NAME} === 'camera-2'")
    assert page.ask("location.hash") == "#camera-2"
    del api.streams["camera-2"]
    page.wait(f"{NAME} === 'camera-1'")
    assert page.problems == []


def test_a_click_on_roll_back_asks_and_then_rolls_back(page: Tab, api: FakeApi) -> None:
    api.add("camera 1, north", 20)
    page.open(api.address)
    page.wait(f"{LINES} > 4")
    page.click("[data-action=rollback]")
    page.wait(IS_ASKING)
    assert page.ask("document.activeElement.id") == "confirm-no"
    page.press("Escape")
    page.wait(f"!{IS_ASKING}")
    page.click("[data-action=rollback]")
    page.wait(IS_ASKING)
    assert api.posts == []
    page.click("#confirm-yes")
    page.wait(f"{NOTICE}.includes('was rolled back')")
    assert api.posts == [("camera 1, north", "rollback")]
    assert page.problems == []


def test_the_other_buttons_act(page: Tab, api: FakeApi) -> None:
    api.add("camera-1", 20)
    page.open(api.address)
    page.wait(f"{LINES} > 4")
    page.click("#toggle")
    page.wait("document.getElementById('toggle').textContent === 'Resume'")
    assert text_of(page, "#stream-state") == "paused"
    page.click("#toggle")
    page.wait("document.getElementById('toggle').textContent === 'Pause'")
    page.click("[data-action=snapshot]")
    page.wait(f"{NOTICE}.includes('snapshot')")
    page.click("[data-action=reset]")
    page.wait(IS_ASKING)
    page.click("#confirm-yes")
    page.wait(f"{NOTICE}.includes('was reset')")
    actions = ["pause", "resume", "snapshot", "reset"]
    assert api.posts == [("camera-1", action) for action in actions]
    assert page.problems == []


def test_a_refused_action_shows_the_reason(page: Tab, api: FakeApi) -> None:
    api.add("camera-1", 20)
    api.refusal = (409, "There is no snapshot of camera-1.")
    page.open(api.address)
    page.wait(f"{LINES} > 4")
    page.click("[data-action=snapshot]")
    page.wait(f"{NOTICE}.includes('There is no snapshot of camera-1.')")
    assert page.ask("document.getElementById('notice').classList.contains('bad')")


def test_it_asks_for_the_token(page: Tab, api: FakeApi) -> None:
    api.token = "s3cret"
    api.add("camera-1", 20)
    page.open(api.address)
    page.wait("!document.getElementById('login').hidden")
    assert page.ask("document.activeElement.id") == "token"
    page.type("wrong")
    page.click("#login button")
    page.wait("document.getElementById('login-text').textContent.includes('refused')")
    page.click("#token")
    page.type("s3cret")
    page.click("#login button")
    page.wait(f"{LINES} > 4")
    assert page.ask("localStorage.length") == 0
    page.click("#forget")
    page.wait("!document.getElementById('login').hidden")


def test_it_shows_when_the_connection_is_lost(page: Tab, api: FakeApi) -> None:
    api.add("camera-1", 20)
    page.open(api.address)
    page.wait(f"{LINK} === 'live'")
    api.is_broken = True
    page.wait(f"{LINK} === 'lost'")
    api.is_broken = False
    page.wait(f"{LINK} === 'live'")


def test_charts_can_be_read_with_the_keyboard(page: Tab, api: FakeApi) -> None:
    api.add("camera-1", 20)
    page.open(api.address)
    page.wait(f"{LINES} > 4")
    page.ask("document.querySelector('#accuracy .plot').focus()")
    page.press("End")
    page.press("ArrowLeft")
    points = api.histories["camera-1"]["points"]
    readout = text_of(page, "#accuracy .readout")
    assert f"{points[-2]['samples']:,} images" in readout
    assert f"{100 * points[-2]['adapted']['value']:.1f} %" in readout
    page.press("Escape")
    assert f"{points[-1]['samples']:,} images" in text_of(page, "#accuracy .readout")
    assert page.problems == []


def test_text_of_the_server_is_never_markup(page: Tab, api: FakeApi) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    api.add(nasty, 20)
    history = make_history(20)
    history["events"].append({"t": 0.0, "kind": nasty, "text": nasty})
    history["predicted"] = {nasty: 3}
    history["recent"][0]["image"] = "https://example.org/x.png"
    history["recent"][1]["adapted"]["label"] = nasty
    api.histories[nasty] = history
    page.open(api.address)
    page.wait(f"{LINES} > 4")
    assert page.ask(NAME) == nasty
    sources = page.ask("[...document.images].map((image) => image.src.slice(0, 15))")
    assert sources == ["data:image/png;"] * 5
    assert page.problems == []


def test_streams_without_an_estimate_are_shown(page: Tab, api: FakeApi) -> None:
    api.add("a", 20, estimate=None, drift=None, answers="source")
    api.histories["a"] = make_history(20, with_source=False)
    api.add("b", 1)
    api.histories["b"] = {"points": [], "events": [], "recent": [], "predicted": {}}
    page.open(api.address)
    page.wait(f"{LINES} > 2")
    assert "no estimate" in text_of(page, "#finding")
    page.click("#streams li:nth-child(2) a")
    page.wait(f"{NAME} === 'b'")
    page.wait("document.getElementById('classes').innerText.includes('None yet')")
    assert page.problems == []


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize(("dark", "low", "high"), [(False, 235, 255), (True, 10, 45)])
def test_it_fits_in_light_and_dark(
    width: int, dark: bool, low: int, high: int, page: Tab, api: FakeApi, tmp_path: Path
) -> None:
    page.set_view(width, 900, dark)
    for name in ("camera-1", "a-stream-with-a-name-" + 5 * "that-does-not-end-"):
        api.add(name, 60)
    page.open(api.address)
    page.wait(f"{LINES} > 4")
    assert page.ask(WIDE) == [0]
    page.shoot(tmp_path / "page.png", whole=True)
    with Image.open(tmp_path / "page.png") as image:
        assert image.width == width
        grey = image.convert("L")
        ground = grey.getpixel((3, grey.height - 3))
        assert low <= ground <= high
        counts = grey.histogram()
    drawn = sum(count for level, count in enumerate(counts) if abs(level - ground) > 60)
    assert 0.01 < drawn / sum(counts) < 0.5
    assert page.problems == []


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = (files("acclimate.serve") / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert text.count("http://") == text.count("http://www.w3.org/2000/svg")
    assert "https://" not in text
    assert "innerHTML" not in text
