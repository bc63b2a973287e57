"""Whether mirrored images keep their class, measured on source data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acclimate.forward import run
from acclimate.functional.norm import use_statistics
from acclimate.functional.signals import mirror_back
from acclimate.options import hp
from acclimate.parts.part import Computed, Context, Part, Saved, register_part
from acclimate.parts.source import check_labelled, iterate_blocks
from acclimate.schema import Schema, TensorOf

#: Accuracy that mirrored images may lose, if they are to keep their class.
LARGEST_LOSS = 0.02


@register_part
@dataclass(frozen=True, kw_only=True)
class Mirror(Part):
    """The accuracy on source images and on their mirror images.

    A model that was trained on photographs usually is as accurate on both; one for digits or text
    is not. Methods that average over both views do so only in the first case.

    The tensors are `mirror/accuracy` and `mirror/mirrored`.
    """

    name: ClassVar[str] = "mirror"
    dense: ClassVar[bool] = True
    always_exact: ClassVar[bool] = True

    n_samples: int = hp(512, low=2, help="number of source images")

    @classmethod
    def tensor_schemas(cls, saved: Saved) -> Mapping[str, Schema]:
        return dict.fromkeys(("mirror/accuracy", "mirror/mirrored"), TensorOf((), low=0, high=1))

    @torch.no_grad()
    def compute(self, context: Context) -> Computed:
        source, n = context.source, 0
        correct = torch.zeros(2, dtype=torch.float64)
        n_rows = 0
        for x, y in iterate_blocks(source, "mirror", self.n_samples, 64):
            # Only images have a mirror image.
            for place, images in enumerate((x, x.flip(-1)) if x.dim() == 4 else (x,)):
                with use_statistics(context.model, "source"):
                    found = run(context.model, images, None, context.info.logits_at, context.call)
                logits = found.logits if place == 0 else mirror_back(found.logits, found.grid)
                labels, is_judged = source.label_rows(y, found.grid)
                is_correct = (logits.argmax(dim=1) == labels)[is_judged]
                correct[place] += int(is_correct.sum())
                n_rows += int(is_judged.sum()) * (place == 0)
            n += len(x)
        check_labelled(n_rows)
        accuracy, mirrored = (correct / n_rows).float()
        card = {**self.to_card(), "n_samples": n, "keeps_class": keeps_class(accuracy, mirrored)}
        return {"mirror/accuracy": accuracy, "mirror/mirrored": mirrored}, card


def keeps_class(accuracy: Tensor, mirrored: Tensor) -> bool:
    """Return whether mirrored images keep their class, given both accuracies."""
    return bool(mirrored >= accuracy - LARGEST_LOSS)
