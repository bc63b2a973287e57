"""What is known of one source model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

Channels = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What is known of one source model.

    Attributes:
        name: what it is called here.
        data: the set it was, or is to be, trained on.
        architecture: what its publication calls the architecture.
        factory: makes it from `n_classes`, `mean` and `std`.
        n_classes: number of logits of the published weights.
        mean: mean of each channel; the model takes images in [0, 1] and normalises inside.
        std: standard deviation of each channel.
        layout: how the published file names its tensors, a key of `acclimate.zoo.layouts.LAYOUTS`.
        description: one sentence about where it is used.
        publisher: who published the weights; empty if unpublished.
        address: where they are.
        accuracy: accuracy on the clean test set in percent, as published, or as measured with the
            published weights where nothing is said.
        licence: licence of the weights.
        sha256: SHA-256 of the published file, or its beginning, if known.
        content_sha256: digest of the weights themselves, whatever file they come in, if known; see
            `acclimate.zoo.readers.content_digest`. Without either a file is taken as it is.
        input_size: height and width of the images.
        packaged: file in `acclimate/zoo/weights` with the weights, if they come with the package.
    """

    name: str
    data: str
    architecture: str
    factory: Callable[..., nn.Module]
    n_classes: int
    mean: Channels
    std: Channels
    layout: str
    description: str
    publisher: str = ""
    address: str = ""
    accuracy: float | None = None
    licence: str = ""
    sha256: str = ""
    content_sha256: str = ""
    input_size: int = 32
    packaged: str = ""

    def build(self, n_classes: int | None = None) -> nn.Module:
        """Return the architecture with the weights PyTorch gives it."""
        n_classes = self.n_classes if n_classes is None else n_classes
        return self.factory(n_classes=n_classes, mean=self.mean, std=self.std)
