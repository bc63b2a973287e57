"""Predictions that no rounding can change."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

#: Logits of the models used here differ by some 1e-5 at most between processors, memory formats
#: and batch sizes; classes that are further apart than this cannot be exchanged.
MARGIN = 1e-2


def predict_clearly(model: nn.Module, x: Tensor) -> Tensor:
    """Return the predicted classes, computed in double precision.

    Fails if the two highest logits of a sample are so near that rounding may exchange them: what
    float32 finds, in whatever order it sums, is then not known.
    """
    with torch.no_grad():
        logits = copy.deepcopy(model).double()(x.double())
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    assert float((first - second).min()) > MARGIN
    return logits.argmax(dim=1)
