"""Settings and fixtures of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acclimate.parts import Accuracy
from tests.cli_models import CLASSES
from tests.images import write_images

# Tiny tensors: a second thread only waits, and on shared cores it waits by spinning.
torch.set_num_threads(1)


@pytest.fixture
def without_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the part accuracy, which takes long, where it was not asked for by name."""
    monkeypatch.setattr(Accuracy, "find_obstacle", lambda x: "this test does without it")


def quicken_accuracy(patch: pytest.MonkeyPatch) -> None:
    """Measure the part accuracy, where it has default options, on few images."""
    quick = {"n_samples": 64, "severities": (5,), "n_runs": 4}
    for name, value in quick.items():
        patch.setitem(Accuracy.__init__.__kwdefaults__, name, value)  # type: ignore[misc]


@pytest.fixture
def quick_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken_accuracy(monkeypatch)


@pytest.fixture(scope="session")
def labelled_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images in class folders, those of `tests.cli_models`; to be read only."""
    return write_images(tmp_path_factory.mktemp("labelled"), dict.fromkeys(CLASSES, 8))
