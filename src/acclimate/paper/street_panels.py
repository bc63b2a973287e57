"""Figure s3: images in snow, their masks, and what models make of them before and after."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acclimate.bench.execute import read_kept
from acclimate.bench.job import JobSpec
from acclimate.bench.load import Loader
from acclimate.bench.outcome import Outcome
from acclimate.data.request import Data
from acclimate.paper.experiment import Drawing, FigureContext
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


def draw_streets(context: FigureContext) -> Drawing:
    """Draw images, masks and the predictions of all jobs of the first seed, side by side."""
    seed = min(outcome.entry.spec.seed for outcome in context.outcomes)
    jobs = [outcome for outcome in context.outcomes if outcome.entry.spec.seed == seed]
    spec = jobs[0].entry.spec
    data = Loader(context.artifacts).load_data(spec)
    images, masks = _last(spec, data)
    columns = [images, masks, *(read_predictions(job, context) for job in jobs)]
    titles = ["image", "mask"]
    titles += [_title(job, len(context.table.setups) > 1) for job in jobs]
    rows = [[_scale(column[index]) for column in columns] for index in range(len(images))]
    picture = render_panels(rows, data.palette, titles, data.classes)
    return Drawing({"fig-s3.png": picture}, notes=(_NOTE,))


def read_predictions(outcome: Outcome, context: FigureContext) -> list[Panel]:
    """Return the classes that a job predicted for its last images."""
    return list(read_kept(context.store / outcome.folder)["predictions"].numpy())


def _last(spec: JobSpec, data: Data) -> tuple[list[Panel], list[Panel]]:
    """Return the last images of a stream as 8-bit pixels, and their masks."""
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
