"""What a method declares: its card, and the hyper-parameters that many methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    "MethodCard",
    "Problem",
    "changed",
    "choice",
    "hp",
    "log_uniform",
    "options",
    "published",
    "uniform",
]


@dataclass(frozen=True, kw_only=True)
class MethodCard:
    """Facts about a method. They are appended to its docstring.

    Attributes:
        authors: Authors of the paper.
        year: Year of the paper.
        paper: URL of the paper.
        code: URL of the authors' code, if it is public.
        moves: What learning changes.
        predicts: Which logits are returned: those of a forward pass `"before"` or `"after"` the
            update.
        forwards: Forward passes per batch.
        backwards: Backward passes per batch.
        per_image: Whether these two are per image, for a method that processes single images.
        reconstruction: Why this may differ from the authors' method, if their text and code leave
            details open; empty if they do not.
        is_oracle: Whether it learns from labels, which only an evaluation can reveal.
        shards: Whether it is correct when processes share a batch (`acclimate.distributed`).
        dense: Whether it supports models that predict every pixel.
        replays: Whether it stores images of earlier batches and runs them again.
    """

    authors: str = ""
    year: int = 0
    paper: str = ""
    code: str = ""
    moves: str = "nothing"
    predicts: str = "before"
    forwards: int = 1
    backwards: int = 0
    per_image: bool = False
    reconstruction: str = ""
    is_oracle: bool = False
    shards: bool = False
    dense: bool = False
    replays: bool = False

    @property
    def cost(self) -> str:
        """The passes of a batch as text."""
        passes = {"forward": self.forwards, "backward": self.backwards}
        text = ", ".join(f"{n} {word}{'s' * (n > 1)}" for word, n in passes.items() if n)
        return f"{text} for each image" if self.per_image else text

    def variant(self, **facts: Any) -> MethodCard:
        """Return the card of another method that moves the same at the same cost, but for `facts`.

        All other facts are not inherited.
        """
        inherited = {"moves": self.moves, "forwards": self.forwards, "backwards": self.backwards}
        return MethodCard(**{**inherited, **facts})

    def describe(self) -> str:
        """Return the facts as the last paragraph of a docstring."""
        authors = f"{self.authors} {self.year}, " if self.authors else ""
        lines = [f"Paper: {authors}{self.paper or 'none'}."]
        lines += [f"Code: {self.code}."] if self.code else []
        lines += [f"Moves {self.moves}. Returns logits from {self.predicts} the update."]
        lines += [f"Cost of a batch: {self.cost}."]
        lines += [f"Reconstruction: {self.reconstruction}."] if self.reconstruction else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Problem:
    """Why a method cannot adapt a model: where, what, and what to do."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} {self.remedy}"


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
