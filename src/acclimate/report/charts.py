"""Charts as SVG: curves, points, intervals and layers; one palette, for pages and for files.

Labels are distinguished by a colour for the first few, and by dashes and markers for all. Colours
come from the style sheet of the page, or of the picture that `compose` makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from acclimate.report.table import render

#: Colours by name: on light and on dark ground.
PALETTE = {
    "ink": ("#1d2129", "#e7e8ea"),
    "soft": ("#565d6b", "#a9b0bc"),
    "paper": ("#fcfcfa", "#14171c"),
    "card": ("#f2f2ee", "#1d2127"),
    "line": ("#d9d9d2", "#363c46"),
    "accent": ("#00618f", "#7cc4f0"),
    "right": ("#00694c", "#63d3a6"),
    "wrong": ("#a8320b", "#ff9a76"),
    "best": ("#e6f1ec", "#1b3029"),
    "c0": ("#5f6570", "#a7adb8"),
    "c1": ("#0072b2", "#5ab4ea"),
    "c2": ("#c44e00", "#f2924a"),
    "c3": ("#00805d", "#34c79a"),
    "c4": ("#7b4a9c", "#c39be0"),
    "c5": ("#8a6500", "#dcb64a"),
    "c6": ("#b03a78", "#f091c2"),
    "c7": ("#33506b", "#9cb8d6"),
    "c8": ("#a11d2f", "#ff8d9b"),
    "c9": ("#3f7d20", "#9fd07c"),
}
#: Number of colours for classes of points.
N_COLOURS = 10
#: Positive values are shown on a logarithmic axis if the largest is so many times the smallest.
LOG_FROM = 10.0

Place = tuple[float, float]

_N_LABEL_COLOURS = 7  # labels beyond them are grey
_DASHES = ("", "6 3", "2 3", "8 3 2 3")  # with five markers: twenty lines before a pair is repeated
LETTER, _LINE = 5.6, 11.0  # mean width of a letter, and height of a line
_MOSTLETTERS = 24
_MOST_NAMED = 4
_GAP, _HEAD, _CAPTION = 18.0, 30.0, 34.0  # of a composed picture


@dataclass(frozen=True)
class Look:
    """How a label is drawn: its colour, and the index of its dashes and marker."""

    colour: str
    index: int


class Curve(NamedTuple):
    """A line of a chart.

    `spreads` are standard deviations of y at each point. Without `marks` only the last point has a
    marker.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    spreads: tuple[float | None, ...] = ()
    marks: bool = True


class Dot(NamedTuple):
    """A point of a chart, with a description and, if it stands for several, a bar over them."""

    label: str
    x: float
    y: float
    about: str = ""
    ends: tuple[Place, Place] | None = None


@dataclass(frozen=True)
class Layer:
    """A parameter tensor of a model and how strongly its updates are damped.

    Attributes:
        name: As in `named_parameters()`.
        kind: Its role in the model; layers of one kind look alike.
        penalties: From 0, free, to 1, damped most; one for each seed.
    """

    name: str
    kind: str
    penalties: tuple[float, ...]


@dataclass(frozen=True)
class Axis:
    """An axis: its name with the unit, its ends, and what is written where beside it.

    `texts` belong to the ticks; without them the ticks are written as numbers.
    """

    name: str
    low: float
    high: float
    ticks: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    is_log: bool = False

    @property
    def labels(self) -> Iterable[tuple[float, str]]:
        """The ticks with their texts."""
        return zip(self.ticks, self.texts or format_ticks(self.ticks), strict=True)

    def share(self, value: float) -> float:
        """Return where a value is, from 0 at the first end to 1 at the other."""
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return (at - low) / (high - low) if high != low else 0.5


@dataclass(frozen=True)
class Plot:
    """The rectangle of a chart inside its picture, with its axes."""

    x_axis: Axis
    y_axis: Axis
    width: float
    height: float
    left: float
    top: float = 22

    @property
    def base(self) -> float:
        """The vertical position of the x axis."""
        return self.height - 34

    @property
    def end(self) -> float:
        """The horizontal position of the end of the x axis."""
        return self.width - 12

    def at(self, place: Place) -> Place:
        """Return where a pair of values is drawn."""
        x = self.left + self.x_axis.share(place[0]) * (self.end - self.left)
        return x, self.base - self.y_axis.share(place[1]) * (self.base - self.top)


class Chart(NamedTuple):
    """A chart: the words above it, the picture, what is drawn and how, its size, a line below."""

    title: str
    svg: Markup
    looks: Mapping[str, Look]
    size: tuple[float, float]
    note: str = ""


def assign_looks(labels: Sequence[str], reference: str | None = None) -> dict[str, Look]:
    """Return a look for each label, the most important first: some coloured, the others grey.

    The reference, which is the source model, is black.
    """
    others = [label for label in labels if label != reference]
    looks = {
        label: Look(f"c{index}" if index <= _N_LABEL_COLOURS else "other", index)
        for index, label in enumerate(others, start=1)
    }
    return looks if reference not in labels else {**looks, str(reference): Look("ref", 0)}


# Axes


def find_ticks(low: float, high: float, n: int = 5) -> tuple[float, ...]:
    """Return round numbers around a range, from one not above it to one not below it.

    >>> find_ticks(0, 0.83, 4), find_ticks(0, 47), find_ticks(-2, 9)
    ((0.0, 0.5, 1.0), (0.0, 10.0, 20.0, 30.0, 40.0, 50.0), (-5.0, 0.0, 5.0, 10.0))
    """
    power = 10.0 ** math.floor(math.log10((high - low) / n))
    step = next(power * f for f in (1, 2, 5, 10) if (high - low) / (power * f) <= n)
    first, last = math.floor(round(low / step, 9)), math.ceil(round(high / step, 9))
    return tuple(round(step * index, 9) for index in range(first, last + 1))


def linear_axis(name: str, values: Sequence[float], from_zero: bool = True) -> Axis:
    """Return a linear axis between round numbers: from zero, or around the values."""
    low, high = (0.0, max(values, default=0.0) or 1.0) if from_zero else (min(values), max(values))
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    ticks = find_ticks(low, high)
    return Axis(name, ticks[0], ticks[-1], ticks)


def axis_of_counts(name: str, n: int) -> Axis:
    """Return an axis of whole numbers from 1 to n: its ticks are 1 and multiples of a round one."""
    step = max(1, round(find_ticks(0, n)[1]))
    return Axis(name, 1, max(n, 2), tuple(map(float, sorted({1, *range(step, n + 1, step)}))))


def log_axis(name: str, values: Sequence[float]) -> Axis:
    """Return a logarithmic axis around positive values, with ticks at 1, 2 and 5 or at powers."""
    low, high = min(values) / 1.25, max(values) * 1.25
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
        ticks = [float(f"{f}e{power}") for power in decades for f in factors]
        inside = tuple(tick for tick in ticks if low <= tick <= high)
        if len(inside) >= 3:
            break
    return Axis(f"{name}, log scale", low, high, inside, is_log=True)


def best_axis(name: str, values: Sequence[float]) -> Axis:
    """Return a logarithmic axis if the values span much, else a linear one, from zero if it can."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= LOG_FROM:
        return log_axis(name, values)
    return linear_axis(name, values, from_zero=low >= 0)


def format_ticks(values: Sequence[float]) -> tuple[str, ...]:
    """Return short texts of the numbers along an axis, all in one notation.

    >>> format_ticks([-2.5, 0, 250]), format_ticks([0.001, 0.01])
    (('−2.5', '0', '250'), ('0.001', '0.01'))
    >>> format_ticks([0, 0.00025, 0.001, 10])
    ('0', '2.5e-4', '1e-3', '1e1')
    """
    if not any(0 < abs(value) < 0.001 for value in values):
        return tuple(f"{value:g}".replace("-", "−") for value in values)
    parts = [f"{value:.5e}".split("e") for value in values]
    texts = [f"{float(digits):g}e{int(power)}" for digits, power in parts]
    return tuple(text if value else "0" for text, value in zip(texts, values, strict=True))


# Charts


def draw_dots(
    title: str,
    dots: Sequence[Dot],
    looks: Mapping[str, Look],
    axes: tuple[Axis, Axis],
    *,
    size: tuple[float, float] = (340, 240),
    left: float = 36,
    radius: float = 3,
    lines: Mapping[str, Sequence[Place]] | None = None,
    bars: str = "range",
    has_tags: bool = False,
    about: str = "",
    note: str = "",
) -> Chart:
    """Return a chart of points, with lines through them; those of the first labels are on top.

    A page can find a point again in another chart by its place among the points.

    Args:
        title: The words above the chart.
        dots: Any number for each label.
        looks: Of at least their labels.
        axes: Of x and y.
        size: Width and height.
        left: Room for the texts of the y axis.
        radius: Of the markers.
        lines: Corners of a line by label.
        bars: Class of the bars in the style sheet.
        has_tags: Whether labels are written beside their first point, where they fit.
        about: What a screen reader is told besides the title.
        note: Words below the title.
    """
    plot = Plot(*axes, *size, left)
    places = [plot.at((dot.x, dot.y)) for dot in dots]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    drawn: dict[str, list[Markup]] = {dot.label: [_title(dot.label)] for dot in dots}
    for label, corners in (lines or {}).items():
        path = " ".join("{:.1f},{:.1f}".format(*plot.at(corner)) for corner in corners)
        drawn[label].append(_line(path, looks[label].index))
    for number, (dot, place) in enumerate(zip(dots, places, strict=True)):
        own, look = drawn[dot.label], looks[dot.label]
        if dot.ends is not None:
            ends = (*plot.at(dot.ends[0]), *plot.at(dot.ends[1]))
            own.append(_path(bars, "M{:.1f} {:.1f}L{:.1f} {:.1f}".format(*ends)))
        own.append(draw_marker(look.index, *place, dot.about, radius, number))
        if has_tags:
            own.append(_draw_tag(plot, dot.label, *place, taken))
    shown = {label: looks[label] for label in drawn}
    order = sorted(shown, key=lambda label: -looks[label].index)
    parts = [_series(looks[label], label, *drawn[label]) for label in order]
    named, box = ": ".join(filter(None, (title, about or note))), "0 0 {:g} {:g}".format(*size)
    names = {"class_": "chart", "viewBox": box, "role": "img", "aria_label": named}
    return Chart(title, _tag("svg", _draw_axes(plot), *parts, **names), shown, size, note)


def draw_curves(
    title: str, curves: Sequence[Curve], looks: Mapping[str, Look], axes: tuple[Axis, Axis]
) -> Chart:
    """Return a chart of lines."""
    dots, (low, high) = [], (axes[1].low, axes[1].high)
    for label, points, spreads, has_marks in curves:
        for (x, y), spread in zip_longest(points, spreads):
            ends = None
            if spread is not None:
                ends = ((x, max(y - spread, low)), (x, min(y + spread, high)))
            if has_marks or ends or (x, y) == points[-1]:
                dots.append(Dot(label, x, y, f"{label} at {x:g}: {y:.1f} %", ends))
    about = list_few([f"{curve.label} {curve.points[-1][1]:.1f} %" for curve in curves])
    lines, about = {curve.label: curve.points for curve in curves}, f"at the end: {about}"
    return draw_dots(title, dots, looks, axes, lines=lines, bars="whisker", about=about)


def draw_layers(
    title: str, layers: Sequence[Layer], size: tuple[float, float], note: str = ""
) -> Chart:
    """Return a chart of penalties by layer: a marker at the mean over seeds, a bar for their range.

    Layers are in the order of the model; those with the same first name are named together.
    """
    n, dots = len(layers), []
    groups: dict[str, list[int]] = {}
    for x, (name, kind, penalties) in enumerate(map(astuple, layers), start=1):
        mean, ends = sum(penalties) / len(penalties), ((x, min(penalties)), (x, max(penalties)))
        text = f"{name} ({kind}): {mean:.3f}" if kind else f"{name}: {mean:.3f}"
        dots.append(Dot(kind, x, mean, text, ends if len(penalties) > 1 else None))
        groups.setdefault(name.partition(".")[0], []).append(x)
    # Other colours than those of the first methods.
    kinds = dict.fromkeys(layer.kind for layer in layers)
    looks = {kind: Look(f"c{(4 + i) % 8}", i) for i, kind in enumerate(kinds)}
    middles = tuple(sum(own) / len(own) for own in groups.values())
    # Names that are wider than their group are left out.
    room = (size[0] - 50) / n / LETTER  # letters for each layer
    names = tuple(name if room * len(own) > len(name) else "" for name, own in groups.items())
    x_axis = Axis("parameter tensor, input to output", 0.3, n + 0.7, middles, names)
    y_axis = linear_axis("penalty", [value for own in layers for value in own.penalties])
    top = max(layers, key=lambda layer: sum(layer.penalties))
    about = f"{n} parameter tensors; the highest is that of {top.name}"
    radius, axes = 3 if size[0] > 300 else 1.8, (x_axis, y_axis)
    return draw_dots(title, dots, looks, axes, size=size, radius=radius, about=about, note=note)


def compose(
    title: str, charts: Sequence[Chart], n_columns: int, legend: Mapping[str, Look] | None = None
) -> str:
    """Return one picture of several charts, row by row, as a file that needs no style sheet."""
    width = max(chart.size[0] for chart in charts) + _GAP
    height = max(chart.size[1] for chart in charts) + _CAPTION + _GAP
    n_columns = min(n_columns, len(charts))
    whole = _GAP + n_columns * width
    x, y, keys = _GAP, _HEAD, []
    for label, look in (legend or {}).items():
        needed = 46 + 6.4 * len(label)
        if x > _GAP and x + needed > whole - _GAP:
            x, y = _GAP, y + 18
        keys.append({"x": x, "y": y, "look": look, "label": label, "key": draw_key(look)})
        x += needed
    top = y + 24 if keys else _HEAD
    panels = []
    for index, chart in enumerate(charts):
        row, column = divmod(index, n_columns)
        # A picture in a picture needs a place and a size.
        place = Markup('<svg y="{:g}" width="{:g}" height="{:g}" ').format(_CAPTION, *chart.size)
        svg = Markup(chart.svg.replace(Markup("<svg "), place, 1))
        at = {"x": _GAP + column * width, "y": top + row * height}
        panels.append({**at, "chart": chart, "svg": svg})
    size = (whole, top + -(-len(charts) // n_columns) * height)
    shown = {"title": title, "size": size, "keys": keys, "panels": panels}
    return str(render("figure.svg", palette=PALETTE, **shown))


# Parts


def list_looks(charts: Sequence[Chart]) -> list[tuple[str, Look]]:
    """Return the labels of charts with their looks, for a common legend."""
    looks = {label: look for chart in charts for label, look in chart.looks.items()}
    return sorted(looks.items(), key=lambda item: item[1].index)


def draw_key(look: Look, with_line: bool = True) -> Markup:
    """Return the line and marker of a legend, 34 by 14."""
    line = _line("1,7 33,7", look.index, "1.8") if with_line else Markup()
    return line + draw_marker(look.index, 17, 7, size=4)


_CORNERS = (
    "",  # a circle
    "M{l} {t}H{r}V{b}H{l}Z",  # square
    "M{l} {b}H{r}L{x} {t}Z",  # triangle
    "M{x} {T}L{R} {y}L{x} {B}L{L} {y}Z",  # diamond
    "M{l} {t}H{r}L{x} {b}Z",  # triangle, point down
)


def draw_marker(
    index: int, x: float, y: float, about: str = "", size: float = 3, number: int | str = ""
) -> Markup:
    """Return a marker at a place; the index chooses its shape."""
    shape, more = _CORNERS[index % len(_CORNERS)], {"class_": "mark", "data_point": number}
    if not shape:
        return _tag("circle", _title(about), **more, cx=float(x), cy=float(y), r=f"{size:g}")
    near = {"l": x - size, "r": x + size, "t": y - size, "b": y + size, "x": x, "y": y}
    far = {"L": x - 1.3 * size, "R": x + 1.3 * size, "T": y - 1.3 * size, "B": y + 1.3 * size}
    path = shape.format(**{key: f"{value:.1f}" for key, value in (near | far).items()})
    return _tag("path", _title(about), **more, d=path)


def _draw_axes(plot: Plot) -> Markup:
    parts = []
    has_rows = bool(plot.y_axis.texts)  # the grid crosses the axis that has numbers
    for tick, text in plot.y_axis.labels:
        _, y = plot.at((plot.x_axis.low, tick))
        if not has_rows:
            parts.append(_path("grid", f"M{plot.left:g} {y:.1f}H{plot.end:g}"))
        parts.append(_text("tick", plot.left - 5, y, text, "end", "0.32em"))
    parts.append(_path("axis", f"M{plot.left:g} {plot.base:.1f}H{plot.end:g}"))
    for tick, text in plot.x_axis.labels:
        x, _ = plot.at((tick, plot.y_axis.low))
        if has_rows:
            parts.append(_path("grid", f"M{x:.1f} {plot.top:g}V{plot.base:.1f}"))
        parts.append(_path("axis", f"M{x:.1f} {plot.base:.1f}v4"))
        parts.append(_text("tick", x, plot.base + 6, text, "middle", "0.8em"))
    parts.append(_text("name", 2, 10, plot.y_axis.name))
    parts.append(_text("name", plot.end, plot.height - 3, plot.x_axis.name, "end"))
    return Markup().join(parts)


_TAG_PLACES = (
    *((7, 0, "start"), (-7, 0, "end"), (0, -11, "middle"), (0, 11, "middle")),
    *((6, -10, "start"), (6, 10, "start"), (-6, -10, "end"), (-6, 10, "end")),
)


def _draw_tag(
    plot: Plot, label: str, x: float, y: float, taken: list[tuple[float, float, float, float]]
) -> Markup:
    """Return the label beside its point; if all places are taken, hidden until it is needed."""
    text = cut(label)
    width = LETTER * len(text)
    for right, down, anchor in _TAG_PLACES:
        start = x + right - {"start": 0, "middle": width / 2, "end": width}[anchor]
        box = (start, y + down - _LINE / 2, start + width, y + down + _LINE / 2)
        is_inside = start >= plot.left and box[2] <= plot.width and box[1] >= plot.top - 8
        own = (x - 4, y - 4, x + 4, y + 4)
        covers = any(_overlap(box, other) for other in taken if other != own)
        if is_inside and box[3] <= plot.base and not covers:
            taken.append(box)
            return _text("tag", x + right, y + down, text, anchor, "0.32em")
    right, anchor = (-7, "end") if x + 7 + width > plot.width else (7, "start")
    return _text("tag crowded", x + right, y, text, anchor, "0.32em")


def _overlap(one: Sequence[float], two: Sequence[float]) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


# Elements


def _tag(name: str, *inside: Markup, **attributes: Any) -> Markup:
    """Return an element with its attributes escaped; those without a value are left out.

    >>> _tag("text", Markup("1"), class_="tick", x=0.25, text_anchor="")
    Markup('<text class="tick" x="0.2">1</text>')
    """
    texts = [f"<{name}"]
    for key, value in attributes.items():
        if value != "":
            text = f"{value:.1f}" if isinstance(value, float) else escape(value)
            texts.append(
                f' {key if key == "viewBox" else key.strip("_").replace("_", "-")}="{text}"'
            )
    texts += [">", *inside, f"</{name}>"] if inside else ["/>"]
    return Markup("".join(texts))


def _series(look: Look, label: str, *parts: Markup) -> Markup:
    return _tag("g", *parts, class_=f"series {look.colour}", data_label=label)


def _path(kind: str, path: str, *inside: Markup) -> Markup:
    return _tag("path", *inside, class_=kind, d=path)


def _title(text: str) -> Markup:
    return Markup("<title>{}</title>").format(text) if text else Markup()


def _line(points: str, index: int, width: str = "1.6") -> Markup:
    dashes = _DASHES[index % len(_DASHES)]
    return _tag("polyline", points=points, stroke_width=width, stroke_dasharray=dashes)


def _text(kind: str, x: float, y: float, text: str, anchor: str = "", shift: str = "") -> Markup:
    place = {"x": float(x), "y": float(y), "text_anchor": anchor, "dy": shift}
    return _tag("text", Markup.escape(text), class_=kind, **place)


def list_few(texts: Sequence[str]) -> str:
    """Return the first texts, and how many more there are."""
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + more


def cut(label: str) -> str:
    """Return a label that is short enough for a chart."""
    return label if len(label) <= _MOSTLETTERS else f"{label[: _MOSTLETTERS - 1]}…"
