"""What is drawn of a bench: errors over the stream, by severity, against cost and along an axis."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acclimate.bench.reports.axes import Axis, axis_around, axis_from_zero, best_axis
from acclimate.bench.reports.bootstrap import Ranking
from acclimate.bench.reports.draw import (
    Curve,
    Look,
    assign_looks,
    draw_curves,
    draw_intervals,
    draw_points,
)
from acclimate.bench.reports.facts import domain_errors, split_domain
from acclimate.bench.reports.tabulate import Group, Row, Summary, measure
from acclimate.report.charts import find_ticks

#: Points of a line over the stream; more cannot be told apart in a small chart.
MOST_POINTS = 60
_ERROR = "error, %"


@dataclass(frozen=True)
class Figure:
    """A chart with what stands above it.

    Attributes:
        title: A few words.
        svg: The chart.
        labels: Those in it, for a legend.
    """

    title: str
    svg: str
    labels: tuple[str, ...]


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


def list_drawn(group: Group) -> tuple[Row, ...]:
    """Return the rows of the common protocol, which may stand in one chart, lowest error first."""
    rows = [row for row in group.rows if row.protocol == 0]
    return tuple(sorted(rows, key=lambda row: row.mean.mean))


def window_of(n_batches: int) -> int:
    """Return over how many batches a line over the stream is smoothed.

    >>> window_of(10), window_of(50), window_of(782)
    (3, 5, 78)
    """
    return max(3, n_batches // 10)


def smooth(counts: Sequence[tuple[int, int]], window: int) -> list[float]:
    """Return the error in percent over each batch and up to `window` - 1 batches before it.

    Args:
        counts: Images and errors of each batch.
        window: Batches.
    """
    seen = [0, *itertools.accumulate(n for n, _ in counts)]
    wrong = [0, *itertools.accumulate(n_errors for _, n_errors in counts)]
    starts = [max(0, end - window) for end in range(1, len(counts) + 1)]
    return [
        100 * (wrong[end] - wrong[start]) / (seen[end] - seen[start])
        for end, start in enumerate(starts, start=1)
    ]


def draw_streams(group: Group, looks: Mapping[str, Look]) -> tuple[Figure, ...]:
    """Return a chart for each domain: smoothed error by batch, a line a method."""
    rows = list_drawn(group)
    batches = {row.label: _batches(row) for row in rows}
    names = dict.fromkeys(name for own in batches.values() for name in own)
    figures = []
    for name in names:
        curves = []
        for row in rows:
            counts = batches[row.label].get(name)
            if counts:
                curves.append(_stream_curve(row.label, counts))
        n = max(len(batches[curve.label][name]) for curve in curves)
        highest = [y for curve in curves for _, y in curve.points]
        axes = (_batch_axis(n), axis_from_zero(_ERROR, highest))
        title = name.replace("_", " ")
        svg = draw_curves(f"{title}: error over the stream", curves, looks, axes)
        figures.append(Figure(title, svg, tuple(curve.label for curve in curves)))
    return tuple(figures)


def draw_severities(group: Group, looks: Mapping[str, Look]) -> Figure | None:
    """Return a chart of the mean error at each severity; None where there is one severity only."""
    curves = []
    for row in list_drawn(group):
        found = severity_errors(row)
        if len(found) > 1:
            measures = {severity: measure(values) for severity, values in found.items()}
            curves.append(
                Curve(
                    row.label,
                    tuple((float(severity), m.mean) for severity, m in measures.items()),
                    tuple(m.deviation for m in measures.values()),
                )
            )
    if not curves:
        return None
    severities = sorted({x for curve in curves for x, _ in curve.points})
    x_axis = Axis("severity", severities[0] - 0.3, severities[-1] + 0.3, tuple(severities))
    y_axis = axis_from_zero(_ERROR, [y for curve in curves for _, y in curve.points])
    svg = draw_curves("error by severity", curves, looks, (x_axis, y_axis))
    return Figure("mean over corruptions", svg, tuple(curve.label for curve in curves))


def severity_errors(row: Row) -> dict[int, list[float]]:
    """Return the mean error over corruptions at each severity, one for each seed.

    One for all, if the seed changes nothing.
    """
    found: dict[int, list[float]] = {}
    for outcome in row.outcomes[:1] if row.ignores_seed else row.outcomes:
        own: dict[int, list[float]] = {}
        for domain, error in domain_errors(outcome).items():
            severity = split_domain(domain, outcome.entry.spec)[1]
            if severity is not None:
                own.setdefault(severity, []).append(error)
        for severity, errors in own.items():
            found.setdefault(severity, []).append(statistics.fmean(errors))
    return dict(sorted(found.items()))


def draw_costs(group: Group, looks: Mapping[str, Look]) -> tuple[Figure, ...]:
    """Return charts of the mean error against time per image, and against memory if it is known."""
    rows = list_drawn(group)
    times = [(row.label, row.ms_per_image, row.mean.mean) for row in rows]
    sizes = [
        (row.label, row.peak_memory / 1e6, row.mean.mean)
        for row in rows
        if row.peak_memory is not None
    ]
    charts = (("against time per image", "ms per image", times), ("against memory", "MB", sizes))
    figures = []
    for title, name, points in charts:
        if points:
            axes = (
                best_axis(name, [x for _, x, _ in points]),
                axis_around("mean error, %", [y for _, _, y in points]),
            )
            svg = draw_points(f"mean error {title}", points, looks, axes)
            figures.append(Figure(title, svg, tuple(label for label, _, _ in points)))
    return tuple(figures)


def draw_ranking(ranking: Ranking, looks: Mapping[str, Look]) -> Figure:
    """Return a chart of how far each method is behind the first, with intervals."""
    items: list[tuple[str, float, tuple[float, float] | None]] = []
    for place in ranking.places:
        far = place.to_first
        if far is None:
            items.append((place.row.label, 0.0, None))
        else:
            interval = (far.low, far.high) if far.has_interval else None
            items.append((place.row.label, far.value, interval))
    ends = [end for _, value, interval in items for end in (value, *(interval or ()))]
    svg = draw_intervals(
        "error above that of the first",
        items,
        looks,
        axis_around("points above the first", ends),
    )
    return Figure("distance from the first", svg, tuple(label for label, *_ in items))


def _batches(row: Row) -> dict[str, list[tuple[int, int]]]:
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


def _stream_curve(label: str, counts: Sequence[tuple[int, int]]) -> Curve:
    values = smooth(counts, window_of(len(counts)))
    step = max(1, -(-len(values) // MOST_POINTS))
    chosen = sorted({*range(0, len(values), step), len(values) - 1})
    return Curve(label, tuple((i + 1.0, values[i]) for i in chosen), marks=False)


def _batch_axis(n: int) -> Axis:
    step = max(1, round(find_ticks(n, 5)[1]))
    ticks = sorted({1, *range(step, n + 1, step)})
    return Axis("batch", 1, max(n, 2), tuple(map(float, ticks)))
