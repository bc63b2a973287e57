"""ETA with a regulariser against forgetting (EATA)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from acclimate.errors import ArtifactMissing
from acclimate.methods.config import Config, hp, log_uniform
from acclimate.methods.eta import Eta, EtaConfig


@dataclass(frozen=True, kw_only=True)
class EataConfig(EtaConfig):
    """Options of `eata`; the defaults are those published for CIFAR-10 at batches of 200."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **EtaConfig.presets,
        "imagenet": {**EtaConfig.presets["imagenet"], "fisher_weight": 2000.0},
    }

    fisher_weight: float = hp(
        1.0,
        low=0.0,
        search=log_uniform(0.1, 5000),
        help="weight of the penalty on leaving the source's weights (β); 0 is ETA",
    )


class Eata(Eta):
    """Does as ETA, and holds the weights that matter to the source near their source values.

    Paper: Niu et al. 2022, https://arxiv.org/abs/2204.02610.
    Official code: https://github.com/mr-eggplant/EATA.
    The penalty is the squared distance from the source weights, each weighed by its Fisher
    information, which `prepare` measures on source images without using their labels. It acts only
    where a sample was chosen, as in the authors' code.
    Moves scale and shift of all normalisation layers; the authors' code takes BatchNorm2d only.
    Returns the logits before the update. Cost of a batch: 1 forward, 1 backward.
    """

    name: ClassVar[str] = "eata"
    config_class: ClassVar[type[Config]] = EataConfig
    config: EataConfig
    needs: ClassVar[tuple[str, ...]] = ("fisher",)

    def setup(self) -> None:
        """Take the Fisher information of what moves from the artifact."""
        super().setup()
        if self.artifact is None:
            raise ArtifactMissing(
                "artifact_needed",
                "an artifact with the part fisher is needed: acclimate.prepare(model, source, "
                'method="eata").',
                methods=(self.name,),
            )
        measured = self.artifact.part("fisher")
        self._fisher = {name: measured[name] for name in self.parameters_moved if name in measured}

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return ETA's loss and the penalty; None if no sample is chosen."""
        logits, loss = super().loss(x)
        if loss is not None and self.config.fisher_weight > 0:
            loss = loss + self.config.fisher_weight * self._distance(loss)
        return logits, loss

    def _distance(self, like: Tensor) -> Tensor:
        """Return the weighted squared distance of the weights from the source's."""
        source = self.initial()["modules"]
        total = like.new_zeros(())
        for name, fisher in self._fisher.items():
            # In the precision of the loss: in bfloat16 the small differences would be rounded away.
            moved = self.parameters_moved[name].to(like) - source[f"model.{name}"].to(like)
            total = total + (fisher.to(like) * moved**2).sum()
        return total
