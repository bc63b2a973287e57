"""The figures of the paper, drawn from a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from acclimate.artifact import Artifact
from acclimate.bench.outcome import Outcome
from acclimate.errors import BadInput
from acclimate.functional.swr_nsp import penalties, shape_penalties
from acclimate.paper.experiment import Drawing, FigureContext
from acclimate.report.charts import (
    Axis,
    Chart,
    Curve,
    assign_looks,
    axis_around,
    compose,
    draw_curves,
    draw_scatter,
    log_axis,
)
from acclimate.terms.swr import SwrOptions

_VARIANTS = {
    "a": "as proposed",
    "b": "all transforms",
    "c": "exponent 1",
    "d": "exponent 3",
    "e": "flipped vertically",
    "f": "flipped horizontally",
    "g": "constant (ours)",
    "h": "linear (ours)",
    "i": "square (ours)",
    "j": "step (ours)",
}
_PENALTY_PANELS = 5


def draw_against_lr(context: FigureContext) -> Drawing:
    """Draw the error of every method against the learning rate."""
    return _draw_against(context, "learning rate")


def draw_against_samples(context: FigureContext) -> Drawing:
    """Draw the error against the number of source samples."""
    return _draw_against(context, "source samples")


def draw_penalties(context: FigureContext) -> Drawing:
    """Draw the penalties by layer of every variant, with its error, from the jobs' artifacts."""
    files, notes = {}, []
    for number, (setup, rows) in enumerate(context.table.setups.items()):
        (row,) = rows
        errors = {
            name: measure.mean
            for name, measure in zip(context.table.columns, row.ours, strict=True)
            if measure is not None
        }
        panels = []
        for outcome in _first_seed(context, setup):
            name = str(outcome.entry.axes["column"])
            weights = read_penalties(outcome, context.artifacts)
            panels.append(_penalty_panel(name, weights, errors))
            if name == "a":
                notes.append(_describe_layers(setup, weights))
        title = f"Penalties by layer, {setup}: error in %, and the difference from (a)"
        suffix = f"-{number + 1}" if number else ""
        files[f"fig-s2{suffix}.svg"] = compose(title, panels, _PENALTY_PANELS)
    return Drawing(files, notes=tuple(notes))


def read_penalties(outcome: Outcome, artifacts: Path) -> dict[str, float]:
    """Return the penalties that a job held its parameters with, in the order of the model.

    Raises:
        BadInput: The artifact of the job is not there.
    """
    path = artifacts / f"{outcome.entry.spec.artifact_key}.acclimate"
    if not path.is_file():
        raise BadInput(
            "not_found",
            f"Expected the artifact of {outcome.entry.label} at {path}, where its job wrote it, "
            "found none. Run the experiment again with an empty folder.",
            path=path,
        )
    artifact = Artifact.load(path)
    options = SwrOptions.taken_from(outcome.entry.spec.get_config())
    return {name: float(value) for name, value in _shape(artifact, options).items()}


def _shape(artifact: Artifact, options: SwrOptions) -> dict[str, Tensor]:
    weights = artifact.part("penalty")
    if options.exponent:
        weights = penalties(artifact.part("cosine"), options.exponent)
    # Files are sorted by name; the fingerprint of the model knows its order.
    order = [name for name in artifact.card["model"]["layout"] if name in weights]
    return shape_penalties({name: weights[name] for name in order}, options.shape)


def _penalty_panel(name: str, weights: Mapping[str, float], errors: Mapping[str, float]) -> Chart:
    points = [
        (float(index), value, 0, f"{layer}: {value:.3f}")
        for index, (layer, value) in enumerate(weights.items(), start=1)
    ]
    n = len(points)
    axes = (Axis("layer", 0, n + 1, (1, n)), Axis("penalty", 0, 1, (0, 0.5, 1)))
    note = ""
    if name in errors:
        away = f" ({errors[name] - errors['a']:+.2f})" if "a" in errors and name != "a" else ""
        note = f"{errors[name]:.2f}{away}"
    return draw_scatter(f"({name}) {_VARIANTS[name]}", points, axes, note=note)


def _describe_layers(setup: str, weights: Mapping[str, float]) -> str:
    values = list(weights.values())
    third = max(1, len(values) // 3)
    first, last = statistics.fmean(values[:third]), statistics.fmean(values[-third:])
    return (
        f"{setup}: {len(values)} penalties; their mean is {first:.2f} over the first third of the "
        f"layers and {last:.2f} over the last."
    )


def _first_seed(context: FigureContext, setup: str) -> list[Outcome]:
    own = [outcome for outcome in context.outcomes if outcome.entry.group == setup]
    seed = min((outcome.entry.spec.seed for outcome in own), default=0)
    return [outcome for outcome in own if outcome.entry.spec.seed == seed]


def _draw_against(context: FigureContext, name: str) -> Drawing:
    panels = []
    rows = [row for row in context.table.rows if row.is_measured]
    looks = assign_looks(list(dict.fromkeys(row.label for row in rows)))
    xs = [float(column) for column in context.table.columns]
    errors = [own.mean for row in rows for own in row.ours if own is not None]
    if not errors:
        return Drawing({}, notes=("Nothing to draw: no job has reached its end.",))
    # What matters are differences, which an axis from zero would hide.
    y_axis = axis_around("error, %", errors)
    if y_axis.low > 0:
        y_axis = replace(y_axis, name="error, % (not from 0)")
    axes = (log_axis(f"{name}, log scale", xs), y_axis)
    for setup, own in context.table.setups.items():
        curves = []
        for row in own:
            found = [(x, value) for x, value in zip(xs, row.ours, strict=True) if value is not None]
            if found:
                points = tuple((x, value.mean) for x, value in found)
                spreads = tuple(value.deviation for _, value in found)
                curves.append(Curve(row.label, points, spreads))
        if curves:
            panels.append(draw_curves(setup, curves, looks, axes))
    legend = looks if len(looks) > 1 else None
    return Drawing({f"{context.table.id}.svg": compose(context.table.title, panels, 2, legend)})
