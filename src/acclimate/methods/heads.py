"""Find the head of a model without an artifact, for methods that use features."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from acclimate.errors import UnsuitableModel
from acclimate.forward import Forward
from acclimate.introspect import get_head
from acclimate.methods.method import Method

_REMEDY = "Name the module that returns the logits: info=ModelInfo(head=<name>)."


def find_head(model: nn.Module) -> str:
    """Return the name of the most likely head, without any data.

    That is the result of the model's own `get_classifier()` (models of timm have it), otherwise the
    last linear layer. The first batch verifies that it returns the logits; see `FeatureMethod`.

    Raises:
        UnsuitableModel: The model has no linear layer.
    """
    modules: dict[str, nn.Module] = dict(model.named_modules())
    names = {id(module): name for name, module in modules.items()}
    if callable(classifier := getattr(model, "get_classifier", None)):
        module = classifier()
        if isinstance(module, nn.Linear) and id(module) in names:
            return names[id(module)]
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    if not linear or not linear[-1]:
        raise UnsuitableModel(
            "head_not_found",
            f"Expected a linear layer as the head of the model, found none. {_REMEDY}",
            candidates=(),
        )
    return linear[-1]


def linear_head(model: nn.Module, name: str, method: str) -> nn.Linear:
    """Return the head, which must be a linear layer.

    Raises:
        UnsuitableModel: It is another kind of layer.
    """
    head = get_head(model, name)
    if not isinstance(head, nn.Linear):
        raise UnsuitableModel(
            "wrong_head",
            f'Expected the head "{name}" to be an nn.Linear, whose weights the method "{method}" '
            f"uses, found {type(head).__name__}. {_REMEDY}",
            head=name,
        )
    return head


class FeatureMethod(Method):
    """A method that needs features, and finds the head itself if it was not given.

    A head that was found in this way is verified with the first batch: its output must equal the
    logits.
    """

    def setup(self) -> None:
        """Find the head before the method uses it."""
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
            f"found other values. {_REMEDY}",
            head=self.head,
        )
