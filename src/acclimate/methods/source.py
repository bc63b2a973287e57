from __future__ import annotations

from torch import Tensor

from acclimate.methods.config import Config, MethodCard, changed, options
from acclimate.methods.method import Method


@options
class SourceConfig(Config):
    """Options of `source`."""

    statistics: str = changed(Config, "statistics", "source")


class Source(Method):
    """Predicts with the source model and never adapts: the baseline that every method must beat."""

    name = "source"
    config_class = SourceConfig
    card = MethodCard(shards=True, dense=True)

    def _takes_channels_last(self, x: Tensor) -> bool:
        """Leave the layout alone: what is returned is the model's own output to the last bit."""
        return False
