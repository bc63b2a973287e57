from __future__ import annotations

from dataclasses import replace

from acclimate.methods.config import options
from acclimate.methods.infomax import Infomax, InfomaxConfig
from acclimate.terms.nsp import Nsp, NspOptions


@options
class NspConfig(NspOptions, InfomaxConfig):
    """Options of `nsp`; the defaults are the paper's."""

    presets = InfomaxConfig.presets


class NspMethod(Infomax):
    """Trains all parameters on the main loss, and the encoder towards the source's prototypes.

    Table 2 of the paper. The second forward and backward are on a transformed view. The paper
    leaves NSP on pixels to future work; what is done here is ours: every pixel of the head's input
    is a sample, at the resolution it has there, and the transformed view moves none.
    """

    name = "nsp"
    config_class = NspConfig
    config: NspConfig
    card = replace(Infomax.card, forwards=2, backwards=2)
    contains = (Nsp,)
