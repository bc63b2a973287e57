"""Fixtures of the tests of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.samples import make_photos


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images to train on and 12 to test with, only to be read."""
    return make_photos(tmp_path_factory.mktemp("training") / "photos")
