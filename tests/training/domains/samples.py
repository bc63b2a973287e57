"""Settings and models of runs on several domains."""

from __future__ import annotations

from typing import Any

from torch import nn

from acclimate.training import DomainSettings
from tests.cli_models import Mortal, tiny_cnn
from tests.domains.samples import DOMAINS, make_set, make_tree

__all__ = ["DOMAINS", "make_set", "make_settings", "make_tree", "mortal_cnn", "seven_classes"]


def make_settings(**changes: Any) -> DomainSettings:
    """Return settings of a run of 6 steps with 3 checks, of a model with dropout and BatchNorm."""
    known: dict[str, Any] = {
        "objective": "coral",
        "model": "tests.cli_models:tiny_cnn",
        "data": "builtin-domains",
        "test_domain": "shore",
        "steps": 6,
        "check_every": 2,
        "batch_size": 4,
        "lr": 1e-2,
        "weight_decay": 1e-3,
        "dropout": 0.2,
    }
    return DomainSettings(**{**known, **changes})


def seven_classes() -> nn.Module:
    """Return a model with more classes than the data has: its head is to be replaced."""
    model = tiny_cnn()
    model[-1] = nn.Linear(24, 7)
    return model


def mortal_cnn() -> nn.Module:
    """Return the tiny model in a body that can be killed."""
    return Mortal(*tiny_cnn())
