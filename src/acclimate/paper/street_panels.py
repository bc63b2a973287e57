"""Figure s3: images in snow, their masks, and what models make of them before and after."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acclimate.adaptation import adapt
from acclimate.bench.load import Loader
from acclimate.bench.outcome import Outcome
from acclimate.functional.pixels import resize_maps
from acclimate.paper.experiment import Drawing, Scene
from acclimate.report.panels import render_panels

BEFORE, AFTER = "Source", "Main + SWR"

#: Images of the picture: the last of the stream, when the model has met all before.
N_IMAGES = 3
# Panels that are narrower or wider are brought near to this, by whole numbers.
_NARROWEST, _WIDEST = 200, 512

_NOTE = (
    "The picture shows the last images of the stream: the image, its mask (black: not labelled), "
    "and the predictions of each model as it is and adapted, before it has learned from them."
)

Panel = npt.NDArray[np.generic]


def draw_streets(scene: Scene) -> Drawing:
    """Draw images, masks and the predictions of all jobs of the first seed, side by side."""
    seed = min(outcome.entry.spec.seed for outcome in scene.outcomes)
    jobs = [outcome for outcome in scene.outcomes if outcome.entry.spec.seed == seed]
    materials = Loader(scene.artifacts)
    data = materials.load_data(jobs[0].entry.spec)
    images, masks = _last(jobs[0], materials)
    columns = [images, masks, *(predict_last(job, materials) for job in jobs)]
    titles = ["image", "mask"]
    titles += [_title(job, len(scene.table.setups) > 1) for job in jobs]
    rows = [[_scale(column[index]) for column in columns] for index in range(len(images))]
    picture = render_panels(rows, data.palette, titles, data.classes)
    return Drawing({"fig-s3.png": picture}, notes=(_NOTE,))


def predict_last(outcome: Outcome, materials: Loader) -> list[Panel]:
    """Run a job again, and return the classes that it predicted for its last images.

    Only predictions are made again: a job keeps overlaps, not masks.
    """
    spec = outcome.entry.spec
    data = materials.load_data(spec)
    model = materials.load_model(spec, len(data.classes))
    adapted = adapt(
        copy.deepcopy(model),
        spec.method,
        materials.get_artifact(spec, model, data),
        config=spec.get_config(),
        terms=spec.get_terms(),
        seed=spec.seed,
        speed=spec.speed,
    )
    found: list[Panel] = []
    for batch in spec.get_protocol().units(data.groups, None, spec.seed)[0].batches:
        logits = adapted(batch.x.to(materials.device))
        with torch.no_grad():
            classes = resize_maps(logits, batch.x.shape[2:]).argmax(dim=1).cpu().numpy()
        found = [*found, *classes][-N_IMAGES:]
    return found


def _last(outcome: Outcome, materials: Loader) -> tuple[list[Panel], list[Panel]]:
    """Return the last images of a stream as 8-bit pixels, and their masks."""
    spec = outcome.entry.spec
    data = materials.load_data(spec)
    images: list[Panel] = []
    masks: list[Panel] = []
    for batch in spec.get_protocol().units(data.groups, None, spec.seed)[0].batches:
        images = [*images, *_to_pixels(batch.x)][-N_IMAGES:]
        masks = [*masks, *batch.y.numpy()][-N_IMAGES:]
    return images, masks


def _to_pixels(x: Tensor) -> list[Panel]:
    return list((255 * x).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())


def _scale(panel: Panel) -> Panel:
    step = max(1, panel.shape[1] // _WIDEST)
    times = -(-_NARROWEST // panel.shape[1])
    return panel[::step, ::step].repeat(times, axis=0).repeat(times, axis=1)


def _title(outcome: Outcome, has_setups: bool) -> str:
    row = str(outcome.entry.axes["row"])
    model = outcome.entry.group.rpartition(", ")[2]
    return f"{model}: {row}" if has_setups else row
