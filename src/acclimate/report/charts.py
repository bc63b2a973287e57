"""Charts as inline SVG. Colours and fonts come from the page's style sheet, by class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from acclimate.report.content import Layer

#: Colours in the style sheet.
N_COLOURS = 8
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
_KINDS_FROM = 4  # kinds of layers take other colours than the first methods


@dataclass(frozen=True)
class Series:
    """One line of a chart: a label and a value at each place from 1 on."""

    label: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class _Frame:
    """The rectangle of a chart inside its picture, and what its edges stand for."""

    width: float
    height: float
    x_range: tuple[float, float]
    y_high: float
    left: float = 36
    right: float = 10
    top: float = 22
    bottom: float = 34

    def x(self, value: float) -> float:
        low, high = self.x_range
        share = (value - low) / (high - low) if high > low else 0.5
        return self.left + share * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        share = value / self.y_high if self.y_high > 0 else 0.0
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)


def find_ticks(high: float, n: int = 5) -> list[float]:
    """Return round numbers from 0 to the first that is not below `high`, at most `n` steps apart.

    >>> find_ticks(0.83, 4), find_ticks(47)
    ([0.0, 0.5, 1.0], [0.0, 10.0, 20.0, 30.0, 40.0, 50.0])
    """
    if not high > 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(high / n))
    step = next(power * factor for factor in (1, 2, 5, 10) if high / (power * factor) <= n)
    n_steps = math.ceil(round(high / step, 9))
    return [round(step * index, 9) for index in range(n_steps + 1)]


def draw_lines(title: str, series: Sequence[Series], y_high: float) -> str:
    """Return a small chart of errors by batch: one line a series, all from the same zero.

    Args:
        title: What it shows, for those who cannot see it.
        series: In the order of the legend.
        y_high: Largest value of the vertical axis before rounding, so that charts can share one.
    """
    n = max(len(line.values) for line in series)
    y_ticks = find_ticks(y_high)
    frame = _Frame(320, 225, (1, n), y_ticks[-1])
    ends = ", ".join(f"{line.label} {line.values[-1]:.1f} %" for line in series)
    parts = [_y_axis(frame, y_ticks, "error, %"), _x_axis(frame, _places(n), "batch")]
    for index, line in enumerate(series):
        points = [(frame.x(i + 1), frame.y(value)) for i, value in enumerate(line.values)]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        # Later lines lie on top and are thinner, so that equal ones stay visible below them.
        size = 2.5 + 1.5 * (1 - index / len(series))
        marks = "".join(
            draw_marker(index, x, y, f"{line.label}, batch {i + 1}: {value:.1f} %", size)
            for i, ((x, y), value) in enumerate(zip(points, line.values, strict=True))
        )
        parts.append(
            f'<g class="series c{index % N_COLOURS}" data-label="{escape(line.label)}">'
            f"{draw_line(joined, index, size - 1.5)}{marks}</g>"
        )
    return _picture(frame, f"{title}: error at the end: {ends}", parts)


def draw_layers(layers: Sequence[Layer]) -> str:
    """Return a chart of penalties by layer: a marker at the mean over seeds, a bar for their range.

    Layers are in the order of the model; those with the same first name stand in one group.
    """
    kinds = list_kinds(layers)
    highest = max(max(layer.penalties) for layer in layers)
    y_ticks = find_ticks(highest)
    frame = _Frame(520, 290, (0.3, len(layers) + 0.7), y_ticks[-1], bottom=44)
    parts = [_groups(frame, layers), _y_axis(frame, y_ticks, "penalty")]
    parts.append(_x_axis(frame, _places(len(layers), 10), "parameter tensor, input to output"))
    for place, layer in enumerate(layers, start=1):
        mean = sum(layer.penalties) / len(layer.penalties)
        x, y = frame.x(place), frame.y(mean)
        low, high = frame.y(min(layer.penalties)), frame.y(max(layer.penalties))
        kind = kinds.index(layer.kind)
        parts.append(
            f'<g class="layer c{(kind + _KINDS_FROM) % N_COLOURS}" '
            f'data-label="{escape(layer.name)}">'
            f'<path class="stem" d="M{x:.1f} {frame.y(0):.1f}V{y:.1f}"/>'
            f'<path class="range" d="M{x:.1f} {low:.1f}V{high:.1f}"/>'
            f"{draw_marker(kind, x, y, f'{layer.name} ({layer.kind}): {mean:.3f}')}</g>"
        )
    top = max(layers, key=lambda layer: sum(layer.penalties))
    title = f"Penalties of {len(layers)} parameter tensors; the highest is that of {top.name}"
    return _picture(frame, title, parts)


def draw_legend(labels: Sequence[str], kinds: bool = False) -> str:
    """Return a list of labels, each with its line and marker; `kinds` for those of layers."""
    items = []
    for index, label in enumerate(labels):
        if kinds:
            box, shape = 'class="key short" viewBox="10 0 14 14"', ""
            colour = index + _KINDS_FROM
        else:
            box, shape = 'class="key" viewBox="0 0 34 14"', draw_line("1,7 33,7", index)
            colour = index
        items.append(
            f'<li><svg {box} aria-hidden="true"><g class="series c{colour % N_COLOURS}">'
            f"{shape}{draw_marker(index, 17, 7, size=4)}</g></svg>{escape(label)}</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def list_kinds(layers: Sequence[Layer]) -> list[str]:
    """Return the kinds of layers in the order in which they first come."""
    return list(dict.fromkeys(layer.kind for layer in layers))


def _picture(frame: _Frame, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {frame.width:g} {frame.height:g}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _y_axis(frame: _Frame, ticks: Sequence[float], label: str) -> str:
    end = frame.width - frame.right
    lines = "".join(
        f'<path class="grid" d="M{frame.left:g} {frame.y(tick):.1f}H{end:g}"/>'
        f'<text class="tick" x="{frame.left - 5:g}" y="{frame.y(tick):.1f}" dy="0.32em" '
        f'text-anchor="end">{tick:g}</text>'
        for tick in ticks
    )
    return f'{lines}<text class="name" x="2" y="10">{escape(label)}</text>'


def _x_axis(frame: _Frame, places: Sequence[int], label: str) -> str:
    base = frame.y(0)
    lines = "".join(
        f'<path class="axis" d="M{frame.x(place):.1f} {base:.1f}v4"/>'
        f'<text class="tick" x="{frame.x(place):.1f}" y="{base + 6:.1f}" dy="0.8em" '
        f'text-anchor="middle">{place}</text>'
        for place in places
    )
    axis = f'<path class="axis" d="M{frame.left:g} {base:.1f}H{frame.width - frame.right:g}"/>'
    return (
        f'{axis}{lines}<text class="name" x="{frame.width - frame.right:g}" '
        f'y="{frame.height - 4:g}" text-anchor="end">{escape(label)}</text>'
    )


def _places(n: int, n_ticks: int = 5) -> list[int]:
    """Return whole numbers from 1 to n to write at the axis: 1 and the multiples of a round one."""
    step = max(1, round(find_ticks(n, n_ticks)[1]))
    return sorted({1, *range(step, n + 1, step)})


def _groups(frame: _Frame, layers: Sequence[Layer]) -> str:
    """Shade every other group and name those that are wide enough for their name."""
    parts = []
    start = 0.5
    grouped = groupby(layer.name.partition(".")[0] for layer in layers)
    for index, (name, members) in enumerate(grouped):
        end = start + len(list(members))
        low, high = frame.x(start), frame.x(end)
        start = end
        if index % 2:
            parts.append(
                f'<rect class="band" x="{low:.1f}" y="{frame.top:g}" '
                f'width="{high - low:.1f}" height="{frame.y(0) - frame.top:.1f}"/>'
            )
        if high - low > 4.2 * len(name):
            parts.append(
                f'<text class="group" x="{(low + high) / 2:.1f}" y="{frame.top - 5:g}" '
                f'text-anchor="middle">{escape(name)}</text>'
            )
    return "".join(parts)


def draw_line(points: str, index: int, width: float = 1.8) -> str:
    """Return a line through points such as "1,2 3,4"; the index chooses its dashes."""
    # Four dashes and five markers: twenty lines before a pair comes again.
    dashes = _DASHES[index % len(_DASHES)]
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{points}" stroke-width="{width:.2f}"{dash}/>'


def draw_marker(index: int, x: float, y: float, title: str = "", size: float = 3) -> str:
    """Return a marker at a place; the index chooses its shape."""
    corners = (
        "",  # a circle
        "M{l} {t}H{r}V{b}H{l}Z",  # square
        "M{l} {b}H{r}L{x} {t}Z",  # triangle
        "M{x} {T}L{R} {y}L{x} {B}L{L} {y}Z",  # diamond
        "M{l} {t}H{r}L{x} {b}Z",  # triangle, point down
    )
    shape = corners[index % len(corners)]
    inside = f"<title>{escape(title)}</title>" if title else ""
    if not shape:
        return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{size:g}">{inside}</circle>'
    near = {"l": x - size, "r": x + size, "t": y - size, "b": y + size, "x": x, "y": y}
    far = {"L": x - 1.3 * size, "R": x + 1.3 * size, "T": y - 1.3 * size, "B": y + 1.3 * size}
    path = shape.format(**{key: f"{value:.1f}" for key, value in (near | far).items()})
    return f'<path class="mark" d="{path}">{inside}</path>'
