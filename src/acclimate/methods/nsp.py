"""The main loss with nearest source prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from acclimate.functional.pixels import resize_maps, to_maps, to_rows
from acclimate.methods.composition import Composition, NspOptions
from acclimate.methods.config import Config, hp
from acclimate.methods.infomax import Infomax, InfomaxConfig
from acclimate.taps import Forward


@dataclass(frozen=True, kw_only=True)
class NspConfig(NspOptions, InfomaxConfig):
    """Options of `nsp`; the defaults are the paper's."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = InfomaxConfig.presets

    predictor: str = hp(
        "head",
        choices=("head", "prototypes"),
        help="whose logits are returned: the model's, or the nearest-prototype classifier's",
    )


class NspMethod(Infomax):
    """Trains all parameters on the main loss, and the encoder towards the source's prototypes.

    Paper: Choi et al. 2022, table 2, https://arxiv.org/abs/2207.11707. Official code: none is
    public. Moves all parameters; the auxiliary loss moves the encoder only. Returns the logits
    before the update. The paper leaves NSP on pixels to future work; what is done here is ours:
    every pixel of the head's input is a sample, at the resolution it has there, and the transformed
    view moves none. Cost of a batch: 2 forwards and 2 backwards, the second ones on a transformed
    view.
    """

    name: ClassVar[str] = "nsp"
    config_class: ClassVar[type[Config]] = NspConfig
    config: NspConfig
    needs: ClassVar[tuple[str, ...]] = ("prototypes",)
    shards: ClassVar[bool] = True
    dense: ClassVar[bool] = True
    forwards: ClassVar[int] = 2
    backwards: ClassVar[int] = 2

    @classmethod
    def own_terms(cls, config: NspConfig) -> Composition:
        """Return the auxiliary loss."""
        return Composition(auxiliary=NspOptions.taken_from(config))

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the main loss, and the logits of the classifier that was asked for."""
        logits, main = super().loss(x)
        return self._predicted(logits, self._first), main

    def predict(self, x: Tensor) -> Tensor:
        """Predict one batch with the classifier that was asked for, and learn nothing."""
        found = self.run(x, moves=False)
        return self._predicted(found.logits, found)

    def _predicted(self, logits: Tensor, found: Forward | None) -> Tensor:
        if self.config.predictor == "head" or self.nsp is None or found is None:
            return logits
        near = self.nsp.logits(found.known_features)
        if found.grid is None or found.feature_grid is None:
            return near
        return to_rows(resize_maps(to_maps(near, found.feature_grid), found.grid[1:]))
