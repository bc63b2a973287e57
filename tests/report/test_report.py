"""The report's table and page, from made-up records."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from html import escape

import pytest

from acclimate.report import (
    MethodNote,
    count_wins,
    describe,
    describe_apart,
    render_page,
    summarize,
)
from acclimate.report.page import smooth
from acclimate.report.table import Measure, Row, Table
from tests.codes import raises
from tests.report.records import (
    DOMAINS,
    HOSTILE,
    METHODS,
    exact_run,
    make_report,
    make_run,
    series_in,
    walk,
)


def test_table_numbers_are_those_of_the_records():
    report = make_report(seeds=3)
    table = summarize(report.runs)
    assert [row.method for row in table.rows] == list(METHODS)
    assert table.n_seeds == 3
    assert table.n_images == 200
    for row in table.rows:
        means = []
        own = [run for run in report.runs if run.method == row.method]
        for run in own:
            shares = []
            for domain in DOMAINS:
                records = [r for r in run.result.records if r.domain == domain]
                shares.append(100 * sum(r.n_errors for r in records) / sum(r.n for r in records))
            means.append(shares)
        for place, domain in enumerate(DOMAINS):
            values = [shares[place] for shares in means]
            middle = sum(values) / 3
            spread = math.sqrt(sum((v - middle) ** 2 for v in values) / 2)
            assert row.errors[domain].mean == pytest.approx(middle)
            assert row.errors[domain].deviation == pytest.approx(spread)
        assert row.mean.mean == pytest.approx(sum(sum(s) / 2 for s in means) / 3)
        times = [r.ms for run in own for r in run.result.records]
        assert row.images_per_second == pytest.approx(1000 * 3 * 400 / sum(times))
        assert row.ms_per_batch == sorted(times)[len(times) // 2]


def test_one_seed_has_no_spread():
    table = summarize(make_report(seeds=1).runs)
    assert table.rows[0].mean.deviation is None
    assert "±" not in str(table.rows[0].mean)


def test_the_best_of_a_column_is_marked_as_shown_and_ties_share_it():
    runs = [exact_run("source", 0, 50), exact_run("norm", 0, 20), exact_run("tent", 0, 20)]
    columns = summarize(runs).columns
    assert columns[0].best == (False, True, True)
    assert [column.name for column in columns] == ["shift0", "mean", "images/s", "ms/batch"]
    speeds = columns[2]
    assert speeds.best[speeds.values.index(max(speeds.values))]


def test_runs_that_cannot_be_compared_are_refused():
    with raises("runs_differ"):  # other seeds
        summarize([exact_run("source", 0, 5), exact_run("tent", 1, 5)])
    with raises("runs_differ"):  # other shifts
        summarize([exact_run("source", 0, 5), exact_run("tent", 0, 5, 6)])


@pytest.mark.parametrize(
    ("errors", "sentence"),
    [
        (
            {"source": 45, "norm": 20, "swr_nsp": 18},
            "Adapting online lowers the mean error from 45.0 % to 18.0 % (swr_nsp); "
            "the other methods: norm 20.0 %.",
        ),
        (
            {"source": 45, "norm": 30, "tent": 18, "swr_nsp": 25},
            "Adapting online lowers the mean error from 45.0 % to 18.0 % (tent); "
            "the other methods: swr_nsp 25.0 % and norm 30.0 %.",
        ),
        (
            {"source": 10, "norm": 20, "tent": 30},
            "No method lowers the mean error of the source model, 10.0 %; "
            "the others: norm 20.0 % and tent 30.0 %.",
        ),
        (
            {"source": 10, "norm": 10},
            "No method lowers the mean error of the source model, 10.0 %; norm equals it.",
        ),
        ({"source": 10}, "The mean error is lowest with source: 10.0 %."),
        (
            {"norm": 20, "tent": 20, "swr_nsp": 30},
            "The mean error is lowest with norm and tent: 20.0 %, against swr_nsp 30.0 %.",
        ),
    ],
)
def test_the_finding_says_what_the_numbers_say(errors, sentence):
    runs = [exact_run(method, 0, wrong) for method, wrong in errors.items()]
    assert describe(summarize(runs)) == sentence


def test_wins_are_counted_by_seed():
    better, worse = [10, 20, 30], [12, 19, 40]
    runs = [exact_run("norm", seed, wrong) for seed, wrong in enumerate(worse)]
    runs += [exact_run("tent", seed, wrong) for seed, wrong in enumerate(better)]
    assert count_wins(runs) == "tent was ahead of norm in 2 of 3 seeds."
    assert count_wins([exact_run("norm", 0, 1), exact_run("tent", 0, 2)]) == ""


def test_smoothing_is_a_running_mean_over_batches_and_seeds():
    runs = [make_run("tent", seed, {"fog": 0.5}, n_batches=6) for seed in range(2)]
    records = [record for run in runs for record in run.result.records]
    values = smooth(records, window=3)
    by_batch = [100 * sum(run.result.records[i].n_errors for run in runs) / 80 for i in range(6)]
    expected = [
        sum(by_batch[max(0, i - 2) : i + 1]) / len(by_batch[max(0, i - 2) : i + 1])
        for i in range(6)
    ]
    assert values == pytest.approx(expected)


@pytest.mark.parametrize("seeds", [1, 2])
def test_page_is_well_formed_and_refers_to_nothing_outside(seeds):
    page = render_page(make_report(seeds))
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
    report = make_report()
    noted = MethodNote("tent", "It works.", "https://arxiv.org/abs/2006.10726", "Costs 1.")
    page = render_page(dataclasses.replace(report, methods=(noted,)))
    links = [a["href"] for tag, a in walk(page).tags if tag == "a"]
    assert links == ["https://arxiv.org/abs/2006.10726"]
    assert re.findall(r"https?://[^\s\"'<]+", page) == links


def test_page_escapes_every_name():
    page = render_page(make_report())
    assert "<script>alert" not in page
    assert [tag for tag, _ in walk(page).tags].count("script") == 1
    assert HOSTILE in "".join(walk(page).text)


def test_page_is_accessible():
    walker = walk(render_page(make_report()))
    scopes = [a.get("scope") for tag, a in walker.tags if tag == "th"]
    assert set(scopes) == {"col", "row"}
    assert scopes.count("row") == len(METHODS)
    assert scopes.count("col") == 1 + len(DOMAINS) + 3
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
    report = make_report(seeds=1)
    page = render_page(report)
    text = "".join(walk(page).text)
    places = [
        text.index(heading)
        for heading in (
            describe(summarize(report.runs)),
            "What you see here",
            "Errors and speed",
            "Error over time",
            "Penalty by layer",
            "Sample images",
            "Protocol and provenance",
        )
    ]
    # The finding stands in the title of the window too; it must come first of all.
    assert places == sorted(places)
    for row in summarize(report.runs).rows:
        for measure in (*row.errors.values(), row.mean):
            assert f'data-value="{measure.mean:.6f}"' in page
    for layer in report.layers:
        assert f"{layer.penalties[0]:.3f}" in text


def test_panels_of_the_page_hold_the_smoothed_errors():
    report = make_report(seeds=2)
    page = render_page(report)
    panels = re.findall(r"<figure><figcaption>[^<]*</figcaption>(<svg.*?</svg>)", page)
    assert len(panels) == len(DOMAINS)
    for domain, svg in zip(DOMAINS, panels, strict=True):
        assert list(series_in(svg)) == list(METHODS)
        titles = [title.text for title in ElementTree.fromstring(svg).iter("title")]
        records = [
            record
            for run in report.runs
            if run.method == "norm"
            for record in run.result.records
            if record.domain == domain
        ]
        for place, value in enumerate(smooth(records), start=1):
            assert f"norm, batch {place}: {value:.1f} %" in titles


def test_the_same_report_gives_the_same_page():
    assert render_page(make_report()) == render_page(make_report())


def text_colours(style: str) -> tuple[dict[str, str], dict[str, str]]:
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    find = re.compile(r"--([\w-]+): (#[0-9a-f]{6})")
    day = dict(find.findall(light))
    return day, day | dict(find.findall(dark.partition("* {")[0]))


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_have_enough_contrast(mode):
    style = render_page(make_report()).partition("<style>")[2].partition("</style>")[0]
    colours = text_colours(style)[mode]
    for ground in ("paper", "card", "best"):
        for text in ("ink", "soft", "right", "wrong", "accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for index in range(8):
        assert contrast(colours[f"c{index}"], colours["paper"]) >= 3


def test_a_sentence_names_a_few_methods_of_many() -> None:
    errors = {"source": 50, "norm": 40, "tent": 30, "eta": 31, "sar": 32, "rpl": 33, "roid": 39}
    rows = tuple(
        Row(name, {"fog": Measure(value)}, Measure(value), 1.0, 1.0)
        for name, value in errors.items()
    )
    sentence = describe(Table(rows, ("fog",), 1, 100))
    assert sentence == (
        "Adapting online lowers the mean error from 50.0 % to 30.0 % (tent); the other methods: "
        "eta 31.0 %, sar 32.0 %, rpl 33.0 %, roid 39.0 % and norm 40.0 %."
    )
    more = Row("deyo", {"fog": Measure(41)}, Measure(41), 1.0, 1.0)
    assert describe(Table((*rows, more), ("fog",), 1, 100)).endswith(
        "eta 31.0 %, sar 32.0 %, rpl 33.0 %, roid 39.0 % and 2 more, up to 41.0 %."
    )
    # An oracle is no competitor.
    oracle = Row("supervised", {"fog": Measure(1)}, Measure(1), 1.0, 1.0)
    assert describe(Table((*rows, oracle), ("fog",), 1, 100)) == sentence
    assert oracle.label == "supervised (oracle)"
    assert Table((*rows, oracle), ("fog",), 1, 100).columns[0].best[-1] is False


def grouped(errors: dict[tuple[str, str], list[int]]) -> list:
    """Runs of one shift: by method and group, the errors of each seed."""
    return [
        dataclasses.replace(exact_run(method, seed, wrong), group=group)
        for (method, group), own in errors.items()
        for seed, wrong in enumerate(own)
    ]


def test_runs_are_compared_with_those_of_their_group_only() -> None:
    errors = {("source", ""): [50, 50], ("norm", ""): [30, 32], ("tent", ""): [31, 30]}
    runs = grouped({**errors, ("source", "b"): [20, 20], ("note", "b"): [2, 2]})
    table = summarize(runs)
    assert [row.label for row in table.rows] == [
        *("source", "norm", "tent"),
        *("source (b)", "note (b)"),
    ]
    assert describe(table) == describe(summarize(grouped(errors)))
    assert count_wins(runs) == count_wins(grouped(errors))
    assert table.columns[0].best == (False, False, True, False, False)
    assert table.columns[1].best == (False, False, True, False, False)
    assert not any(any(column.best[3:]) for column in table.columns)
    assert describe_apart(table) == (
        "Apart from these: note (b) 2.0 % against 20.0 % without adapting."
    )
    assert describe_apart(summarize(grouped(errors))) == ""


def test_the_first_group_with_something_to_compare_is_described() -> None:
    runs = grouped({("source", ""): [5, 5], ("source", "b"): [20, 20], ("note", "b"): [9, 11]})
    table = summarize(runs)
    assert describe(table) == (
        "Adapting online lowers the mean error from 20.0 % to 10.0 % (note (b))."
    )
    assert count_wins(runs) == "note (b) was ahead of source (b) in 2 of 2 seeds."
    assert describe_apart(table) == ""
    assert table.columns[0].best == (False, False, True)
    alone = summarize(grouped({("tent", ""): [5], ("source", "b"): [20], ("note", "b"): [9]}))
    assert describe_apart(alone) == "Apart from these: tent 5.0 %."


def test_page_shows_groups_and_the_notes_on_them() -> None:
    report = make_report(seeds=1, methods=("source", "norm"))
    more = tuple(dataclasses.replace(run, group=HOSTILE) for run in report.runs)
    page = render_page(dataclasses.replace(report, runs=report.runs + more, notes=(HOSTILE,)))
    walker = walk(page)
    assert [tag for tag, _ in walker.tags].count("script") == 1
    assert f"norm ({HOSTILE})" in [a.get("data-label") for _, a in walker.tags]
    assert page.count(f'<p class="note">{escape(HOSTILE)}</p>') == 1
    assert "Apart from these" in page
