"""Figure 6: target features before and after adaptation, in two dimensions by t-SNE."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from acclimate.bench.execute import read_kept
from acclimate.bench.outcome import Outcome
from acclimate.errors import MissingExtra
from acclimate.paper.cells import Cell, Errors, Grid, read_grids
from acclimate.paper.claims import Claim, judge
from acclimate.paper.experiment import Drawing, FigureContext
from acclimate.paper.published import load_published
from acclimate.paper.tables import make_table
from acclimate.report.charts import N_COLOURS, Chart, class_looks, compose
from acclimate.report.pages import Cloud, render_clouds

#: Images of a picture: the last of the stream, when the model has met all before.
MOST_POINTS = 2000
BEFORE, AFTER, SEPARATION = "Before", "After", "separation"

Floats = npt.NDArray[np.floating]
Numbers = npt.NDArray[np.int64]

_NOTES = (
    "Features are those of the last images of the first corruption, as the model makes them at the "
    "end of the stream; the same images before and after.",
    "Separation is measured on the features themselves, not on the picture: how much nearer a "
    "feature is to the centre of its own class than to the nearest other one (a silhouette of "
    "cosine distances to class means, times 100; 100 is perfect, below 0 is wrong).",
)
_SEPARATES = Claim(
    "classes lie closer together and further apart after adaptation",
    ((BEFORE, SEPARATION), (AFTER, SEPARATION)),
    lambda values: values[AFTER, SEPARATION] - values[BEFORE, SEPARATION],
    units="classes",
)


@dataclass(frozen=True)
class Features:
    """Features (n, width) of the last images of a stream, their labels, and all class names."""

    values: Floats
    labels: Numbers
    classes: tuple[str, ...]
    domain: str


def check_tsne() -> None:
    """Refuse to start if the picture could not be drawn in the end.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    _load_manifold()


def embed(values: Floats, seed: int) -> Floats:
    """Return features in two dimensions by t-SNE, scaled to [0, 1]."""
    perplexity = min(30.0, (len(values) - 1) / 3)
    kind = _load_manifold().TSNE
    found = kind(perplexity=perplexity, init="pca", random_state=seed).fit_transform(values)
    low, high = found.min(axis=0), found.max(axis=0)
    scaled: Floats = (found - low) / np.where(high > low, high - low, 1.0)
    return scaled


def draw_embedding(context: FigureContext) -> Drawing:
    """Compute and draw the features of both jobs of every setup, and measure how they separate."""
    panels: list[Chart] = []
    clouds: list[Cloud] = []
    grids = []
    for grid in read_grids(context.outcomes, "jobs"):
        jobs = _find_jobs(context.outcomes, grid.name)
        extra: dict[Cell, Errors] = {}
        for row, outcome in jobs.items():
            found = gather_features(outcome, context)
            seed = outcome.entry.spec.seed
            places = embed(found.values, seed)
            title = f"{grid.name}, {row.lower()}"
            clouds.append(Cloud(title, places, found.labels, found.classes))
            panels.append(clouds[-1].draw(found.domain.replace("_", " ")))
            extra[row, SEPARATION] = {seed: separation_by_class(found)}
        grids.append(Grid(grid.name, grid.paper, {**grid.cells, **extra}))
    published = load_published()[context.table.id]
    table = make_table(published, grids, "jobs", notes=context.table.notes)
    table = replace(table, rising=(SEPARATION,), notes=tuple(dict.fromkeys(table.notes)))
    title = "Target features before and after adaptation"
    classes = clouds[0].classes
    legend = class_looks(classes) if len(classes) <= N_COLOURS else None
    files = {
        "fig-6.svg": compose(title, panels, 2, legend),
        "fig-6.html": render_clouds(title, clouds, _NOTES),
    }
    verdicts = tuple(judge(_SEPARATES, grid) for grid in grids)
    return Drawing(files, table, verdicts, _NOTES)


def gather_features(outcome: Outcome, context: FigureContext) -> Features:
    """Return what a job has kept of its features at the end of the first corruption."""
    kept = read_kept(context.store / outcome.folder)
    return Features(
        kept["features"].numpy(),
        kept["labels"].numpy(),
        tuple(outcome.provenance["classes"]),
        outcome.result.records[0].domain,
    )


def separation_by_class(found: Features) -> dict[str, float]:
    """Return by class how well its features are set apart from those of the others, times 100."""
    values = F.normalize(torch.from_numpy(np.asarray(found.values, dtype=np.float64)), dim=1)
    labels = torch.from_numpy(found.labels)
    present = sorted({int(label) for label in found.labels})
    centres = torch.stack([values[labels == label].mean(dim=0) for label in present])
    distances = 1 - values @ F.normalize(centres, dim=1).T
    own = torch.searchsorted(torch.tensor(present), labels)
    inside = distances.gather(1, own[:, None]).squeeze(1)
    others = distances.scatter(1, own[:, None], torch.inf)
    outside = others.min(dim=1).values
    scores = (outside - inside) / torch.maximum(inside, outside).clamp_min(1e-12)
    return {found.classes[label]: 100 * float(scores[labels == label].mean()) for label in present}


def _load_manifold() -> Any:
    try:
        return importlib.import_module("sklearn.manifold")
    except ImportError as error:
        raise MissingExtra(
            "missing_extra",
            "The experiment fig-6 uses t-SNE, which requires scikit-learn, and it is not "
            "installed. Run: pip install 'acclimate[tsne]'",
            package="scikit-learn",
        ) from error


def _find_jobs(outcomes: Sequence[Outcome], setup: str) -> Mapping[str, Outcome]:
    own = [outcome for outcome in outcomes if outcome.entry.group == setup]
    seed = min(outcome.entry.spec.seed for outcome in own)
    return {
        str(outcome.entry.axes["row"]): outcome
        for outcome in own
        if outcome.entry.spec.seed == seed
    }
