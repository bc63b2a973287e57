"""Running BatchNorm statistics that follow the test stream (BN-EMA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from acclimate.functional.norm import STATISTICS
from acclimate.methods.config import Config, hp
from acclimate.methods.norm import Norm


@dataclass(frozen=True, kw_only=True)
class BnEmaConfig(Config):
    """Options of `bn_ema`."""

    statistics: str = hp(
        "running",
        choices=STATISTICS,
        help="BatchNorm statistics: running (moved by the batch, then used), or another policy",
    )


class BnEma(Norm):
    """Moves the running statistics towards each batch, then predicts with them.

    Paper: none of its own; a variant of Schneider et al. 2020, https://arxiv.org/abs/2006.16971.
    Official code: https://github.com/mariodoebler/test-time-adaptation (methods/bn.py).
    Moves the running mean and variance of BatchNorm layers (share 0.1 of each batch), and no
    parameter; works on single images. Returns the logits of its one forward, which sees the moved
    statistics. Cost of a batch: 1 forward.
    """

    name: ClassVar[str] = "bn_ema"
    config_class: ClassVar[type[Config]] = BnEmaConfig
    paper: ClassVar[str] = "https://arxiv.org/abs/2006.16971"
    code: ClassVar[str] = "https://github.com/mariodoebler/test-time-adaptation"
    year: ClassVar[int] = 2020
    moves: ClassVar[str] = "running statistics of BatchNorm"
    shards: ClassVar[bool] = True
    dense: ClassVar[bool] = True
