"""Settings and fixtures of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.images import write_images

# Tiny tensors: a second thread only waits, and on shared cores it waits by spinning.
torch.set_num_threads(1)


@pytest.fixture
def class_folder(tmp_path: Path) -> Path:
    """A folder of images in two class folders: three cats and three dogs of 8×8 pixels."""
    return write_images(tmp_path / "images", {"cat": 3, "dog": 3})
