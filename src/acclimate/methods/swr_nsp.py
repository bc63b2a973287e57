from __future__ import annotations

from acclimate.methods.config import options
from acclimate.methods.infomax import Infomax
from acclimate.methods.nsp import NspConfig, NspMethod
from acclimate.methods.swr import SwrConfig
from acclimate.terms.nsp import Nsp
from acclimate.terms.swr import Swr, SwrOptions


@options
class SwrNspConfig(SwrOptions, NspConfig):
    """Options of `swr_nsp`; the defaults are the paper's."""

    presets = SwrConfig.presets


class SwrNsp(Infomax):
    """Trains all parameters, damped by shift-agnostic penalties, towards the source's prototypes.

    The paper's method. Its auxiliary loss moves the encoder only, by a second forward and backward
    on a transformed view. On pixels, where the paper leaves NSP to future work, it is ours: see
    `nsp`. Where the text leaves something open, these choices are ours:

    - Prototypes without a projector are exponential moving averages of features. The supplement
      says so of its table of prototypes; where it describes the model without a projector, it says
      "averaging". An average that moves is what eq. 4 has, and it is the same with a projector.
    - While the projector is trained, prototypes move before the loss of the batch is computed. The
      text does not give the order; in figure 4 the steps that make prototypes have the first
      numbers.
    - `preset="imagenet"`: the supplement has batches and rate "following TENT", and no optimiser.
      SGD with momentum 0.9 is TENT's there, and Nesterov's form the default of TENT's code.
    - `preset="cityscapes"`: rate, strength, anchor and running statistics are the supplement's;
      Adam is not named, but is the optimiser of the frameworks that the paper uses on CIFAR. That
      statistics are moved and used in one pass is ours as well: see `GradientConfig`.
    """

    name = "swr_nsp"
    config_class = SwrNspConfig
    config: SwrNspConfig
    card = NspMethod.card
    contains = (Swr, Nsp)
