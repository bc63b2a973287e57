"""Charts of a bench as inline SVG: curves, points and intervals, told apart by more than colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from acclimate.bench.reports.axes import Axis, Plot, draw_axes
from acclimate.report.charts import N_COLOURS, draw_line, draw_marker

# Widths of letters in a chart, on average, in its own units.
_LETTER = 5.6
_LINE = 11.0
_MOST_LETTERS = 24
_MOST_NAMED = 4


@dataclass(frozen=True)
class Look:
    """How a method is drawn: a colour for a few, dashes and a marker for all."""

    colour: str
    index: int


@dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes:
        label: Of its method.
        points: Pairs of x and y.
        spreads: Standard deviation of y at each point; empty for none.
        marks: Whether each point has a marker, or the last only.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    spreads: tuple[float | None, ...] = ()
    marks: bool = True


def assign_looks(labels: Sequence[str], reference: str | None = None) -> dict[str, Look]:
    """Return a look for each label: the reference in black, the first few coloured, others grey.

    Args:
        labels: The most important first.
        reference: Label of the source model.
    """
    looks = {} if reference is None else {reference: Look("ref", 0)}
    others = [label for label in labels if label != reference]
    for index, label in enumerate(others, start=1):
        colour = f"c{index}" if index < N_COLOURS else "other"
        looks[label] = Look(colour, index)
    return {label: looks[label] for label in labels}


def draw_curves(
    title: str, curves: Sequence[Curve], looks: Mapping[str, Look], axes: tuple[Axis, Axis]
) -> str:
    """Return a chart of lines; those of the first labels lie on top."""
    plot = Plot(*axes)
    ends = [f"{curve.label} {curve.points[-1][1]:.1f} %" for curve in curves]
    parts = [draw_axes(plot)]
    order = sorted(curves, key=lambda curve: -looks[curve.label].index)
    parts += [_curve(plot, curve, looks[curve.label]) for curve in order]
    return _picture(plot, f"{title}; at the end: {_list(ends)}", parts)


def draw_points(
    title: str,
    points: Sequence[tuple[str, float, float]],
    looks: Mapping[str, Look],
    axes: tuple[Axis, Axis],
) -> str:
    """Return a chart of one point a label; labels stand beside the points where there is room."""
    plot = Plot(*axes, height=260)
    places = [(label, plot.x(x), plot.y(y)) for label, x, y in points]
    taken = [(x - 4, y - 4, x + 4, y + 4) for _, x, y in places]
    parts = []
    for (label, x, y), (_, x_value, y_value) in zip(places, points, strict=True):
        look = looks[label]
        tag = _tag(plot, label, x, y, taken)
        about = f"{label}: {y_value:.1f} % at {x_value:.3g}"
        parts.append(
            f'<g class="series {look.colour}" data-label="{escape(label)}">'
            f"{draw_marker(look.index, x, y, about, 4)}{tag}</g>"
        )
    told = [f"{label} {y:.1f} % at {x:.3g}" for label, x, y in points]
    return _picture(plot, f"{title}: {_list(told)}", [draw_axes(plot), *reversed(parts)])


def draw_intervals(
    title: str,
    items: Sequence[tuple[str, float, tuple[float, float] | None]],
    looks: Mapping[str, Look],
    x_axis: Axis,
) -> str:
    """Return a chart of one line a label: a marker at the value, a bar over its interval if any."""
    row = 20.0
    widest = max(len(_cut(label)) for label, *_ in items)
    height = row * len(items) + 56
    left = 12 + _LETTER * widest
    plot = Plot(x_axis, Axis("", 0, len(items), ()), height=height, left=left, top=22)
    zero = plot.x(min(max(0.0, x_axis.low), x_axis.high))
    base = height - plot.bottom
    parts = [
        *(
            f'<path class="grid" d="M{plot.x(tick):.1f} {plot.top:g}V{base:.1f}"/>'
            for tick in x_axis.ticks
        ),
        draw_axes(plot),
        f'<path class="zero" d="M{zero:.1f} {plot.top:g}V{base:.1f}"/>',
    ]
    for index, (label, value, interval) in enumerate(items):
        y = plot.top + row * (index + 0.5)
        look = looks[label]
        about, bar = f"{label}: {value:+.2f} points", ""
        if interval is not None:
            low, high = interval
            about += f", 95 % interval {low:+.2f} to {high:+.2f}"
            bar = f'<path class="range" d="M{plot.x(low):.1f} {y:.1f}H{plot.x(high):.1f}"/>'
        parts.append(
            f'<g class="series {look.colour}" data-label="{escape(label)}">'
            f'<text class="item" x="{left - 8:.1f}" y="{y:.1f}" dy="0.32em" text-anchor="end">'
            f"{escape(_cut(label))}</text>{bar}"
            f"{draw_marker(look.index, plot.x(value), y, about, 3.6)}</g>"
        )
    told = [f"{label} {value:+.1f}" for label, value, *_ in items]
    return _picture(plot, f"{title}: {_list(told)}", parts)


def draw_legend(labels: Sequence[str], looks: Mapping[str, Look]) -> str:
    """Return a list of labels, each with its line and marker; the page makes buttons of them."""
    items = []
    for label in labels:
        look = looks[label]
        key = draw_line("1,7 33,7", look.index) + draw_marker(look.index, 17, 7, size=4)
        items.append(
            f'<li data-label="{escape(label)}"><svg class="key" viewBox="0 0 34 14" '
            f'aria-hidden="true"><g class="series {look.colour}">{key}</g></svg>'
            f"<span>{escape(label)}</span></li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _curve(plot: Plot, curve: Curve, look: Look) -> str:
    places = [(plot.x(x), plot.y(y)) for x, y in curve.points]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    bars = (
        "".join(
            f'<path class="whisker" d="M{x:.1f} {plot.y(max(y - spread, plot.y_axis.low)):.1f}'
            f'V{plot.y(min(y + spread, plot.y_axis.high)):.1f}"/>'
            for (x, _), (_, y), spread in zip(places, curve.points, curve.spreads, strict=True)
            if spread is not None
        )
        if curve.spreads
        else ""
    )
    shown = list(enumerate(places)) if curve.marks else [(len(places) - 1, places[-1])]
    marks = "".join(
        draw_marker(look.index, x, y, f"{curve.label}: {curve.points[i][1]:.1f} %", 3)
        for i, (x, y) in shown
    )
    return (
        f'<g class="series {look.colour}" data-label="{escape(curve.label)}">'
        f"<title>{escape(curve.label)}</title>{draw_line(joined, look.index, 1.6)}{bars}{marks}</g>"
    )


def _tag(
    plot: Plot, label: str, x: float, y: float, taken: list[tuple[float, float, float, float]]
) -> str:
    """Return the label beside its point; if all places are taken, hidden until asked for."""
    text = _cut(label)
    width = _LETTER * len(text)
    candidates = (
        (x + 7, y, "start"),
        (x - 7, y, "end"),
        (x, y - 11, "middle"),
        (x, y + 11, "middle"),
        (x + 6, y - 10, "start"),
        (x + 6, y + 10, "start"),
        (x - 6, y - 10, "end"),
        (x - 6, y + 10, "end"),
    )
    chosen, crowded = candidates[0], " crowded"
    if x + 7 + width > plot.width:
        chosen = candidates[1]
    for at, level, anchor in candidates:
        start = {"start": at, "middle": at - width / 2, "end": at - width}[anchor]
        box = (start, level - _LINE / 2, start + width, level + _LINE / 2)
        inside = box[0] >= plot.left and box[2] <= plot.width and box[1] >= plot.top - 8
        inside = inside and box[3] <= plot.height - plot.bottom
        own = (x - 4, y - 4, x + 4, y + 4)
        if inside and not any(_overlap(box, other) for other in taken if other != own):
            taken.append(box)
            chosen, crowded = (at, level, anchor), ""
            break
    at, level, anchor = chosen
    return (
        f'<text class="tag{crowded}" x="{at:.1f}" y="{level:.1f}" dy="0.32em" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _overlap(
    one: tuple[float, float, float, float], two: tuple[float, float, float, float]
) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def _picture(plot: Plot, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {plot.width:g} {plot.height:g}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _list(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + more


def _cut(label: str) -> str:
    return label if len(label) <= _MOST_LETTERS else f"{label[: _MOST_LETTERS - 1]}…"
