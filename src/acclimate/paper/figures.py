"""The figures of the paper, drawn from a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from acclimate.artifact import Artifact
from acclimate.bench.execute import read_kept
from acclimate.bench.load import Loader
from acclimate.bench.suite import Outcome
from acclimate.errors import BadInput, import_extra
from acclimate.functional.swr_nsp import penalties, shape_penalties
from acclimate.paper.claims import Cell, Claim, Errors, judge, read_grids
from acclimate.paper.experiment import Drawing, FigureContext
from acclimate.paper.published import load_published, read_toml
from acclimate.paper.tables import tabulate
from acclimate.report.charts import (
    N_COLOURS,
    Axis,
    Chart,
    Dot,
    Layer,
    Look,
    assign_looks,
    compose,
    draw_curves,
    draw_dots,
    draw_layers,
    linear_axis,
    log_axis,
)
from acclimate.report.figures import make_curve
from acclimate.report.pages import render_clouds
from acclimate.report.panels import render_panels
from acclimate.terms.swr import SwrOptions

Floats = npt.NDArray[np.floating]
Panel = npt.NDArray[np.generic]


def _read_notes(name: str) -> tuple[str, ...]:
    """Return what a reader must know of a drawing."""
    return tuple(read_toml("experiments.toml")[name]["drawn"])


# Figures 1 and s1: error against a number


def draw_against(context: FigureContext, name: str) -> Drawing:
    """Draw the errors of all rows against what the columns are."""
    table = context.table
    measured = [row for row in table.rows if row.is_measured]
    errors = [own.mean for row in measured for own in row.ours if own is not None]
    if not errors:
        return Drawing(notes=("Nothing to draw: no job has reached its end.",))
    looks = assign_looks(list(dict.fromkeys(row.label for row in measured)))
    xs = [float(column) for column in table.columns]
    # What matters are differences, which an axis from zero would hide.
    y_axis = linear_axis("error, %", errors, from_zero=False)
    if y_axis.low > 0:
        y_axis = replace(y_axis, name="error, % (not from 0)")
    axes = (log_axis(name, xs), y_axis)
    panels = []
    for setup, rows in table.setups.items():
        curves = []
        for row in rows:
            found = [(x, own) for x, own in zip(xs, row.ours, strict=True) if own is not None]
            if found:
                curves.append(make_curve(row.label, found))
        if curves:
            panels.append(draw_curves(setup, curves, looks, axes))
    legend = looks if len(looks) > 1 else None
    return Drawing({f"{table.id}.svg": compose(table.title, panels, 2, legend)})


# Figure s2: penalties by layer


def draw_penalties(context: FigureContext) -> Drawing:
    """Draw the penalties by layer of every variant, with its error, from the jobs' artifacts."""
    files, notes = {}, []
    for number, (setup, (row,)) in enumerate(context.table.setups.items()):
        pairs = zip(context.table.columns, row.ours, strict=True)
        errors = {name: own.mean for name, own in pairs if own is not None}
        panels = []
        for outcome in context.first_seed(setup):
            name = str(outcome.entry.axes["column"])
            weights = read_penalties(outcome, context.artifacts)
            panels.append(_penalty_panel(name, weights, errors))
            if name == "a":
                values = list(weights.values())
                third = max(1, len(values) // 3)
                first, last = (statistics.fmean(v) for v in (values[:third], values[-third:]))
                notes.append(
                    f"{setup}: {len(values)} penalties; their mean is {first:.2f} over the first "
                    f"third of the layers and {last:.2f} over the last."
                )
        title = f"Penalties by layer, {setup}: error in %, and the difference from (a)"
        suffix = f"-{number + 1}" if number else ""
        files[f"fig-s2{suffix}.svg"] = compose(title, panels, n_columns=5)
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
    weights = artifact.part("penalty")
    if options.exponent:
        weights = penalties(artifact.part("cosine"), options.exponent)
    # Files are sorted by name; the fingerprint of the model knows its order.
    order = [name for name in artifact.card["model"]["layout"] if name in weights]
    shaped = shape_penalties({name: weights[name] for name in order}, options.shape)
    return {name: float(value) for name, value in shaped.items()}


def _penalty_panel(name: str, weights: Mapping[str, float], errors: Mapping[str, float]) -> Chart:
    layers = [Layer(layer, "", (value,)) for layer, value in weights.items()]
    note = f"{errors[name]:.2f}" if name in errors else ""
    if note and name != "a" and "a" in errors:
        note += f" ({errors[name] - errors['a']:+.2f})"
    variant = read_toml("experiments.toml")["fig-s2"]["variants"][name]
    return draw_layers(f"({name}) {variant}", layers, (220, 160), note)


# Figure 6: target features in two dimensions by t-SNE

BEFORE, AFTER, SEPARATION = "Before", "After", "separation"

_SEPARATES = Claim(
    "classes lie closer together and further apart after adaptation",
    "above",
    (((AFTER, SEPARATION),), ((BEFORE, SEPARATION),)),
    units="classes",
)


@dataclass(frozen=True)
class Features:
    """Features (n, width) of the last images of a stream, their labels, and all class names."""

    values: Floats
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    domain: str


def draw_embedding(context: FigureContext) -> Drawing:
    """Compute and draw the features of both jobs of every setup, and measure how they separate."""
    panels: list[Chart] = []
    grids = []
    for grid in read_grids(context.outcomes, "jobs"):
        extra: dict[Cell, Errors] = {}
        for outcome in context.first_seed(grid.name):
            row, seed = str(outcome.entry.axes["row"]), outcome.entry.spec.seed
            found = gather_features(outcome, context)
            places = embed(found.values, seed)
            panels.append(draw_cloud(f"{grid.name}, {row.lower()}", places, found))
            extra[row, SEPARATION] = {seed: separation_by_class(found)}
        grids.append(replace(grid, cells={**grid.cells, **extra}))
    published = load_published()[context.table.id]
    table = tabulate(published, grids, "jobs", notes=context.table.notes)
    table = replace(table, rising=(SEPARATION,), notes=tuple(dict.fromkeys(table.notes)))
    title, notes = "Target features before and after adaptation", _read_notes("fig-6")
    legend = look_classes(found.classes) if len(found.classes) <= N_COLOURS else None
    files = {
        "fig-6.svg": compose(title, panels, 2, legend),
        "fig-6.html": render_clouds(title, panels, notes),
    }
    return Drawing(files, table, tuple(judge(_SEPARATES, grid) for grid in grids), notes)


def draw_cloud(title: str, places: Floats, found: Features) -> Chart:
    """Return a chart of features at places (n, 2) from 0 to 1, coloured by class."""
    dots = [
        Dot(found.classes[label], float(x), float(y))
        for (x, y), label in zip(places, found.labels, strict=True)
    ]
    looks = look_classes(found.classes)
    axes, note = (Axis("", -0.03, 1.03), Axis("", -0.03, 1.03)), found.domain.replace("_", " ")
    return draw_dots(title, dots, looks, axes, size=(340, 300), radius=1.8, note=note)


def look_classes(classes: Sequence[str]) -> dict[str, Look]:
    """Return a look for each class; colours repeat where there are too many."""
    return {name: Look(f"c{i % N_COLOURS}", 0) for i, name in enumerate(classes)}


def gather_features(outcome: Outcome, context: FigureContext) -> Features:
    """Return what a job has kept of its features at the end of the first corruption."""
    kept = read_kept(context.store / outcome.folder)
    classes, domain = tuple(outcome.provenance["classes"]), outcome.result.records[0].domain
    return Features(kept["features"].numpy(), kept["labels"].numpy(), classes, domain)


def separation_by_class(found: Features) -> dict[str, float]:
    """Return by class how well its features are set apart from those of the others, times 100."""
    values = F.normalize(torch.from_numpy(np.asarray(found.values, dtype=np.float64)), dim=1)
    labels = torch.from_numpy(found.labels)
    present = sorted({int(label) for label in found.labels})
    centres = torch.stack([values[labels == label].mean(dim=0) for label in present])
    distances = 1 - values @ F.normalize(centres, dim=1).T
    own = torch.searchsorted(torch.tensor(present), labels)
    inside = distances.gather(1, own[:, None]).squeeze(1)
    outside = distances.scatter(1, own[:, None], torch.inf).min(dim=1).values
    scores = (outside - inside) / torch.maximum(inside, outside).clamp_min(1e-12)
    return {found.classes[label]: 100 * float(scores[labels == label].mean()) for label in present}


def embed(values: Floats, seed: int) -> Floats:
    """Return features in two dimensions by t-SNE, scaled to [0, 1]."""
    perplexity = min(30.0, (len(values) - 1) / 3)
    tsne = check_tsne().TSNE(perplexity=perplexity, init="pca", random_state=seed)
    found = tsne.fit_transform(values)
    low, high = found.min(axis=0), found.max(axis=0)
    scaled: Floats = (found - low) / np.where(high > low, high - low, 1.0)
    return scaled


def check_tsne() -> Any:
    """Return the module with t-SNE; called first, so that the picture can be drawn in the end.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    return import_extra("sklearn.manifold", "The experiment fig-6", "tsne", "scikit-learn")


# Figure s3: images in snow, their masks, and predictions

# Panels that are narrower or wider are brought near to this, by whole numbers.
_NARROWEST, _WIDEST = 200, 512


def draw_streets(context: FigureContext) -> Drawing:
    """Draw images, masks and the predictions of all jobs of the first seed, side by side."""
    jobs = context.first_seed()
    spec = jobs[0].entry.spec
    data = Loader(context.artifacts).load_data(spec)
    predicted = [read_predictions(job, context) for job in jobs]
    n = len(predicted[0])
    images: list[Panel] = []
    masks: list[Panel] = []
    for batch in spec.get_protocol().units(data.groups, None, spec.seed)[0].batches:
        pixels = (255 * batch.x).round().to(torch.uint8).permute(0, 2, 3, 1)
        images = [*images, *pixels.numpy()][-n:]
        masks = [*masks, *batch.y.numpy()][-n:]
    columns, titles = [images, masks, *predicted], ["image", "mask"]
    for job in jobs:
        row, model = str(job.entry.axes["row"]), job.entry.group.rpartition(", ")[2]
        titles.append(f"{model}: {row}" if len(context.table.setups) > 1 else row)
    rows = [[_scale(column[index]) for column in columns] for index in range(len(images))]
    picture = render_panels(rows, data.palette, titles, data.classes)
    return Drawing({"fig-s3.png": picture}, notes=_read_notes("fig-s3"))


def read_predictions(outcome: Outcome, context: FigureContext) -> list[Panel]:
    """Return the classes that a job predicted for its last images."""
    return list(read_kept(context.store / outcome.folder)["predictions"].numpy())


def _scale(panel: Panel) -> Panel:
    step = max(1, panel.shape[1] // _WIDEST)
    times = -(-_NARROWEST // panel.shape[1])
    return panel[::step, ::step].repeat(times, axis=0).repeat(times, axis=1)
