"""What training for segmentation does between the epochs: choose pairs to whiten, and measure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from acclimate.data import ImageStore
from acclimate.data.places import Progress
from acclimate.functional.pixels import count_pixels, find_ious, resize_maps
from acclimate.training.draws import generator_at
from acclimate.training.segmentation.objective import DenseTrained
from acclimate.training.segmentation.settings import SegmentationSettings

_CHECK_BATCH = 4


def choose_pairs(
    fabric: Any,
    trained: DenseTrained,
    data: ImageStore,
    settings: SegmentationSettings,
    progress: Progress | None = None,
) -> None:
    """Show all training images to the selection of pairs, once, unless they are chosen already.

    Args:
        fabric: What `make_fabric` gave.
        trained: Whose selection it is; it is in evaluation mode afterwards.
        data: To train on.
        settings: Of the run.
        progress: Called with the stage, the count done and the count to do.
    """
    whitening = trained.whitening
    if whitening is None or bool(whitening.is_selected):
        return
    trained.eval()
    picks = list(torch.split(torch.arange(len(data)), settings.batch_size))
    own = picks[fabric.global_rank :: fabric.world_size]
    for number, (x, y) in enumerate(data.batches(own)):
        draws = generator_at(settings.seed, "covariances", number, fabric.global_rank)
        with fabric.autocast():
            trained.observe(x.to(fabric.device), y.to(fabric.device), draws)
        if progress is not None:
            progress("compare covariances", number + 1, len(own))
    for name, buffer in whitening.named_buffers():
        if name == "n_seen" or name.startswith("variance"):
            buffer.copy_(fabric.all_reduce(buffer, reduce_op="sum"))
    whitening.select()


@torch.no_grad()
def measure(
    fabric: Any, model: nn.Module, data: ImageStore, progress: Progress | None = None
) -> Tensor:
    """Return the intersection over union of each class, in full precision.

    Args:
        fabric: What `make_fabric` gave.
        model: On the device; it is in evaluation mode afterwards.
        data: To measure on.
        progress: Called with the stage, the count done and the count to do.
    """
    model.eval()
    n_classes = len(data.classes)
    counts = torch.zeros(n_classes, n_classes, dtype=torch.int64)
    picks = list(torch.split(torch.arange(len(data)), _CHECK_BATCH))
    own = picks[fabric.global_rank :: fabric.world_size]
    for number, (x, y) in enumerate(data.batches(own), start=1):
        logits = resize_maps(model(x.to(fabric.device).float() / 255).float(), y.shape[1:])
        counts += count_pixels(logits.argmax(dim=1).cpu(), y, n_classes)
        if progress is not None:
            progress("validate", number, len(own))
    return find_ious(fabric.all_reduce(counts, reduce_op="sum"))
