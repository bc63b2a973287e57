"""The hyper-parameters that all methods have, and those of all gradient methods."""

from __future__ import annotations

from torch import Tensor

from acclimate.errors import InvalidConfig
from acclimate.functional.entropy import ENTROPIES
from acclimate.functional.norm import STATISTICS
from acclimate.options import (
    PRESETS,
    Values,
    changed,
    choice,
    hp,
    log_uniform,
    options,
    published,
    uniform,
)

__all__ = [
    "Config",
    "EntropyConfig",
    "GradientConfig",
    "changed",
    "choice",
    "hp",
    "log_uniform",
    "options",
    "published",
    "uniform",
]


@options
class Config(Values):
    """Options every method has."""

    # What learns nothing by gradients has no values that were tuned for a benchmark.
    presets = published(*PRESETS)

    statistics: str = hp(
        "batch",
        choices=STATISTICS,
        help="BatchNorm statistics: of the batch, running (move, then used), the source's, "
        "mixed (source and batch), robust (mixed and kept), or auto (source and stream, "
        "for batches of any size and streams of any order)",
    )
    statistics_momentum: float = hp(
        0.1, low=0.0, high=1.0, help="share of the batch in running, mixed and robust statistics"
    )


@options
class GradientConfig(Config):
    """Options of every method that learns by gradient steps.

    The presets are TENT's and those of Choi et al. 2022 (https://arxiv.org/abs/2207.11707); a
    method with published values of its own replaces them.

    - `"cifar10"`, `"cifar100"`: the defaults, at batches of 200.
    - `"imagenet"`: rate and momentum are in TENT's paper, at batches of 64. Nesterov's form is the
      default of its code, which has no script for ImageNet; the code of CoTTA, which has one for
      TENT, uses it too. The code of EATA and SAR runs TENT without it.
    - `"cityscapes"`: what the supplement of Choi et al. gives for Cityscapes-C, at batches of two
      images. Its text has the rate and "running statistics kept and updated with a momentum of
      0.1". It does not name the optimiser: Adam is ours, since it is the paper's elsewhere. Nor
      does it say which statistics normalise the pass that is learned from. Here there is one pass,
      as in `bn_ema` with `passes="one"`: each layer moves its running statistics by a tenth towards
      the batch and normalises with the result. TENT itself has no values for this benchmark.
    """

    presets = published(
        "cifar10",
        "cifar100",
        imagenet={"optimizer": "sgd", "lr": 2.5e-4, "nesterov": True},
        cityscapes={
            "optimizer": "adam",
            "lr": 1e-5,
            "statistics": "running",
            "statistics_momentum": 0.1,
        },
    )

    optimizer: str = hp("adam", choices=("adam", "adamw", "sgd"), help="the optimiser")
    lr: float = hp(
        1e-3, low=0.0, search=log_uniform(1e-5, 1e-2), help="learning rate of the optimiser"
    )
    beta1: float = hp(0.9, low=0.0, high=0.999999, help="Adam's decay of the mean gradient")
    beta2: float = hp(
        0.999, low=0.0, high=0.99999999, help="Adam's decay of the mean squared gradient"
    )
    sgd_momentum: float = hp(0.9, low=0.0, high=1.0, help="momentum of SGD")
    nesterov: bool = hp(False, help="Nesterov's form of SGD's momentum")
    weight_decay: float = hp(0.0, low=0.0, help="weight decay of the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.sgd_momentum == 0:
            raise InvalidConfig(
                "conflicting_options",
                "nesterov = True needs a momentum, but sgd_momentum is 0. Set one of them.",
                options=("nesterov", "sgd_momentum"),
            )


@options
class EntropyConfig(GradientConfig):
    """Options of every method that minimises the entropy of single predictions.

    Such a method computes it with `config.entropy_of(logits)`. Thresholds and weights of samples
    use the same entropy; thresholds remain shares of log K, as in the code of COME, whose authors
    use it in TENT, EATA and SAR. They run ImageNet, at batches of 64: SGD at 2.5e-4 for a
    ResNet-50, and at 1e-3 for a ViT-B.
    """

    entropy: str = hp(
        "softmax",
        choices=tuple(ENTROPIES),
        help="entropy to minimise: of the probabilities, or of an opinion with an undecided part, "
        "which limits confidence (COME, arXiv 2410.10894)",
    )

    def entropy_of(self, logits: Tensor) -> Tensor:
        """Return the chosen entropy of each prediction: (B, K) → (B,)."""
        return ENTROPIES[self.entropy](logits)
