"""The page in a real browser: it sorts, hides and shows, fits a phone, and logs no error."""

from __future__ import annotations

import pytest
from PIL import Image

from acclimate.report import render_suite
from tests.browser import (
    DARK,
    ask_page,
    list_messages,
    needs_browser,
    run_browser,
)
from tests.report.samples import make_large, make_severities, make_suite, make_sweep

pytestmark = [needs_browser, pytest.mark.slow]

# What reaches beyond the window, but for what can be scrolled to.
FITS = """
const root = document.documentElement;
document.querySelectorAll("details").forEach((part) => { part.open = true; });
const wide = [...document.querySelectorAll("main *")].filter((element) => {
  const region = element.parentElement.closest(".scroll");
  const box = element.getBoundingClientRect();
  return !region && (box.right > root.clientWidth + 0.5 || box.left < -0.5);
});
return {
  width: root.clientWidth,
  overflow: root.scrollWidth - root.clientWidth,
  wide: wide.map((element) => `${element.tagName} ${element.textContent.slice(0, 40)}`),
  scrolls: [...document.querySelectorAll(".scroll")].map((region) => region.tabIndex),
  smallest: Math.min(...[...document.querySelectorAll(".chart text")]
    .map((text) => text.getBoundingClientRect().height).filter((height) => height > 0)),
};
"""

SORTS = """
const table = document.querySelector("table.sortable");
const heads = [...table.tHead.rows[0].cells];
const column = heads.findIndex((head) => head.textContent.startsWith("mean error"));
const values = (at) => [...table.tBodies[0].rows].map((row) => row.cells[at].dataset.value);
const click = (at) => {
  heads[at].querySelector("button").click();
  return { order: values(at), sort: heads.map((head) => head.getAttribute("aria-sort")) };
};
const button = heads[column].querySelector("button");
button.focus();
const gain = heads.findIndex((head) => head.textContent.startsWith("vs source"));
return {
  column, gain,
  focused: document.activeElement === button,
  before: values(column),
  up: click(column), down: click(column), name: click(0), gains: [click(gain), click(gain)],
  hints: [...document.querySelectorAll(".hint")].map((hint) => hint.hidden),
};
"""

# The first table, at its beginning and scrolled to its end.
FADES = """
const region = document.querySelector(".scroll");
const state = () => ({
  rest: region.scrollWidth - region.clientWidth - region.scrollLeft,
  faded: getComputedStyle(region).maskImage !== "none",
});
const first = state();
region.scrollLeft = region.scrollWidth;
region.dispatchEvent(new Event("scroll"));
return { first, last: state() };
"""

HIDES = """
const label = "method_number_3";
const series = () => [...document.querySelectorAll(".chart .series")]
  .filter((item) => item.dataset.label === label);
const buttons = [...document.querySelectorAll(".legend li")]
  .filter((item) => item.dataset.label === label).map((item) => item.querySelector("button"));
const count = () => ({
  drawn: series().length,
  off: series().filter((item) => getComputedStyle(item).display === "none").length,
  pressed: buttons.map((button) => button.getAttribute("aria-pressed")),
});
const state = [count()];
buttons[0].click(); state.push(count());
buttons[0].click(); state.push(count());
buttons[1].focus();
const lit = series().every((item) => item.classList.contains("lit"));
const others = [...document.querySelectorAll(".chart .series:not(.lit)")]
  .every((item) => item.matches(".dim .series"));
buttons[1].blur();
return { state, lit, others, after: document.querySelectorAll(".lit, .dim").length };
"""


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("make", [make_suite, make_large])
def test_nothing_overflows_and_nothing_is_logged(make, width, tmp_path):
    found, log = ask_page(render_suite(make()), tmp_path, FITS, width)
    assert found["width"] == width
    assert found["wide"] == []
    assert found["overflow"] == 0
    assert set(found["scrolls"]) == {0}
    assert found["smallest"] >= 8  # pixels of a line of text in a chart
    assert list_messages(log) == []


@pytest.mark.parametrize("make", [make_severities, make_sweep])
def test_other_sections_fit_a_phone(make, tmp_path):
    found, log = ask_page(render_suite(make()), tmp_path, FITS, 360)
    assert found["wide"] == []
    assert list_messages(log) == []


def test_an_error_would_be_seen(tmp_path):
    page = render_suite(make_sweep()).replace("<main>", "<main><img src='https://example.org/x'>")
    _, log = ask_page(page, tmp_path, "console.error('trouble'); return 1;", 800)
    assert any("trouble" in line for line in list_messages(log))
    assert any("Content Security Policy" in line for line in list_messages(log))


def test_tables_are_sorted_by_their_headings(tmp_path):
    found, log = ask_page(render_suite(make_suite()), tmp_path, SORTS, 1280)
    numbers = [float(value) for value in found["before"]]
    assert numbers != sorted(numbers)
    assert [float(value) for value in found["up"]["order"]] == sorted(numbers)
    assert [float(value) for value in found["down"]["order"]] == sorted(numbers, reverse=True)
    up, down = found["up"]["sort"], found["down"]["sort"]
    assert up[found["column"]] == "ascending"
    assert down[found["column"]] == "descending"
    assert up.count(None) == down.count(None) == len(up) - 1
    names = found["name"]["order"]
    assert len(names) == len(numbers)
    assert names.index("bound") < names.index("fewer") < names.index("norm")
    for sorted_by_gain in found["gains"]:  # what is not there comes last, whichever way
        order = sorted_by_gain["order"]
        assert "" in order
        assert all(value == "" for value in order[order.index("") :])
    assert found["focused"]
    assert not any(found["hints"])
    assert list_messages(log) == []


def test_a_table_that_goes_on_fades_at_its_edge(tmp_path):
    found, log = ask_page(render_suite(make_suite()), tmp_path, FADES, 400)
    assert found["first"]["rest"] > 100
    assert found["first"]["faded"]
    assert found["last"]["rest"] <= 1
    assert not found["last"]["faded"]
    assert list_messages(log) == []


def test_a_table_that_fits_does_not_fade(tmp_path):
    found, _ = ask_page(render_suite(make_sweep()), tmp_path, FADES, 1280)
    assert found["first"] == {"rest": 0, "faded": False}


def test_a_legend_hides_shows_and_brings_out(tmp_path):
    found, log = ask_page(render_suite(make_large()), tmp_path, HIDES, 1280)
    first, hidden, shown = found["state"]
    assert first["drawn"] > 8
    assert first["off"] == shown["off"] == 0
    assert hidden["off"] == first["drawn"]
    assert set(first["pressed"]) == set(shown["pressed"]) == {"true"}
    assert set(hidden["pressed"]) == {"false"}
    assert len(first["pressed"]) > 1
    assert found["lit"]
    assert found["others"]
    assert found["after"] == 0
    assert list_messages(log) == []


@pytest.mark.parametrize(("option", "low", "high"), [("", 235, 255), (DARK, 10, 45)])
def test_it_is_drawn_in_light_and_dark(option, low, high, tmp_path):
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(render_suite(make_suite()), encoding="utf-8")
    options = [f"--screenshot={picture}", "--window-size=390,2400", *([option] if option else [])]
    run_browser(page, tmp_path, *options)
    with Image.open(picture) as image:
        assert image.size == (390, 2400)
        grey = image.convert("L")
        ground = grey.getpixel((3, 3))
        assert low <= ground <= high
        counts = grey.histogram()
    drawn = sum(count for level, count in enumerate(counts) if abs(level - ground) > 60)
    assert 0.01 < drawn / sum(counts) < 0.5
