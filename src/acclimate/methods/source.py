"""The source model as it is: the baseline every method must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from acclimate.functional.norm import STATISTICS
from acclimate.methods.config import Config, hp
from acclimate.methods.method import Method, MethodCard


@dataclass(frozen=True, kw_only=True)
class SourceConfig(Config):
    """Options of `source`."""

    statistics: str = hp(
        "source", choices=STATISTICS, help="BatchNorm statistics: the source's, as trained"
    )


class Source(Method):
    """Predicts with the source model and never adapts.

    Paper: none; it is the question, not an answer. Moves nothing. Returns the model's own logits.
    Cost of a batch: 1 forward.
    """

    name: ClassVar[str] = "source"
    config_class: ClassVar[type[Config]] = SourceConfig
    card: ClassVar[MethodCard] = MethodCard(
        shards=True,
        dense=True,
    )

    def _takes_channels_last(self, x: Tensor) -> bool:
        """Leave the layout alone: what is returned is the model's own output to the last bit."""
        return False
