"""Methods that use features, and find the head of a model without an artifact."""

from __future__ import annotations

from dataclasses import replace

import torch

from acclimate.errors import UnsuitableModel
from acclimate.forward import Forward
from acclimate.introspect import NAME_THE_HEAD, find_head, linear_head
from acclimate.methods.method import Method


class FeatureMethod(Method):
    """A method that needs features, and finds the head itself if it was not given.

    A head that was found in this way is verified with the first batch: its output must equal the
    logits.
    """

    def setup(self) -> None:
        self._is_guessed = self.head is None
        if self.head is None:
            self.info = replace(self.info, head=find_head(self.model))
        super().setup()

    def return_from(self, result: Forward) -> None:
        """Verify, with the first pass of a batch, that a guessed head returns the logits."""
        super().return_from(result)
        if self._is_guessed:
            self._check_head(result)

    @torch.no_grad()
    def _check_head(self, found: Forward) -> None:
        made = linear_head(self.model, str(self.head), self.name)(found.known_features)
        logits = found.logits
        finite = logits.isfinite().all(dim=1)
        if made.shape == logits.shape:
            if not finite.any():
                return  # nothing can be verified; the next batch may be finite
            # Tolerates another order of summation, but no other layer.
            largest = logits[finite].abs().max()
            if bool((made - logits)[finite].abs().max() <= 0.02 * largest):
                self._is_guessed = False
                return
        raise UnsuitableModel(
            "wrong_head",
            f'Expected the last linear layer, "{self.head}", to return the logits of this model, '
            f"found other values. {NAME_THE_HEAD}",
            head=self.head,
        )
