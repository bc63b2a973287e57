"""Images, labels, orders and checksums stay the same bit for bit: job keys and results rely on it.

The expected values were recorded before the loaders were rebuilt on stores.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate.data.domain_choice import DomainChoice
from acclimate.data.loading import Preparation, load_data
from acclimate.data.request import Request


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Image files without compression: their bytes are the same everywhere."""
    root, draws = tmp_path_factory.mktemp("bits"), np.random.default_rng(0)

    def save(path: Path, values: np.ndarray) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values.astype(np.uint8)).save(path)

    for domain in ("day", "night"):
        for name in ("cat", "dog"):
            for number in range(5):
                pixels = draws.integers(0, 256, (8, 8, 3))
                save(root / "domains" / domain / name / f"{number}.ppm", pixels)
    for number in range(4):
        save(root / "masks" / "images" / f"{number}.ppm", draws.integers(0, 256, (6, 8, 3)))
        save(root / "masks" / "masks" / f"{number}.bmp", draws.choice([0, 1, 255], (6, 8)))
    (root / "masks" / "classes.txt").write_text("road\ncar\n")
    return root


def digest(*arrays: Any) -> str:
    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(np.asarray(array)).tobytes())
    return state.hexdigest()[:16]


EXPECTED: dict[str, Any] = {
    "folder": {"day": ["70f9e8fd4bef9268", "0132df00e39c30ff"]},
    "domains": {
        "day": ["e1a46afa0a1c77e6", "0fbf3cb69ebbd6e4"],
        "night": ["23748aa39074e70c", "4631822062ade4b6"],
    },
    "masks": {"masks": ["3ddfea2903f51e21", "c98f85006d76fbb3"]},
    "folder source": ["abba148707030e2d", "db184e1ea815229d"],
    "domain source": ["375c591f5bf6b555"] * 2,
    "mask source": ["01c0d61c559e42a3"] * 2,
}


def measure(name: Path, **options: Any) -> dict[str, list[str]]:
    data = load_data(str(name), Request(**options))
    return {
        domain.name: [
            data.descriptions[domain.name]["sha256"][:16],
            digest(*domain.take(torch.arange(len(domain)))),
        ]
        for domain in data.domains
    }


def order(name: Path, **options: Any) -> list[str]:
    batches, _ = Preparation(source=str(name), seed=3, **options).open()
    return [digest(x, y) for _ in range(2) for x, y in batches]


def test_what_is_measured_on_is_the_same(files: Path) -> None:
    found = {
        "folder": measure(files / "domains" / "day", n=6),
        "domains": measure(files / "domains", domains=DomainChoice(part="train", trial_seed=1)),
        "masks": measure(files / "masks", size=(3, 4)),
    }
    assert found == {key: EXPECTED[key] for key in found}


def test_what_is_prepared_from_is_the_same(files: Path) -> None:
    choice = DomainChoice(names=("night",), part="held")
    found = {
        "folder source": order(files / "domains" / "day"),
        "domain source": order(files / "domains", domains=choice, n=2),
        "mask source": order(files / "masks", n=3),
    }
    assert found == {key: EXPECTED[key] for key in found}
