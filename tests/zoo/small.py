"""A model small enough for tests, to be put into the catalogue, and its published file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from acclimate import zoo
from acclimate.builtin.model import WideResNet
from acclimate.zoo.catalog import CATALOG
from tests.zoo import oracles


def make_x(n: int = 2) -> Tensor:
    """Return images in [0, 1]."""
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def small_spec(**changes: Any) -> zoo.ModelSpec:
    """Return a spec like that of a WRN-40-2, of a smaller network."""
    known: dict[str, Any] = {
        "name": "small",
        "data": "CIFAR-10",
        "architecture": "WRN-10-1",
        "factory": partial(WideResNet, depth=10, width=1),
        "n_classes": 10,
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "layout": "robustbench",
        "description": "For tests.",
        "publisher": "tests",
        "address": "https://example.org/small.pt",
        "licence": "none",
    }
    return zoo.ModelSpec(**{**known, **changes})


def small_state(**changes: Any) -> oracles.State:
    """Return what its published file holds, in single precision."""
    state = oracles.robustbench(**{"depth": 10, "width": 1, "n_classes": 10, "seed": 1, **changes})
    return {name: t.float() if t.is_floating_point() else t for name, t in state.items()}


def saved(folder: Path, state: oracles.State, name: str = "saved.pt") -> Path:
    """Return the file the state was saved in."""
    torch.save(state, folder / name)
    return folder / name


def add_small(monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: Any) -> Path:
    """Put the small model into the catalogue, with its data in the folder; return the folder."""
    monkeypatch.setitem(CATALOG, "small", small_spec(**changes))
    monkeypatch.setenv("ACCLIMATE_DATA", str(folder / "data"))
    return folder
