"""The head of a model that comes without an artifact, for methods that look at features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acclimate.errors import UnsuitableModel
from acclimate.functional.norm import Statistics
from acclimate.methods.base import Method
from acclimate.taps import Forward, get_head

_REMEDY = "Name the module that makes the logits: head=<name>."


def find_head(model: nn.Module) -> str:
    """Return the name of what is most likely the head, without any data.

    That is what the model's own `get_classifier()` returns (timm's models have it), else the last
    linear layer. Whether it makes the logits shows in the first forward: see `FeatureMethod`.

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
            f"no linear layer was found that could be the head. {_REMEDY}",
            candidates=(),
        )
    return linear[-1]


def linear_head(model: nn.Module, name: str, method: str) -> nn.Linear:
    """Return the head, which must be a linear layer.

    Raises:
        UnsuitableModel: It is something else.
    """
    head = get_head(model, name)
    if not isinstance(head, nn.Linear):
        raise UnsuitableModel(
            "wrong_head",
            f"{method} starts from the rows of a linear head; expected nn.Linear at "
            f'"{name}", found {type(head).__name__}. {_REMEDY}',
            head=name,
        )
    return head


class FeatureMethod(Method):
    """A method that needs features, and finds the head itself if nobody named it.

    A head that was found, not named, is put to the test with the first batch: what it makes of the
    features must be the logits.
    """

    def setup(self) -> None:
        """Find the head before anything is built on it."""
        self._is_guessed = self.head is None
        if self.head is None:
            self.head = find_head(self.model)
        super().setup()

    def run(
        self,
        x: Tensor,
        moves: bool = True,
        statistics: Statistics | None = None,
        model: nn.Module | None = None,
    ) -> Forward:
        """Run the model once; see that a guessed head makes the logits of the first batch."""
        result = super().run(x, moves, statistics, model)
        if self._is_guessed and model is None:
            self._check_head(result)
        return result

    @torch.no_grad()
    def _check_head(self, found: Forward) -> None:
        made = linear_head(self.model, str(self.head), self.name)(found.known_features)
        logits = found.logits
        finite = logits.isfinite().all(dim=1)
        if made.shape == logits.shape:
            if not finite.any():
                return  # which shows nothing; the next batch may
            # Wide enough for another order of summation, far too narrow for another layer.
            largest = logits[finite].abs().max()
            if bool((made - logits)[finite].abs().max() <= 0.02 * largest):
                self._is_guessed = False
                return
        raise UnsuitableModel(
            "wrong_head",
            f'the head of this model was taken to be "{self.head}", its last linear layer, but '
            f"that does not make the logits. {_REMEDY}",
            head=self.head,
        )
