"""The page as text: well formed, self-contained, accessible, and true to the numbers."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from importlib.resources import files

import pytest
from markupsafe import escape

from acclimate.bench.selection import get_rule
from acclimate.methods import get_method
from acclimate.report import render_suite, summarize
from acclimate.report.charts import PALETTE
from acclimate.report.facts import protocol_facts
from tests.report.outcomes import HOSTILE, exact, make_outcome
from tests.report.records import walk
from tests.report.samples import make_large, make_severities, make_suite, make_sweep

MAKERS = [make_suite, make_large, make_severities, make_sweep]


@pytest.mark.parametrize("make", MAKERS)
def test_page_is_well_formed_and_loads_nothing(make):
    summary = make()
    papers = {get_method(row.method).card.paper for _, row in summary.rows}
    page = render_suite(summary)
    walker = walk(page)
    for tag, attributes in walker.tags:
        for name in ("src", "srcset", "poster", "data", "action", "xlink:href"):
            assert name not in attributes
        assert tag not in ("link", "iframe", "object", "embed", "base", "img", "form")
        if "href" in attributes:
            assert tag == "a"
            assert attributes["href"].startswith(("./jobs/", "#")) or attributes["href"] in papers
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert set(re.findall(r"https?:[^\s\"'<]+", page)) == papers - {""}
    assert "default-src 'none'" in page


def test_page_escapes_every_name():
    page = render_suite(make_suite())
    assert "<script>alert" not in page
    walker = walk(page)
    assert [tag for tag, _ in walker.tags].count("script") == 1
    assert HOSTILE in "".join(walker.text)


@pytest.mark.parametrize("make", MAKERS)
def test_page_is_accessible(make):
    walker = walk(render_suite(make()))
    headings = [int(tag[1]) for tag, _ in walker.tags if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))
    charts = [a for tag, a in walker.tags if tag == "svg" and a.get("role") == "img"]
    assert charts
    assert all(chart["aria-label"] for chart in charts)
    assert all(a.get("scope") in ("col", "row") for tag, a in walker.tags if tag == "th")
    regions = [a for _, a in walker.tags if a.get("role") == "region"]
    assert regions
    assert all(region["aria-label"] and region["tabindex"] == "0" for region in regions)
    ids = [a["id"] for _, a in walker.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    for _, attributes in walker.tags:
        assert attributes.get("aria-labelledby") in (None, *ids)


def test_the_same_outcomes_give_the_same_page():
    assert render_suite(make_suite()) == render_suite(make_suite())


def test_the_tables_hold_the_numbers():
    summary = make_suite()
    page = render_suite(summary)
    for group, row in summary.rows:
        for measure in (*row.errors.values(), row.mean):
            assert f'data-value="{measure.mean:.6f}"' in page
        assert str(escape(row.label)) in page
        assert str(escape(group.name)) in page
    best = re.findall(r'<td data-value="[^"]*" class="best"><strong>([\d.]+)</strong>', page)
    assert best


def test_protocol_selection_and_origin_are_told():
    summary = make_suite()
    text = "".join(walk(render_suite(summary)).text).replace("\u00a0", " ")
    for name, value in protocol_facts(summary.outcomes[0]).items():
        assert name in text
        assert value in text
    for words in (
        *("acclimate bench run suite.toml", "A processor", "2.3.0", "67676767", "2020-01-01"),
        *(get_rule("held-out").sentence, "10000 resamples", "A note."),
        *("Not drawn, as measured under another protocol: fewer", "has seed 0 but not seed 1"),
    ):
        assert words in text


def list_links(page: str) -> list[str]:
    """Links to files, that is, neither to papers nor within the page."""
    links = [a["href"] for tag, a in walk(page).tags if tag == "a"]
    return [link for link in links if not link.startswith(("#", "http"))]


def test_records_are_linked_from_wherever_the_page_lies():
    summary = summarize([exact("a", 10), exact("b", 20)])
    folder = summary.outcomes[0].folder
    links = list_links(render_suite(summary))
    assert links[:2] == [f"./{folder}/records.jsonl", f"./{folder}/result.json"]
    for place in ("../some where", "/data/suite"):
        links = list_links(render_suite(summary, place))
        assert links[0] == f"{place.replace(' ', '%20')}/{folder}/records.jsonl"
    assert "records.jsonl" not in render_suite(summary, None)


def figures(page: str, section: str) -> list[ElementTree.Element]:
    part = page.partition(f'<h2 id="{section}">')[2].partition("</section>")[0]
    return [ElementTree.fromstring(svg) for svg in re.findall(r'<svg class="chart".*?</svg>', part)]


def labels_in(root: ElementTree.Element) -> list[str]:
    return [g.attrib["data-label"] for g in root.iter("g") if "data-label" in g.attrib]


def axis_of(root: ElementTree.Element, side: str) -> tuple[float, float, float, float]:
    """Two ticks of an axis: place and value of the first and the last."""
    anchor, place = ("end", "y") if side == "y" else ("middle", "x")
    named = [t for t in root.iter("text") if t.get("class") == "tick"]
    ticks = [t for t in named if t.get("text-anchor") == anchor]
    values = [float(t.text.replace("−", "-")) for t in ticks]
    places = [float(t.attrib[place]) for t in ticks]
    return places[0], values[0], places[-1], values[-1]


def read(at: float, axis: tuple[float, float, float, float]) -> float:
    first, low, last, high = axis
    return low + (at - first) / (last - first) * (high - low)


def test_streams_are_running_means_of_the_records():
    counts = {"fog": [50, 40, 30, 20, 10, 0], "snow": [5, 5, 5, 5, 5, 5]}
    other = {"fog": [60, 60, 60, 60, 60, 60], "snow": [9, 9, 9, 9, 9, 9]}
    page = render_suite(summarize([make_outcome("a", counts), make_outcome("b", other)]))
    charts = figures(page, "error-over-the-stream")
    assert len(charts) == 2
    root = charts[0]
    assert sorted(labels_in(root)) == ["a", "b"]
    x_axis, y_axis = axis_of(root, "x"), axis_of(root, "y")
    group = next(g for g in root.iter("g") if g.get("data-label") == "a")
    points = [pair.split(",") for pair in group.find("polyline").attrib["points"].split()]
    wrong = counts["fog"]
    for place, (x, y) in enumerate(points):
        recent = wrong[max(0, place - 2) : place + 1]
        assert read(float(x), x_axis) == pytest.approx(place + 1, abs=0.05)
        assert read(float(y), y_axis) == pytest.approx(sum(recent) / len(recent), abs=0.3)


def test_seeds_are_pooled_in_a_stream():
    outcomes = [make_outcome("a", {"fog": [wrong] * 4}, seed=s) for s, wrong in ((0, 10), (1, 30))]
    root = figures(render_suite(summarize(outcomes)), "error-over-the-stream")[0]
    y_axis = axis_of(root, "y")
    group = next(g for g in root.iter("g") if g.get("data-label") == "a")
    for pair in group.find("polyline").attrib["points"].split():
        assert read(float(pair.split(",")[1]), y_axis) == pytest.approx(20, abs=0.3)


def test_rows_of_another_protocol_are_in_no_chart_with_the_others():
    page = render_suite(make_suite())
    for section in ("error-over-the-stream", "error-against-cost", "ranking"):
        for root in figures(page, section):
            assert "fewer" not in labels_in(root)


def test_severities_have_a_chart_and_a_table():
    page = render_suite(make_severities())
    (root,) = figures(page, "error-by-severity")
    ticks = [t.text for t in root.iter("text") if t.get("text-anchor") == "middle"]
    assert ticks == ["1", "3", "5"]
    assert page.count("severity 3") >= 1
    assert figures(render_suite(make_large(3)), "error-by-severity") == []


def test_a_sweep_is_drawn_on_a_logarithmic_axis():
    (root,) = figures(render_suite(make_sweep()), "error-against-what-was-varied")
    assert sorted(labels_in(root)) == ["entropy", "source", "tent"]
    group = next(g for g in root.iter("g") if g.get("data-label") == "tent")
    xs = [float(pair.split(",")[0]) for pair in group.find("polyline").attrib["points"].split()]
    gaps = [after - before for before, after in itertools.pairwise(xs)]
    assert len(xs) == 4
    assert gaps == pytest.approx([gaps[0]] * 3, abs=0.11)  # equal ratios, equal distances
    assert any("log scale" in (text.text or "") for text in root.iter("text"))
    texts = [t.text for t in root.iter("text") if t.get("text-anchor") == "middle"]
    assert texts == ["1e-5", "1e-4", "1e-3", "1e-2"]  # one notation


def test_costs_are_drawn_where_they_were_measured():
    outcomes = [
        exact("source", 50, method="source", ms=10, memory=100_000_000),
        exact("a", 30, ms=20, memory=300_000_000),
        exact("b", 20, ms=30, memory=None),
    ]
    time, memory = figures(render_suite(summarize(outcomes)), "error-against-cost")
    assert sorted(labels_in(time)) == ["a", "b", "source"]
    assert sorted(labels_in(memory)) == ["a", "source"]
    titles = [title.text for title in time.iter("title")]
    assert "a: 30.0 % at 0.2" in [text.replace("\u00a0", " ") for text in titles]


def test_the_ranking_chart_has_the_intervals():
    summary = summarize([exact("a", 10, 20, 30, 9, 8), exact("b", 14, 22, 39, 9, 7)])
    (root,) = figures(render_suite(summary), "ranking")
    far = summary.groups[0].rankings[0].places[1].to_first
    axis = axis_of(root, "x")
    group = next(g for g in root.iter("g") if g.get("data-label") == "b")
    bar = next(path for path in group.iter("path") if path.get("class") == "range")
    start, end = re.fullmatch(r"M([\d.]+) ([\d.]+)L([\d.]+) \2", bar.attrib["d"]).group(1, 3)
    assert read(float(start), axis) == pytest.approx(far.low, abs=0.05)
    assert read(float(end), axis) == pytest.approx(far.high, abs=0.05)
    rows = [t for t in root.iter("text") if t.text in ("a", "b")]
    assert float(rows[1].attrib["y"]) - float(rows[0].attrib["y"]) == pytest.approx(20)


def test_many_methods_have_few_colours_and_differ_otherwise():
    page = render_suite(make_large(24))
    legend = re.search(r'<ul class="legend">(.*?)</ul>', page)[1]
    looks = []
    for item in re.findall(r"<li.*?</li>", legend):
        colour = re.search(r'class="series (\w+)"', item)[1]
        dash = re.search(r"stroke-dasharray=\"([^\"]*)\"", item)
        mark = re.search(r'class="mark" (d="[^"]*")?', item)
        looks.append((colour, dash and dash[1], mark[1]))
    assert len(looks) == 24
    assert len(set(looks)) == 24
    assert len({colour for colour, _, _ in looks}) <= 9


def test_the_style_uses_colours_that_exist():
    style = (files("acclimate.report") / "templates" / "page.css").read_text(encoding="utf-8")
    known = {*PALETTE, *re.findall(r"--([\w-]+):", style)}
    used = set(re.findall(r"var\(--([\w-]+)\)", style))
    assert used <= known
    assert len(used) > 10


def test_an_incomplete_suite_can_be_shown():
    outcomes = [exact("a", 10, 20, seed=0), exact("b", 10, 20, seed=1)]
    page = render_suite(summarize(outcomes))
    assert "No row is complete yet." in page
