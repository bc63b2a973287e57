"""The charts of a report: errors over the stream, by severity, against cost, ranks and sweeps."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acclimate.report.charts import (
    LETTER,
    Axis,
    Chart,
    Curve,
    Dot,
    Look,
    assign_looks,
    axis_of_counts,
    best_axis,
    cut,
    draw_curves,
    draw_dots,
    linear_axis,
    list_few,
)
from acclimate.report.facts import split_domain
from acclimate.report.stats import Measure, Ranking
from acclimate.report.summary import Group, Row, Summary

Looks = Mapping[str, Look]

#: Points of a line over the stream; more cannot be distinguished in a small chart.
MOST_POINTS = 60
_MOST_MARKS = 12  # lines with more points have a marker at their end only
_ERROR, _MEAN = "error, %", "mean error, %"


def choose_looks(summary: Summary) -> dict[str, Look]:
    """Return the look of each label, the same in all charts.

    Colours go first to labels of several groups, then to the lowest errors, last to oracles.
    """
    means: dict[str, list[float]] = {}
    for _, row in summary.rows:
        means.setdefault(row.label, []).append(row.mean.mean)
    oracles = {row.label for _, row in summary.rows if row.is_oracle}
    ranked = sorted(
        means,
        key=lambda label: (label in oracles, -len(means[label]), statistics.fmean(means[label])),
    )
    reference = next((row.label for _, row in summary.rows if row.is_reference), None)
    return assign_looks(ranked, reference)


def window_of(n_batches: int) -> int:
    """Return over how many batches a line over the stream is smoothed.

    >>> window_of(10), window_of(50), window_of(782)
    (3, 5, 78)
    """
    return max(3, n_batches // 10)


def smooth(counts: Sequence[tuple[int, int]], window: int) -> list[float]:
    """Return the error in percent over each batch and up to `window` - 1 batches before it.

    `counts` are images and errors of each batch.
    """
    seen, wrong = ([0, *itertools.accumulate(column)] for column in zip(*counts, strict=True))
    spans = [(max(0, end - window), end) for end in range(1, len(counts) + 1)]
    return [100 * (wrong[end] - wrong[at]) / (seen[end] - seen[at]) for at, end in spans]


def count_batches(row: Row) -> dict[str, list[tuple[int, int]]]:
    """Return images and errors by place within each domain, all seeds and severities together."""
    found: dict[str, list[tuple[int, int]]] = {}
    for outcome in row.outcomes:
        places: dict[str, int] = {}
        for record in outcome.result.counted:
            place = places.get(record.domain, 0)
            places[record.domain] = place + 1
            own = found.setdefault(split_domain(record.domain, outcome.entry.spec)[0], [])
            if place == len(own):
                own.append((0, 0))
            n, n_errors = own[place]
            own[place] = (n + record.n, n_errors + record.n_errors)
    return found


def draw_streams(group: Group, looks: Looks) -> list[Chart]:
    """Return a chart for each domain: smoothed error by batch, a line for each method."""
    batches = {row.label: count_batches(row) for row in group.drawn}
    charts = []
    for name in dict.fromkeys(name for own in batches.values() for name in own):
        counts = {label: own[name] for label, own in batches.items() if own.get(name)}
        x_axis = axis_of_counts("batch", max(map(len, counts.values())))
        curves = [_smooth_curve(label, own) for label, own in counts.items()]
        charts.append(_draw_errors(name.replace("_", " "), curves, looks, x_axis))
    return charts


def draw_severities(group: Group, looks: Looks) -> list[Chart]:
    """Return a chart of the mean error at each severity; none where there is one severity only."""
    found = {row.label: row.severity_errors() for row in group.drawn}
    curves = [make_curve(label, own.items()) for label, own in found.items() if len(own) > 1]
    if not curves:
        return []
    levels = sorted({x for curve in curves for x, _ in curve.points})
    x_axis = Axis("severity", levels[0] - 0.3, levels[-1] + 0.3, tuple(levels))
    return [_draw_errors("mean over corruptions", curves, looks, x_axis)]


def draw_costs(group: Group, looks: Looks) -> list[Chart]:
    """Return charts of the mean error against time per image, and against memory if it is known."""
    rows = group.drawn
    times = [(row.label, row.ms_per_image, row.mean.mean) for row in rows]
    sizes = [(r.label, r.peak_memory / 1e6, r.mean.mean) for r in rows if r.peak_memory is not None]
    charts = []
    for title, name, points in (
        ("against time per image", "ms per image", times),
        ("against memory", "MB", sizes),
    ):
        if points:
            _, xs, ys = zip(*points, strict=True)
            axes = (best_axis(name, xs), linear_axis(_MEAN, ys, from_zero=False))
            dots = [Dot(label, x, y, f"{label}: {y:.1f} % at {x:.3g}") for label, x, y in points]
            about = list_few([dot.about for dot in dots])
            size = (340.0, 260.0)
            chart = draw_dots(
                title, dots, looks, axes, size=size, radius=4, has_tags=True, about=about
            )
            charts.append(chart)
    return charts


def draw_ranking(ranking: Ranking, looks: Looks) -> Chart:
    """Return a chart of how far each method is behind the first, with intervals."""
    dots: list[Dot] = []
    for row, place in enumerate(ranking.places):
        label, far = place.row.label, place.to_first
        value = 0.0 if far is None else far.value
        about, ends = f"{label}: {value:+.2f} points", None
        if far is not None and far.has_interval:
            about += f", 95 % interval {far.low:+.2f} to {far.high:+.2f}"
            ends = ((far.low, row), (far.high, row))
        dots.append(Dot(label, value, row, about, ends))
    values = [x for dot in dots for x, _ in (dot[1:3], *(dot.ends or ()))]
    x_axis = linear_axis("points above the first", values, from_zero=False)
    n, names = len(dots), tuple(cut(dot.label) for dot in dots)
    axes = (x_axis, Axis("", n - 0.5, -0.5, tuple(range(n)), names))
    return draw_dots(
        "distance from the first",
        dots,
        looks,
        axes,
        size=(340, 20 * n + 56),
        left=12 + LETTER * max(map(len, names)),
        about=list_few([f"{dot.label} {dot.x:+.1f}" for dot in dots]),
    )


def draw_sweeps(group: Group) -> list[Chart]:
    """Return a chart of the mean error along each number that the suite varies."""
    names = dict.fromkeys(name for row in group.rows for name in row.outcomes[0].entry.axes)
    found = {name: sweep_lines(group, name) for name in names if name != "seed"}
    return [_draw_sweep(group, name, lines) for name, lines in found.items() if lines]


def _draw_sweep(group: Group, name: str, lines: Mapping[str, list[tuple[float, Row]]]) -> Chart:
    curves = [
        make_curve(label, [(x, row.mean) for x, row in points]) for label, points in lines.items()
    ]
    curves.sort(key=lambda curve: min(y for _, y in curve.points))
    xs = [x for curve in curves for x, _ in curve.points]
    flat = [row for row in group.rows if row.is_reference and _sweep_value(row, name) is None]
    for row in flat[:1]:  # the source model has no such option: a level line
        ends = ((min(xs), row.mean.mean), (max(xs), row.mean.mean))
        curves.append(Curve(row.label, ends, marks=False))
    looks = assign_looks([curve.label for curve in curves], flat[0].label if flat else None)
    return _draw_errors(f"against {name}", curves, looks, best_axis(name, xs), _MEAN)


def sweep_lines(group: Group, name: str) -> dict[str, list[tuple[float, Row]]]:
    """Return the rows along what is varied by line: those whose labels differ in it only.

    A row that is alone is no line.
    """
    lines: dict[str, list[tuple[float, Row]]] = {}
    for row in group.rows:
        value = _sweep_value(row, name)
        if value is None:
            continue
        label = without_value(row.label, name, row.outcomes[0].entry.axes[name]) or row.method
        own = lines.setdefault(label, [])
        if any(x == value for x, _ in own):  # two rows at one place: these are not one line
            own = lines.setdefault(row.label, [])
        own.append((value, row))
    return {
        label: sorted(points, key=lambda point: point[0])
        for label, points in lines.items()
        if len(points) > 1
    }


def without_value(label: str, name: str, value: Any) -> str:
    """Return a label without what it says of an option.

    >>> without_value("tent, lr 0.001", "lr", 0.001), without_value("tent (lr 1e-05)", "lr", 1e-5)
    ('tent', 'tent')
    >>> without_value("SWR (lr 0.01, images 8)", "options.lr", 0.01)
    'SWR, images 8'
    """
    number = _to_number(value)
    texts = {str(value), *([] if number is None else [f"{number:g}", str(number)])}
    names = {name, name.rpartition(".")[2]}
    known = {f"{one}{sign}{text}" for one in names for text in texts for sign in " ="}
    return ", ".join(p for p in re.split(r", | \(|\)", label) if p and p not in known)


def make_curve(label: str, measures: Iterable[tuple[float, Measure]]) -> Curve:
    """Return a line of means, with their deviations over seeds."""
    xs, found = zip(*measures, strict=True)
    points = tuple((float(x), own.mean) for x, own in zip(xs, found, strict=True))
    return Curve(label, points, tuple(own.deviation for own in found))


def _smooth_curve(label: str, counts: Sequence[tuple[int, int]]) -> Curve:
    values = smooth(counts, window_of(len(counts)))
    step = max(1, -(-len(values) // MOST_POINTS))
    chosen = sorted({*range(0, len(values), step), len(values) - 1})
    points = tuple((i + 1.0, values[i]) for i in chosen)
    return Curve(label, points, marks=len(points) <= _MOST_MARKS)


def _draw_errors(
    title: str, curves: Sequence[Curve], looks: Looks, x_axis: Axis, name: str = _ERROR
) -> Chart:
    y_axis = linear_axis(name, [y for curve in curves for _, y in curve.points])
    return draw_curves(title, curves, looks, (x_axis, y_axis))


def _to_number(value: Any) -> float | None:
    """Return a number, or the only number of a list; None for anything else."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def _sweep_value(row: Row, name: str) -> float | None:
    return _to_number(row.outcomes[0].entry.axes.get(name))
