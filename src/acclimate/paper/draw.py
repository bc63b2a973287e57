"""Pictures of several panels as SVG files that need no style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from acclimate.bench.reports.axes import Axis, Plot, draw_axes
from acclimate.bench.reports.draw import Look
from acclimate.report.charts import draw_line, draw_marker

_GAP = 18.0
_HEAD = 30.0
_CAPTION = 34.0
_LETTER = 6.4

_STYLE = """
svg { --ink: #1d2129; --soft: #565d6b; --paper: #fcfcfa; --line: #d9d9d2;
  --c0: #5f6570; --c1: #0072b2; --c2: #c44e00; --c3: #00805d; --c4: #7b4a9c; --c5: #8a6500;
  --c6: #b03a78; --c7: #33506b; --c8: #a11d2f; --c9: #3f7d20; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e7e8ea; --soft: #a9b0bc; --paper: #14171c; --line: #363c46;
    --c0: #a7adb8; --c1: #5ab4ea; --c2: #f2924a; --c3: #34c79a; --c4: #c39be0; --c5: #dcb64a;
    --c6: #f091c2; --c7: #9cb8d6; --c8: #ff8d9b; --c9: #9fd07c; } }
text { font: 10.5px system-ui, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--soft); }
.title { font-size: 15px; font-weight: 600; fill: var(--ink); }
.caption { font-size: 12px; font-weight: 600; fill: var(--ink); }
.note, .legend { font-size: 11.5px; }
.paper { fill: var(--paper); }
.grid, .axis { fill: none; stroke: var(--line); }
polyline, .whisker { fill: none; stroke: var(--own); }
.mark { fill: var(--own); }
"""

#: Colours that a picture has; more kinds of points than that share them.
N_COLOURS = 10


@dataclass(frozen=True)
class Panel:
    """One chart of a picture.

    Attributes:
        title: Above it.
        note: Below the title, such as the error.
        chart: An SVG element.
        plot: Its size.
    """

    title: str
    chart: str
    plot: Plot
    note: str = ""


def compose(
    title: str,
    panels: Sequence[Panel],
    n_columns: int,
    legend: Mapping[str, Look] | None = None,
) -> str:
    """Return one picture of several panels, row by row, with a legend if there are labels."""
    width = max(panel.plot.width for panel in panels)
    height = max(panel.plot.height for panel in panels) + _CAPTION
    n_columns = min(n_columns, len(panels))
    n_rows = -(-len(panels) // n_columns)
    whole_width = _GAP + n_columns * (width + _GAP)
    keys, legend_height = _legend(legend or {}, whole_width)
    top = _HEAD + legend_height
    whole_height = top + n_rows * (height + _GAP)
    parts = [
        f'<text class="title" x="{_GAP:g}" y="20">{escape(title)}</text>',
        f'<g transform="translate({_GAP:g} {_HEAD:g})">{keys}</g>',
    ]
    for index, panel in enumerate(panels):
        x = _GAP + (index % n_columns) * (width + _GAP)
        y = top + (index // n_columns) * (height + _GAP)
        parts.append(_place(panel, x, y))
    colours = "".join(f".c{index} {{ --own: var(--c{index}); }}\n" for index in range(N_COLOURS))
    colours += ".ref, .other { --own: var(--c0); }\n"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole_width:g}" '
        f'height="{whole_height:g}" viewBox="0 0 {whole_width:g} {whole_height:g}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{_STYLE}{colours}</style>\n'
        f'<rect class="paper" width="100%" height="100%"/>\n{"".join(parts)}</svg>\n'
    )


def scatter(
    title: str,
    points: Sequence[tuple[float, float, int, str]],
    axes: tuple[Axis, Axis],
    size: tuple[float, float] = (220, 160),
) -> tuple[str, Plot]:
    """Return a chart of points (x, y, colour, what it is), and its place.

    Args:
        title: What it shows, for those who cannot see it.
        points: The colour is a number from 0 on.
        axes: Those of x and y.
        size: Width and height.
    """
    plot = Plot(*axes, width=size[0], height=size[1])
    marks = "".join(
        f'<g class="series c{colour % N_COLOURS}">'
        f"{draw_marker(0, plot.x(x), plot.y(y), about, 1.8)}</g>"
        for x, y, colour, about in points
    )
    return (
        f'<svg class="chart" viewBox="0 0 {plot.width:g} {plot.height:g}" role="img" '
        f'aria-label="{escape(title)}">{draw_axes(plot)}{marks}</svg>',
        plot,
    )


def _place(panel: Panel, x: float, y: float) -> str:
    size = f'width="{panel.plot.width:g}" height="{panel.plot.height:g}"'
    chart = panel.chart.replace("<svg ", f'<svg x="0" y="{_CAPTION:g}" {size} ', 1)
    return (
        f'<g transform="translate({x:g} {y:g})">'
        f'<text class="caption" y="12">{escape(panel.title)}</text>'
        f'<text class="note" y="27">{escape(panel.note)}</text>{chart}</g>\n'
    )


def _legend(looks: Mapping[str, Look], width: float) -> tuple[str, float]:
    """Return the keys of a picture, in lines that fit its width, and their height."""
    x, y, parts = 0.0, 0.0, []
    for label, look in looks.items():
        needed = 46 + _LETTER * len(label)
        if x and x + needed > width - 2 * _GAP:
            x, y = 0.0, y + 18
        key = draw_line("1,7 33,7", look.index) + draw_marker(look.index, 17, 7, size=4)
        parts.append(
            f'<g transform="translate({x:g} {y:g})"><g class="series {look.colour}">{key}</g>'
            f'<text class="legend" x="40" y="11">{escape(label)}</text></g>'
        )
        x += needed
    return "".join(parts), (y + 24 if parts else 0.0)
