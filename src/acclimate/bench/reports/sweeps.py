"""Charts of the error along what a suite varies, such as a learning rate."""

from __future__ import annotations

import re
from typing import Any

from acclimate.bench.reports.axes import axis_from_zero, best_axis
from acclimate.bench.reports.draw import Curve, Look, assign_looks, draw_curves
from acclimate.bench.reports.plots import Figure
from acclimate.bench.reports.tabulate import Group, Row


def list_axes(group: Group) -> tuple[str, ...]:
    """Return what the suite varies, as far as these are numbers and make a line in a chart."""
    names = dict.fromkeys(name for row in group.rows for name in row.outcomes[0].entry.axes)
    return tuple(name for name in names if name != "seed" and axis_lines(group, name))


def draw_axis(group: Group, name: str) -> tuple[Figure, dict[str, Look]]:
    """Return a chart of the mean error along an axis of the suite, and the looks of its lines."""
    lines = axis_lines(group, name)
    curves = [
        Curve(
            label,
            tuple((x, row.mean.mean) for x, row in points),
            tuple(row.mean.deviation for _, row in points),
        )
        for label, points in lines.items()
    ]
    curves.sort(key=lambda curve: min(y for _, y in curve.points))
    xs = [x for curve in curves for x, _ in curve.points]
    flat = [row for row in group.rows if row.is_reference and _axis_value(row, name) is None]
    for row in flat[:1]:  # the source model has no such option: a level line
        curves.append(
            Curve(row.label, ((min(xs), row.mean.mean), (max(xs), row.mean.mean)), marks=False)
        )
    looks = assign_looks([curve.label for curve in curves], flat[0].label if flat else None)
    y_axis = axis_from_zero("mean error, %", [y for curve in curves for _, y in curve.points])
    svg = draw_curves(f"mean error by {name}", curves, looks, (best_axis(name, xs), y_axis))
    return Figure(f"against {name}", svg, tuple(curve.label for curve in curves)), looks


def axis_lines(group: Group, name: str) -> dict[str, list[tuple[float, Row]]]:
    """Return the rows along an axis by line: those whose labels differ in the axis only.

    A row that is alone is no line, and left out.
    """
    lines: dict[str, list[tuple[float, Row]]] = {}
    for row in group.rows:
        value = _axis_value(row, name)
        if value is None:
            continue
        label = without_axis(row.label, name, row.outcomes[0].entry.axes[name]) or row.method
        own = lines.setdefault(label, [])
        if any(x == value for x, _ in own):  # two rows at one place: these are not one line
            own = lines.setdefault(row.label, [])
        own.append((value, row))
    return {
        label: sorted(points, key=lambda point: point[0])
        for label, points in lines.items()
        if len(points) > 1
    }


def without_axis(label: str, name: str, value: Any) -> str:
    """Return a label without what it says of an axis.

    >>> without_axis("tent, lr 0.001", "lr", 0.001), without_axis("tent (lr 1e-05)", "lr", 1e-5)
    ('tent', 'tent')
    >>> without_axis("SWR (lr 0.01, images 8)", "options.lr", 0.01)
    'SWR (images 8)'
    """
    number = to_number(value)
    texts = {str(value), *([] if number is None else [f"{number:g}", str(number)])}
    names = {name, name.rpartition(".")[2]}
    told = {f"{one} {text}" for one in names for text in texts}
    told |= {f"{one}={text}" for one in names for text in texts}
    bracketed = re.fullmatch(r"(.*) \((.*)\)", label)
    if bracketed is None:
        return ", ".join(part for part in label.split(", ") if part not in told)
    kept = ", ".join(part for part in bracketed[2].split(", ") if part not in told)
    return f"{bracketed[1]} ({kept})" if kept else bracketed[1]


def to_number(value: Any) -> float | None:
    """Return a number, or the only number of a list; None for anything else."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _axis_value(row: Row, name: str) -> float | None:
    return to_number(row.outcomes[0].entry.axes.get(name))
