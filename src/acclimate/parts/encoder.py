"""The frozen model: features and logits of source images, with the source's statistics."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from acclimate.functional.norm import use_statistics
from acclimate.functional.pixels import Grid
from acclimate.functional.precision import SpeedName, fast_autocast, precision_used
from acclimate.parts.cache import RowCache, image_keys
from acclimate.taps import Anatomy, get_head, run


class Encoded(NamedTuple):
    """What the model made of a batch.

    Attributes:
        features: Inputs of the head, (rows, d): one for each image, or pixel of its input.
        logits: Shape (rows, K).
        grid: Where logits are in maps, if every pixel is predicted; else None.
        feature_grid: The same for the features.
    """

    features: Tensor
    logits: Tensor
    grid: Grid | None = None
    feature_grid: Grid | None = None


class Encoder:
    """Runs the model up to its logits, frozen, in evaluation mode.

    BatchNorm uses the source's statistics, so that what an image gives does not depend on its
    neighbours and can be kept.

    Args:
        model: The model.
        anatomy: Where its features and logits are.
        speed: "fast" for bfloat16 where the device has it.
        cache: Keeps what `recall` computes; None to compute it every time, as it must be where
            every pixel is predicted.
    """

    def __init__(
        self,
        model: nn.Module,
        anatomy: Anatomy,
        speed: SpeedName = "exact",
        cache: RowCache | None = None,
    ) -> None:
        self._model, self._anatomy = model, anatomy
        self._head = get_head(model, anatomy.head)
        self._is_fast = speed == "fast"
        self._cache = cache
        self._layout: torch.memory_format | None = None

    def precision(self) -> str:
        """Return the precision in which the model runs, for the card."""
        weights = next((p for p in self._model.parameters()), torch.empty(0))
        return precision_used(weights.dtype, weights.device, self._is_fast)

    def end_pass(self) -> None:
        """Say that the source was gone through once, to its end."""
        if self._cache is not None:
            self._cache.end_pass()

    @torch.no_grad()
    def encode(self, x: Tensor) -> Encoded:
        """Run the model on a batch."""
        if self._layout is not None:
            return self._run(x.contiguous(memory_format=self._layout))
        # With the channels last, a CPU is faster at convolutions; the first batch tells whether the
        # model takes them so. One that calls `view`, for example, may not.
        if x.dim() == 4 and x.device.type == "cpu" and x.dtype == torch.float32:
            try:
                result = self._run(x.contiguous(memory_format=torch.channels_last))
            except RuntimeError:
                pass
            else:
                self._layout = torch.channels_last
                return result
        self._layout = torch.contiguous_format
        return self._run(x)

    def recall(self, x: Tensor) -> Encoded:
        """Return what `encode` would, without running the model if all images are known."""
        cache = self._cache
        if cache is None or cache.is_given_up:
            return self.encode(x)
        keys = image_keys(x)
        rows = cache.get(keys)
        if rows is None:
            result = self.encode(x)
            if result.features.dtype == result.logits.dtype:
                cache.put(keys, torch.cat([result.features, result.logits], dim=1))
            return result
        n_features = self._anatomy.n_features
        rows = rows.to(x.device)
        return Encoded(rows[:, :n_features].contiguous(), rows[:, n_features:].contiguous())

    def _run(self, x: Tensor) -> Encoded:
        with use_statistics(self._model, "source"), fast_autocast(x.device, self._is_fast):
            found = run(self._model, x, self._head, self._anatomy.logits_at)
        features, logits = found.known_features, found.logits
        if self._is_fast and self.precision() == "bfloat16":
            # Autocast leaves halves behind; what is made of features is made in single precision.
            features, logits = features.float(), logits.float()
        return Encoded(features, logits, *found.grids)
