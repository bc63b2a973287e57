"""Running BatchNorm statistics that follow the test stream (BN-EMA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from acclimate.errors import InvalidConfig
from acclimate.functional.norm import STATISTICS, use_statistics
from acclimate.methods.config import Config, hp
from acclimate.methods.method import MethodCard
from acclimate.methods.norm import Norm


@dataclass(frozen=True, kw_only=True)
class BnEmaConfig(Config):
    """Options of `bn_ema`."""

    statistics: str = hp(
        "running",
        choices=STATISTICS,
        help="BatchNorm statistics: running (moved by the batch, then used), or another policy",
    )
    passes: str = hp(
        "one",
        choices=("one", "two"),
        help="one: each layer moves its statistics and uses them at once; two: a first pass under "
        "the batch's own statistics moves them, a second one predicts (the benchmark's code)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.passes == "two" and self.statistics != "running":
            raise InvalidConfig(
                "conflicting_options",
                f'passes = "two" is about running statistics, but statistics is '
                f'"{self.statistics}". Leave one of them out.',
                options=("passes", "statistics"),
            )


class BnEma(Norm):
    """Moves the running statistics towards each batch, then predicts with them.

    Paper: none of its own; a variant of Schneider et al. 2020, https://arxiv.org/abs/2006.16971.
    Code: https://github.com/mariodoebler/test-time-adaptation (a benchmark that names it BN-EMA).
    There are two variants. With `passes="one"`, the default, a layer moves its statistics and
    normalises with them in the same pass, so that the layers behind it see what they see when they
    predict. This takes half the time and works on single images. With `passes="two"`, as in the
    benchmark's code, a first pass normalises with the batch's statistics, as in training, and the
    running ones follow; a second pass predicts with those. Single images are then predicted without
    moving anything. The two differ much: with a ResNet-20 and five corruptions of CIFAR-10-C in
    a row, by up to 12 in the logits. `statistics="running"` of other methods, which
    `preset="cityscapes"` uses, is the first variant.
    Moves the running mean and variance of BatchNorm layers (share 0.1 of each batch), and no
    parameter. Returns the logits of the pass that sees the moved statistics.
    Cost of a batch: 1 forward, or 2.
    """

    name: ClassVar[str] = "bn_ema"
    config_class: ClassVar[type[Config]] = BnEmaConfig
    config: BnEmaConfig
    card: ClassVar[MethodCard] = MethodCard(
        paper="https://arxiv.org/abs/2006.16971",
        code="https://github.com/mariodoebler/test-time-adaptation",
        year=2020,
        moves="running statistics of BatchNorm",
        shards=True,
        dense=True,
    )

    def needs_several_samples(self) -> bool:
        """Say whether a batch of one cannot be learned from: only in a pass of its own."""
        return self.config.passes == "two" or super().needs_several_samples()

    def step(self, x: Tensor) -> Tensor:
        """Move the statistics and predict with them."""
        if self.config.passes == "one":
            return super().step(x)
        with use_statistics(self.model, "running", self.config.statistics_momentum):
            self.run(x, statistics="batch")  # normalised by its own statistics; the others follow
        second = self.run(x, moves=False)
        self.return_from(second)
        return second.logits
