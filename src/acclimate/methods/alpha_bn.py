from __future__ import annotations

from acclimate.errors import InvalidConfig
from acclimate.methods.config import Config, MethodCard, changed, hp, options, uniform
from acclimate.methods.method import Method
from acclimate.methods.norm import Norm

_SHARE = 0.5


@options
class MixtureConfig(Config):
    """Options of methods that mix the source's statistics with the test batch's."""

    statistics: str = changed(Config, "statistics", "mixed")
    source_share: float = hp(
        _SHARE,
        low=0.0,
        high=1.0,
        search=uniform(0.0, 1.0),
        help="weight of the source's statistics, that of the test batch is 1 minus it: α of You "
        "et al., but 1 − α where α weighs the test batch; for single images 0.9 is published",
    )
    prior: int = hp(
        0,
        low=0,
        help="count the source as so many samples instead: n of a batch then weigh n/(n + prior) "
        "(N of Schneider et al., who take 16 with single images); 0: use source_share",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior and self.source_share != _SHARE:
            raise InvalidConfig(
                "conflicting_options",
                f"source_share = {self.source_share:g} and prior = {self.prior} both say what the "
                "source weighs. Give one of them.",
                options=("source_share", "prior"),
            )
        if self.statistics == "mixed" and self.statistics_momentum != Config.statistics_momentum:
            raise InvalidConfig(
                "not_applicable",
                "statistics_momentum has no part in mixed statistics here. Say what the source "
                f"weighs: source_share = {1 - self.statistics_momentum:g}.",
                option="statistics_momentum",
            )


class MixingMethod(Method):
    """A method that runs on mixed statistics, in shares that may depend on the batch's size."""

    def batch_share(self, n: int, statistics: str) -> float:
        if statistics != "mixed" or not isinstance(self.config, MixtureConfig):
            return super().batch_share(n, statistics)
        prior = self.config.prior
        return n / (n + prior) if prior else 1.0 - self.config.source_share


class AlphaBn(MixingMethod, Norm):
    """Normalises with a mixture of the source's statistics and the test batch's.

    Also You et al. 2021, https://arxiv.org/abs/2110.04065 (α-BN). α weighs the source in one paper
    and the test batch in the other; here the option says whose share it is. Batch variances are
    unbiased, as running ones are. Which share You et al. took is not known; half and half is a
    middle, not a published value. For batches of one image the benchmark
    https://github.com/mariodoebler/test-time-adaptation gives the image 0.1: `source_share=0.9`.
    Keeps nothing between batches; works on single images.
    """

    name = "alpha_bn"
    config_class = MixtureConfig
    card = MethodCard(
        authors="Schneider et al.",
        year=2020,
        paper="https://arxiv.org/abs/2006.16971",
        code="https://github.com/bethgelab/robustness",
        dense=True,
    )
