"""Axes of charts: linear or logarithmic, with round numbers at their ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from acclimate.report.charts import find_ticks

#: Positive values whose largest is so many times the smallest are shown on a logarithmic axis.
LOG_FROM = 10.0


@dataclass(frozen=True)
class Axis:
    """What an edge of a chart stands for.

    Attributes:
        name: To stand beside it, with the unit.
        low: Value at its beginning.
        high: Value at its end.
        ticks: Values to write beside it.
        is_log: Whether equal distances are equal ratios.
    """

    name: str
    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies, from 0 at the beginning to 1 at the end."""
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return (at - low) / (high - low) if high > low else 0.5


@dataclass(frozen=True)
class Plot:
    """The rectangle of a chart inside its picture, with its two axes."""

    x_axis: Axis
    y_axis: Axis
    width: float = 340
    height: float = 240
    left: float = 36
    right: float = 12
    top: float = 22
    bottom: float = 34

    def x(self, value: float) -> float:
        """Return the horizontal place of a value."""
        return self.left + self.x_axis.share(value) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Return the vertical place of a value."""
        room = self.height - self.top - self.bottom
        return self.height - self.bottom - self.y_axis.share(value) * room


def axis_from_zero(name: str, values: Sequence[float]) -> Axis:
    """Return a linear axis from zero to a round number that is not below the highest value."""
    ticks = find_ticks(max(values, default=0.0))
    return Axis(name, 0.0, ticks[-1], tuple(ticks))


def axis_around(name: str, values: Sequence[float]) -> Axis:
    """Return a linear axis between round numbers around the values, which may leave zero out."""
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    step = find_ticks(high - low, 5)[1]
    first, last = math.floor(round(low / step, 9)), math.ceil(round(high / step, 9))
    ticks = tuple(round(step * index, 9) for index in range(first, last + 1))
    return Axis(name, ticks[0], ticks[-1], ticks)


def log_axis(name: str, values: Sequence[float]) -> Axis:
    """Return a logarithmic axis around positive values, with ticks at 1, 2 and 5 or at powers."""
    low, high = min(values) / 1.25, max(values) * 1.25
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
        ticks = [float(f"{f}e{power}") for power in decades for f in factors]
        inside = tuple(tick for tick in ticks if low <= tick <= high)
        if len(inside) >= 3:
            break
    return Axis(name, low, high, inside, is_log=True)


def best_axis(name: str, values: Sequence[float]) -> Axis:
    """Return a logarithmic axis if the values span much, else a linear one from zero."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= LOG_FROM:
        return log_axis(f"{name}, log scale", values)
    return axis_from_zero(name, values) if low >= 0 else axis_around(name, values)


def draw_axes(plot: Plot) -> str:
    """Return grid, ticks and names of both axes."""
    end, base = plot.width - plot.right, plot.height - plot.bottom
    rows = "".join(
        f'<path class="grid" d="M{plot.left:g} {plot.y(tick):.1f}H{end:g}"/>'
        f'<text class="tick" x="{plot.left - 5:g}" y="{plot.y(tick):.1f}" dy="0.32em" '
        f'text-anchor="end">{tick:g}</text>'
        for tick in plot.y_axis.ticks
    )
    columns = "".join(
        f'<path class="axis" d="M{plot.x(tick):.1f} {base:.1f}v4"/>'
        f'<text class="tick" x="{plot.x(tick):.1f}" y="{base + 6:.1f}" dy="0.8em" '
        f'text-anchor="middle">{text}</text>'
        for tick, text in zip(plot.x_axis.ticks, format_ticks(plot.x_axis.ticks), strict=True)
    )
    return (
        f'{rows}<path class="axis" d="M{plot.left:g} {base:.1f}H{end:g}"/>{columns}'
        f'<text class="name" x="2" y="10">{escape(plot.y_axis.name)}</text>'
        f'<text class="name" x="{end:g}" y="{plot.height - 3:g}" text-anchor="end">'
        f"{escape(plot.x_axis.name)}</text>"
    )


def format_ticks(values: Sequence[float]) -> tuple[str, ...]:
    """Return short texts of the numbers along an axis, all in one notation.

    >>> format_ticks([-2.5, 0, 250]), format_ticks([0.001, 0.01])
    (('−2.5', '0', '250'), ('0.001', '0.01'))
    >>> format_ticks([0, 0.00025, 0.001, 10])
    ('0', '2.5e-4', '1e-3', '1e1')
    """
    if not any(0 < abs(value) < 0.001 for value in values):
        return tuple(f"{value:g}".replace("-", "−") for value in values)
    return tuple(map(_format_power, values))


def _format_power(value: float) -> str:
    if not value:
        return "0"
    digits, power = f"{value:.5e}".split("e")
    return f"{float(digits):g}".replace("-", "−") + f"e{int(power)}"
