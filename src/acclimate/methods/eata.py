from __future__ import annotations

from acclimate.methods.config import hp, log_uniform, options, published
from acclimate.methods.eta import Eta, EtaConfig
from acclimate.terms.fisher import FisherPenalty
from acclimate.terms.term import Term


@options
class EataConfig(EtaConfig):
    """Options of `eata`; the defaults are those published for CIFAR-10 at batches of 200."""

    presets = published(
        "cifar10",
        cifar100=EtaConfig.presets["cifar100"],
        imagenet={**EtaConfig.presets["imagenet"], "fisher_weight": 2000.0},
    )

    fisher_weight: float = hp(
        1.0,
        low=0.0,
        search=log_uniform(0.1, 5000),
        help="weight of the penalty on leaving the source's weights (β); 0 is ETA",
    )


class Eata(Eta):
    """Does as ETA, and holds the weights that matter to the source near their source values.

    The penalty is the squared distance from the source weights, each weighed by its Fisher
    information, which `prepare` measures on source images without using their labels. It acts only
    where a sample was chosen, as in the authors' code, which takes BatchNorm2d only.
    """

    name = "eata"
    config_class = EataConfig
    config: EataConfig
    card = Eta.card
    needs = FisherPenalty.needs

    @classmethod
    def own_terms(cls, config: EataConfig) -> tuple[Term, ...]:
        return (FisherPenalty(weight=config.fisher_weight),)
