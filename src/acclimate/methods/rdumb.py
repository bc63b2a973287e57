"""ETA that begins anew at fixed intervals (RDumb)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from acclimate.methods.config import Config, hp, log_uniform
from acclimate.methods.eta import Eta, EtaConfig
from acclimate.snapshot import copy_tree


@dataclass(frozen=True, kw_only=True)
class RdumbConfig(EtaConfig):
    """Options of `rdumb`; the defaults are those published for CIFAR-10 at batches of 200."""

    # The benchmark that runs it on CIFAR-100 keeps its threshold of CIFAR-10, other than for ETA.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"imagenet": EtaConfig.presets["imagenet"]}

    reset_every: int = hp(
        1000, low=1, search=log_uniform(100, 10000), help="updates from one reset to the next"
    )


class Rdumb(Eta):
    """Does as ETA, and goes back to the source model after every thousandth update.

    Paper: Press et al. 2023, https://arxiv.org/abs/2306.05401.
    Official code: https://github.com/oripress/CCC.
    A reset takes back weights, optimiser and the mean prediction; the random draws and `counts` go
    on, and `counts.restored` counts it. Updates are counted; the authors' code counts batches,
    those without a chosen sample too. It also has 0.355 for `max_entropy`, where EATA's runs, and
    hence the default here, have 0.4.
    Moves scale and shift of all normalisation layers. Returns the logits before the update.
    Cost of a batch: 1 forward, 1 backward.
    """

    name: ClassVar[str] = "rdumb"
    config_class: ClassVar[type[Config]] = RdumbConfig
    config: RdumbConfig
    paper: ClassVar[str] = "https://arxiv.org/abs/2306.05401"
    code: ClassVar[str] = "https://github.com/oripress/CCC"
    year: ClassVar[int] = 2023

    def after_update(self, x: Tensor) -> None:
        """Become the source model again when it is time."""
        if self.counts.updates % self.config.reset_every == 0:
            self.load_learned(copy_tree(self.initial()))
            self.counts.restored += 1
