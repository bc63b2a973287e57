"""The report's charts: what they draw is what they were given."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest

from acclimate.report.charts import (
    Curve,
    Dot,
    Layer,
    Look,
    assign_looks,
    axis_of_counts,
    compose,
    draw_curves,
    draw_dots,
    draw_layers,
    find_ticks,
    linear_axis,
)
from acclimate.report.pages import render_suite
from tests.report.records import HOSTILE, make_demo, series_in, walk
from tests.report.samples import make_suite


def make_curves(values: dict[str, tuple[float, ...]], high: float) -> str:
    curves = [Curve(label, tuple(enumerate(own, start=1))) for label, own in values.items()]
    n = max(map(len, values.values()))
    axes = (axis_of_counts("batch", n), linear_axis("error, %", [high]))
    return draw_curves("fog", curves, assign_looks(list(values)), axes).svg


def test_lines_have_one_series_a_method_with_the_right_points():
    values = {"source": (80.0, 60.0, 70.0), HOSTILE: (40.0, 0.0, 20.0)}
    svg = make_curves(values, 80)
    found = series_in(svg)
    assert set(found) == set(values)
    # Recover the axis from its own labels: where 0 and 80 are written, and batches 1 and 3.
    root = ElementTree.fromstring(svg)
    ticks = {t.text: t.attrib for t in root.iter("text") if t.attrib["class"] == "tick"}
    zero, top = float(ticks["0"]["y"]), float(ticks["80"]["y"])
    first, last = float(ticks["1"]["x"]), float(ticks["3"]["x"])
    for label, line in values.items():
        for place, value in enumerate(line):
            x, y = found[label][place]
            assert x == pytest.approx(first + (last - first) * place / 2, abs=0.11)
            assert y == pytest.approx(zero + (top - zero) * value / 80, abs=0.11)
    titles = [title.text for title in root.iter("title")]
    assert "source at 2: 60.0 %" in titles
    assert len(titles) == 6 + 2  # of the points, and of the lines


def test_a_stream_of_one_batch_without_errors_can_be_drawn():
    assert len(series_in(make_curves({"source": (0.0,)}, 0.0))["source"]) == 1


def test_lines_differ_by_more_than_colour():
    root = ElementTree.fromstring(make_curves({f"method {i}": (1.0, 2.0) for i in range(12)}, 2))
    looks = set()
    for group in root.iter("g"):
        line = group.find("polyline")
        marks = [element for element in group if element.attrib.get("class") == "mark"]
        shape = marks[0].attrib.get("d", "circle")  # all are at the same place
        looks.add((shape, line.attrib.get("stroke-dasharray", "")))
    assert len(looks) == 12


def test_points_are_grouped_by_class_and_can_be_found_by_their_place():
    axes = (linear_axis("x", [10]), linear_axis("y", [10]))
    points = [Dot(HOSTILE, 0.0, 0.0), Dot("a", 10.0, 10.0, "far"), Dot(HOSTILE, 5.0, 0.0)]
    looks = {"a": Look("c0", 0), HOSTILE: Look("c1", 0)}
    root = ElementTree.fromstring(draw_dots("t", points, looks, axes, size=(220, 160)).svg)
    groups = {g.attrib["data-label"]: g for g in root.iter("g")}
    places = {
        label: [circle.attrib["data-point"] for circle in group.iter("circle")]
        for label, group in groups.items()
    }
    assert places == {"a": ["1"], HOSTILE: ["0", "2"]}
    xs = [float(circle.attrib["cx"]) for circle in groups[HOSTILE].iter("circle")]
    far = float(groups["a"].find("circle").attrib["cx"])
    assert xs[1] - xs[0] == pytest.approx((far - xs[0]) / 2, abs=0.11)
    assert sorted(title.text for title in root.iter("title")) == [HOSTILE, "a", "far"]


def test_a_composed_picture_is_a_file_of_its_own():
    layers = (Layer(HOSTILE, "head", (0.5,)),)
    text = compose(HOSTILE, [draw_layers("t", layers, (520, 290))] * 3, 2, {HOSTILE: Look("c1", 0)})
    root = ElementTree.fromstring(text)
    namespace = "{http://www.w3.org/2000/svg}"
    inside = [svg for svg in root.iter(f"{namespace}svg") if svg is not root]
    assert [float(svg.attrib["width"]) for svg in inside] == [520] * 3
    assert float(root.attrib["width"]) > 2 * 520
    assert "prefers-color-scheme: dark" in root.find(f"{namespace}style").text
    assert root.attrib["aria-label"] == HOSTILE


def test_layers_are_drawn_at_the_mean_of_their_penalties():
    layers = make_demo().layers
    root = ElementTree.fromstring(draw_layers("t", layers, (520, 290)).svg)
    marks = [mark for mark in root.iter() if mark.get("class") == "mark"]
    titles = [mark.find("title").text for mark in marks]
    assert titles[-1] == "stem.weight (convolution): 0.150"  # the first is on top
    assert titles[0] == f"{HOSTILE} (head, weight): 1.000"
    ticks = {t.text: t.attrib for t in root.iter("text") if t.get("text-anchor") == "end"}
    zero, one = float(ticks["0"]["y"]), float(ticks["1"]["y"])
    ranges = [path for path in root.iter("path") if path.get("class") == "range"]
    heights = []
    for path in ranges:
        ends = re.fullmatch(r"M([\d.]+) ([\d.]+)L\1 ([\d.]+)", path.attrib["d"]).group(2, 3)
        heights += [(float(end) - zero) / (one - zero) for end in ends]
    assert sorted(heights) == pytest.approx([0.1, 0.2, 0.4, 0.5, 1.0, 1.0], abs=0.001)
    (circle,) = [mark for mark in marks if mark.tag == "circle"]
    assert (float(circle.attrib["cy"]) - zero) / (one - zero) == pytest.approx(0.15, abs=0.001)


@pytest.mark.parametrize("high", [0.004, 0.83, 1.0, 7, 47, 99.9, 100.0, 12345.0])
def test_ticks_are_round_and_reach_the_highest_value(high):
    ticks = find_ticks(0, high)
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ticks)}
    assert ticks[0] == 0
    assert ticks[-2] < high <= ticks[-1]
    assert len(steps) == 1
    assert len(ticks) <= 6
    assert f"{steps.pop():e}"[0] in "125"


def test_legend_names_every_label():
    summary = make_suite()
    page = render_suite(summary)
    legend = walk(page[page.index('<ul class="legend">') : page.index("</ul>") + 5])
    names = [row.label for row in summary.groups[0].drawn]
    assert sorted(a["data-label"] for tag, a in legend.tags if tag == "li") == sorted(names)
    assert len("".join(legend.text).strip()) == len("".join(names))
