from __future__ import annotations

from torch import Tensor

from acclimate.methods.config import hp, log_uniform, options, published
from acclimate.methods.eta import Eta, EtaConfig


@options
class RdumbConfig(EtaConfig):
    """Options of `rdumb`; the defaults are those published for CIFAR-10 at batches of 200."""

    # The benchmark that runs it on CIFAR-100 keeps its threshold of CIFAR-10, other than for ETA.
    presets = published("cifar10", "cifar100", imagenet=EtaConfig.presets["imagenet"])

    reset_every: int = hp(
        1000, low=1, search=log_uniform(100, 10000), help="updates from one reset to the next"
    )


class Rdumb(Eta):
    """Does as ETA, and goes back to the source model after every thousandth update.

    A reset takes back weights, optimiser and the mean prediction; the random draws and `counts` go
    on, and `counts.restored` counts it. Updates are counted; the authors' code counts batches,
    those without a chosen sample too. `max_entropy` is 0.4 in its newest commit, as in EATA's runs
    and here; earlier ones had log(1000) / 2 − 1, which is 0.355 of log(1000).
    """

    name = "rdumb"
    config_class = RdumbConfig
    config: RdumbConfig
    card = Eta.card.variant(
        authors="Press et al.",
        year=2023,
        paper="https://arxiv.org/abs/2306.05401",
        code="https://github.com/oripress/CCC",
    )

    def after_update(self, x: Tensor) -> None:
        if self.counts.updates % self.config.reset_every == 0:
            self.restore_source()
