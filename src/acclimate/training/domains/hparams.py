"""DomainBed's hyper-parameters of ERM and CORAL: the defaults, and how a random trial is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.data.domain_choice import seed_hash
from acclimate.errors import InvalidConfig

_Draw = Callable[[np.random.RandomState], Any]


@dataclass(frozen=True)
class Hyperparameters:
    """What a random search of DomainBed varies.

    Attributes:
        lr: Of Adam.
        batch_size: Images of each domain in a step.
        weight_decay: Of Adam: a factor of the weights that is added to their gradient.
        dropout: Probability of dropping a feature before the head.
        gamma: Weight of CORAL's penalty; ERM has none.
    """

    lr: float = 5e-5
    batch_size: int = 32
    weight_decay: float = 0.0
    dropout: float = 0.0
    gamma: float = 1.0


# DomainBed's name for each, on which its draw depends, and its distribution.
_DISTRIBUTIONS: dict[str, tuple[str, _Draw]] = {
    "lr": ("lr", lambda draws: 10 ** draws.uniform(-5, -3.5)),
    "batch_size": ("batch_size", lambda draws: int(2 ** draws.uniform(3, 5.5))),
    "weight_decay": ("weight_decay", lambda draws: 10 ** draws.uniform(-6, -2)),
    "dropout": ("resnet_dropout", lambda draws: float(draws.choice([0.0, 0.1, 0.5]))),
    "gamma": ("mmd_gamma", lambda draws: 10 ** draws.uniform(-1, 1)),
}


def draw_hparams(seed: int) -> Hyperparameters:
    """Return random hyper-parameters from DomainBed's distributions, the very ones it draws.

    Each has a generator of its own, so that ERM and CORAL share what they have in common.

    Args:
        seed: What DomainBed calls `seed_hash(hparams_seed, trial_seed)`.
    """
    values = {
        ours: draw(np.random.RandomState(seed_hash(seed, theirs)))
        for ours, (theirs, draw) in _DISTRIBUTIONS.items()
    }
    return Hyperparameters(**values)


def get_hparams(hparams_seed: int, trial_seed: int) -> Hyperparameters:
    """Return the hyper-parameters of a trial: the defaults for seed 0, random ones for others.

    Args:
        hparams_seed: Number of the draw; 0 stands for the defaults.
        trial_seed: Of the trial, which has draws of its own.

    >>> get_hparams(0, 0).lr, get_hparams(1, 0) == get_hparams(1, 0) != get_hparams(1, 1)
    (5e-05, True)
    """
    if hparams_seed < 0 or trial_seed < 0:
        raise InvalidConfig(
            "out_of_range",
            f"Expected seeds of at least 0, found hparams_seed={hparams_seed} and "
            f"trial_seed={trial_seed}.",
            option="hparams_seed" if hparams_seed < 0 else "trial_seed",
            found=hparams_seed if hparams_seed < 0 else trial_seed,
        )
    if hparams_seed == 0:
        return Hyperparameters()
    return draw_hparams(seed_hash(hparams_seed, trial_seed))
