from __future__ import annotations

import torch
from torch import Tensor

from acclimate.methods.config import hp, options, uniform
from acclimate.methods.roid import Roid, RoidConfig
from acclimate.schema import Number

#: Trained scalars for which `drift` is stated: scale and shift of the LayerNorms of a ViT-B.
_SCALARS = 38400
#: Least share that the hidden model keeps of itself, and the share from which it keeps everything.
_LEAST_KEPT, _ALL_KEPT = 0.89, 0.9999


@options
class CmfConfig(RoidConfig):
    """Options of `cmf`; the defaults on CIFAR are those of a port: the authors ran ImageNet."""

    source_share: float = hp(
        0.01, low=0.0, high=1.0, help="of the source's weights, mixed into the hidden ones (1 − α)"
    )
    hidden_share: float = hp(
        0.01, low=0.0, high=1.0, help="of the hidden weights, mixed in after each update (1 − γ)"
    )
    drift: float = hp(
        0.005,
        low=0.0,
        search=uniform(0.00025, 0.01),
        help="variance that an update adds to the hidden weights, for 38400 trained scalars (q)",
    )


class Cmf(Roid):
    """Does as ROID, and mixes in a filtered model instead of the source model.

    A Kalman filter estimates hidden weights: they return to the source's by a share, then move
    towards the trained weights, the more the larger their variance is. The trained weights are
    mixed with them after each update. With few trained scalars the variance stays small, and the
    hidden weights are the source's for a number of updates. `reset()` forgets the variance; the
    port in the benchmark of ROID keeps it. The authors tune `drift` and the learning rate for each
    scenario (0.00025, 0.001 and 0.005) and compute in half precision.
    """

    name = "cmf"
    config_class = CmfConfig
    config: CmfConfig
    card = Roid.card.variant(
        authors="Lee & Chang",
        year=2024,
        paper="https://openreview.net/forum?id=BllUWdpIOA",
        code="https://github.com/j-pong/CMF",
    )

    hidden: dict[str, Tensor]
    variance: float

    def setup(self) -> None:
        super().setup()
        self.add_state("hidden", {name: p.detach().clone() for name, p in self.trained().items()})
        self.add_state("variance", 0.0, Number(float, low=0))

    @torch.no_grad()
    def after_update(self, x: Tensor) -> None:
        source, config = self.initial()["method"]["hidden"], self.config
        kept = self._filter_variance()
        moved = {}
        for name, parameter in self.trained().items():
            origin, hidden = source[name].to(parameter), self.hidden[name].to(parameter)
            hidden = torch.lerp(hidden, origin, config.source_share)
            moved[name] = torch.lerp(hidden, parameter, 1 - kept)
            parameter.lerp_(moved[name], config.hidden_share)
        self.hidden = moved

    def _filter_variance(self) -> float:
        """Move the variance by one update; return the share that the hidden weights keep."""
        n_scalars = sum(values.numel() for values in self.hidden.values())
        drift = min(self.config.drift * n_scalars / _SCALARS, 1.0)
        predicted = (1 - self.config.source_share) ** 2 * self.variance + drift
        noise = 1 - drift
        kept = max(noise / (predicted + noise), _LEAST_KEPT) if predicted > 0 else 1.0
        kept = 1.0 if kept >= _ALL_KEPT else kept
        self.variance = kept * predicted
        return kept
