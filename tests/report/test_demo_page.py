"""The page of the demonstration, from made-up outcomes; and the headline above every report."""

from __future__ import annotations

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest
from markupsafe import escape

from acclimate.report import error_table, headlines, render_demo, summarize
from acclimate.report.charts import PALETTE
from acclimate.report.figures import count_batches, smooth
from tests.report.outcomes import exact
from tests.report.records import DOMAINS, HOSTILE, METHODS, make_demo, series_in, walk


@pytest.mark.parametrize(
    ("errors", "sentence"),
    [
        (
            {"source": 45, "norm": 20, "swr_nsp": 18},
            "The lowest mean error is that of swr_nsp, 18.0 %, against 45.0 % without adapting.",
        ),
        (
            {"source": 10, "norm": 20, "tent": 30},
            "No method lowers the mean error of the source model, 10.0 %.",
        ),
        (
            {"source": 10, "norm": 10},
            "No method lowers the mean error of the source model, 10.0 %.",
        ),
        ({"source": 10}, "The lowest mean error is that of source, 10.0 %."),
        (
            {"norm": 20, "tent": 20, "swr_nsp": 30},
            "The lowest mean error is that of norm and tent, 20.0 %.",
        ),
        # An oracle is no competitor.
        (
            {"source": 50, "norm": 40, "supervised": 1},
            "The lowest mean error is that of norm, 40.0 %, against 50.0 % without adapting.",
        ),
    ],
)
def test_the_headline_says_what_the_numbers_say(errors, sentence):
    outcomes = [exact(name, *[wrong] * 4, method=name) for name, wrong in errors.items()]
    assert headlines(summarize(outcomes)) == (sentence,)


def test_groups_are_compared_within_themselves_only():
    errors = {("source", ""): 50, ("norm", ""): 30, ("source", "b"): 20, ("note", "b"): 2}
    outcomes = [exact(m, wrong, method=m, group=group) for (m, group), wrong in errors.items()]
    summary = summarize(outcomes)
    assert headlines(summary) == (
        "The lowest mean error is that of norm, 30.0 %, against 50.0 % without adapting.",
        "b: The lowest mean error is that of note, 2.0 %, against 20.0 % without adapting.",
    )
    best = [
        [cells[0].text for cells in error_table(group).rows if cells[1].best]
        for group in summary.groups
    ]
    assert best == [["norm"], ["note"]]


def test_smoothing_is_a_running_mean_over_batches_and_seeds():
    (row, *_) = make_demo(seeds=2).summary.groups[0].rows
    batches = [
        [record.n_errors for record in outcome.result.records if record.domain == DOMAINS[0]]
        for outcome in row.outcomes
    ]
    values = smooth(count_batches(row)[DOMAINS[0]], 3)
    by_batch = [100 * sum(own) / 80 for own in zip(*batches, strict=True)]
    expected = [
        sum(by_batch[max(0, i - 2) : i + 1]) / len(by_batch[max(0, i - 2) : i + 1])
        for i in range(5)
    ]
    assert values == pytest.approx(expected)


@pytest.mark.parametrize("seeds", [1, 2])
def test_page_is_well_formed_and_refers_to_nothing_outside(seeds):
    page = render_demo(make_demo(seeds))
    walker = walk(page)
    for tag, attributes in walker.tags:
        for name in ("src", "srcset", "poster", "data", "action", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:image/png;base64,"), (tag, name)
        assert tag not in ("link", "iframe", "object", "embed", "base")
        if "href" in attributes:
            assert tag == "a"
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_page_links_papers_only():
    page = render_demo(make_demo())
    links = [a["href"] for tag, a in walk(page).tags if tag == "a"]
    assert "https://arxiv.org/abs/2006.10726" in links  # that of tent
    assert re.findall(r"https?://[^\s\"'<]+", page) == links


def test_page_escapes_every_name():
    page = render_demo(make_demo())
    assert "<script>alert" not in page
    assert [tag for tag, _ in walk(page).tags].count("script") == 1
    assert HOSTILE in "".join(walk(page).text)


def test_page_is_accessible():
    walker = walk(render_demo(make_demo()))
    scopes = [a.get("scope") for tag, a in walker.tags if tag == "th"]
    assert set(scopes) == {"col", "row"}
    assert scopes.count("row") == len(METHODS)
    table = error_table(make_demo().summary.groups[0])
    assert scopes.count("col") == len(table.columns) > 1 + len(DOMAINS)
    images = [a for tag, a in walker.tags if tag == "img"]
    assert len(images) == 2 * len(DOMAINS)
    assert all(image["alt"] for image in images)
    charts = [a for tag, a in walker.tags if tag == "svg" and a.get("role") == "img"]
    assert len(charts) == len(DOMAINS) + 1
    assert all(chart["aria-label"] for chart in charts)
    headings = [int(tag[1]) for tag, _ in walker.tags if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))
    ids = [a["id"] for _, a in walker.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    for _, attributes in walker.tags:
        assert attributes.get("aria-labelledby") in (None, *ids)


def test_page_shows_the_table_and_the_sections_in_order():
    demo = make_demo(seeds=1)
    page = render_demo(demo)
    text = "".join(walk(page).text).replace("\u00a0", " ")
    headings = (
        *headlines(demo.summary),
        *("What you see here", "Errors and speed", "Error over time", "Penalty by layer"),
        *("Sample images", "Protocol and provenance"),
    )
    places = [text.index(heading) for heading in headings]
    assert places == sorted(places)
    shown = re.findall("<h3>(.*)</h3>", page.partition("Sample images")[2])
    assert shown == [domain.replace("_", " ") for domain in DOMAINS]
    for _, row in demo.summary.rows:
        for measure in (*row.errors.values(), row.mean):
            assert f'data-value="{measure.mean:.6f}"' in page
    for layer in demo.layers:
        assert f"{layer.penalties[0]:.3f}" in text


def test_panels_of_the_page_hold_the_smoothed_errors():
    demo = make_demo(seeds=2)
    page = render_demo(demo)
    panels = re.findall(r"<figure><figcaption>[^<]*</figcaption>(<svg.*?</svg>)", page)
    assert len(panels) == len(DOMAINS)
    row = next(row for _, row in demo.summary.rows if row.label == "norm")
    for domain, svg in zip(DOMAINS, panels, strict=True):
        assert set(series_in(svg)) == set(METHODS)
        titles = [title.text for title in ElementTree.fromstring(svg).iter("title")]
        for place, value in enumerate(smooth(count_batches(row)[domain], 3), start=1):
            assert f"norm at {place}: {value:.1f}\u00a0%" in titles


def test_the_same_outcomes_give_the_same_page():
    assert render_demo(make_demo()) == render_demo(make_demo())


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_have_enough_contrast(mode):
    colours = {name: pair[mode] for name, pair in PALETTE.items()}
    for ground in ("paper", "card", "best"):
        for text in ("ink", "soft", "right", "wrong", "accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for index in range(10):
        assert contrast(colours[f"c{index}"], colours["paper"]) >= 3


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_pages_have_the_colours_of_the_palette(mode):
    style = render_demo(make_demo()).partition("<style>")[2].partition("</style>")[0]
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    for name, pair in PALETTE.items():
        assert f"--{name}: {pair[mode]};" in (light, dark)[mode]


def test_page_shows_groups_and_the_notes_on_them() -> None:
    demo = make_demo(seeds=1)
    more = [
        dataclasses.replace(own, entry=dataclasses.replace(own.entry, group=HOSTILE))
        for own in demo.summary.outcomes
    ]
    summary = summarize([*demo.summary.outcomes, *more])
    page = render_demo(dataclasses.replace(demo, summary=summary, notes=(HOSTILE,)))
    walker = walk(page)
    assert [tag for tag, _ in walker.tags].count("script") == 1
    assert page.count(f'<p class="note">{escape(HOSTILE)}</p>') == 1
    assert "".join(walker.text).count(f"{HOSTILE}: The lowest mean error") == 1
