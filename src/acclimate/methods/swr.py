from __future__ import annotations

from acclimate.methods.config import GradientConfig, options, published
from acclimate.methods.infomax import CITYSCAPES, Infomax, InfomaxConfig
from acclimate.terms.swr import Swr, SwrOptions

#: The supplement changes the strength only, and has the rate of TENT on ImageNet; it does not name
#: the optimiser, and TENT's is taken here.
IMAGENET = {**GradientConfig.presets["imagenet"], "strength": 3000.0}


@options
class SwrConfig(SwrOptions, InfomaxConfig):
    """Options of `swr`; the defaults are the paper's."""

    presets = published(
        "cifar10",
        "cifar100",
        imagenet=IMAGENET,
        cityscapes={**CITYSCAPES, "strength": 40.0, "anchor": "source"},
    )


class SwrMethod(Infomax):
    """Trains all parameters on the main loss, damped by shift-agnostic penalties.

    Table 2 of the paper. The supplement adapts models that predict every pixel with it:
    `preset="cityscapes"`, batches of two images. There BatchNorm moves its running statistics and
    uses them in the same pass; `GradientConfig` says what of this preset is the supplement's and
    what is ours.
    """

    name = "swr"
    config_class = SwrConfig
    config: SwrConfig
    card = Infomax.card
    contains = (Swr,)
